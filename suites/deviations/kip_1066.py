"""The known deviations of Kafka builds from KIP-1066, as data."""

from __future__ import annotations

from harness.kafka.versions import VersionRange
from harness.runner.deviation import Deviation

CORDONS_NOT_PRINTED = Deviation(
    kip=1066,
    promised="the output of the LogDirsCommand tool will also be updated to show if a log directory is cordoned or not",
    actual="kafka-log-dirs does not print it; DescribeLogDirs v5 has it",
    issue="since KAFKA-19774, which implemented the KIP without it",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

MOVE_ANSWERED_OTHERWISE = Deviation(
    kip=1066,
    promised="AlterReplicaLogDirs onto a cordoned log directory is answered with KAFKA_STORAGE_ERROR",
    actual="it is answered with INVALID_REPLICA_ASSIGNMENT, which the author of the change preferred",
    issue="KAFKA-19774",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

CANCEL_REFUSED = Deviation(
    kip=1066,
    promised='no new partitions are allocated on a cordoned log directory, which "still fully functions"',
    actual="a move away from it cannot be cancelled: AlterReplicaLogDirs onto the log dir that the replica is in is "
    "refused with INVALID_REPLICA_ASSIGNMENT",
    issue="none found; ReplicaManager.alterReplicaLogDirs refuses each cordoned log dir",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

_EXPLICIT = "KAFKA-20832"
_BEFORE_FIX = VersionRange.parse(">=4.3.0,<4.3.2")  # also fixed on the 4.3 branch, after 4.3.1

EXPLICIT_TOPIC_ACCEPTED = Deviation(
    kip=1066,
    promised="a new topic assigned to a broker without uncordoned log directories is INVALID_REPLICA_ASSIGNMENT",
    actual="it is created, in a cordoned log dir",
    issue=_EXPLICIT,
    builds=_BEFORE_FIX,
)

EXPLICIT_PARTITIONS_ACCEPTED = Deviation(
    kip=1066,
    promised="new partitions assigned to a broker without uncordoned log directories are INVALID_REPLICA_ASSIGNMENT",
    actual="they are created, in a cordoned log dir",
    issue=_EXPLICIT,
    builds=_BEFORE_FIX,
)

REASSIGNMENT_ACCEPTED = Deviation(
    kip=1066,
    promised="a reassignment onto a broker with no uncordoned log directories is INELIGIBLE_REPLICA",
    actual="it is carried out, into a cordoned log dir",
    issue=_EXPLICIT,
    builds=_BEFORE_FIX,
)

REASSIGNMENT_ANSWERED_OTHERWISE = Deviation(
    kip=1066,
    promised="a reassignment onto a broker with no uncordoned log directories is INELIGIBLE_REPLICA",
    actual="it is refused with INVALID_REPLICA_ASSIGNMENT",
    issue=f"{_EXPLICIT}, which added the refusal",
    builds=VersionRange.parse(">=4.3.2"),
    pollutes=False,
)

REGISTERED_WITHOUT_CORDONS = Deviation(
    kip=1066,
    promised="the broker will include the Uuids of cordoned log directories when it registers to the controller",
    actual="it registers without them, and sends them with its heartbeats once it has caught up",
    issue="KAFKA-20441, which changed the KIP",
    builds=VersionRange.parse(">=4.3.0"),
)

RELATIVE_UNCORDONED = Deviation(
    kip=1066,
    promised="entries of cordoned.log.dirs must be entries in log.dirs, and get no new partitions",
    actual="if log.dirs has relative paths, the entry is accepted, and nothing is cordoned, not even by *",
    issue="KAFKA-20901",
    builds=VersionRange.parse(">=4.3.0"),
)

SLASHED_UNCORDONED = Deviation(
    kip=1066,
    promised="entries of cordoned.log.dirs must be entries in log.dirs, and get no new partitions",
    actual="if paths in log.dirs end in a slash, the entry is accepted, and nothing is cordoned, not even by *",
    issue="none of its own found; KAFKA-20901 is the same for relative paths",
    builds=VersionRange.parse(">=4.3.0"),
)

STATIC_HALF_IN_FORCE = Deviation(
    kip=1066,
    promised="cordoned.log.dirs can be set in the broker properties file; no new partitions are placed there then",
    actual="only the controller applies the file: the broker shows nothing as cordoned, and creates new replicas there",
    issue="none found",
    builds=VersionRange.parse(">=4.3.0"),
)

REQUEST_OUTLASTS_CORDON = Deviation(
    kip=1066,
    promised="only a log directory not currently cordoned will be selected for a new replica",
    actual="the log dir that was requested before the replica existed (KIP-113) is selected, though it is cordoned",
    issue="none found; LogManager.getOrCreateLog does not compare preferredLogDirs with the cordoned log dirs",
    builds=VersionRange.parse(">=4.3.0"),
)

PLACED_WITHOUT_HINT = Deviation(
    kip=1066,
    promised="defaultDir(), the log dir in a new replica's first record, is not cordoned",
    actual="it is no log dir (DirectoryId.UNASSIGNED) if the broker has more than one log dir",
    issue="none found; ClusterControlManager.defaultDir ignores cordons",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

HEARTBEAT_RENUMBERED = Deviation(
    kip=1066,
    promised="the request that adds CordonedLogDirs is BrokerHeartbeatRequest v1, and its response is v1",
    actual="both are v2: v1 of the request has the OfflineLogDirs of KIP-858",
    issue="none: KIP-858 came first",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

DEFAULT_AMONG_SYNONYMS = Deviation(
    kip=1066,
    promised="kafka-configs --describe shows one synonym of cordoned.log.dirs, its dynamic value",
    actual="it also shows the default value, as of every setting: DEFAULT_CONFIG:cordoned.log.dirs=",
    issue="none: kafka-configs did so before the KIP",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

DOCUMENTED_OTHERWISE = Deviation(
    kip=1066,
    promised="cordoned.log.dirs has the type string and the importance low",
    actual="it has the type list and the importance medium",
    issue="since KAFKA-19774",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

CORDON_FORGOTTEN = Deviation(
    kip=1066,
    promised="a log dir that was cordoned at run time stays so until it is uncordoned",
    actual="a broker that restarts from a metadata snapshot with the cordon creates new replicas there, and shows the "
    "log dir as not cordoned",
    issue="none found; BrokerServer reads the snapshot's configuration before LogManager can learn of a change",
    builds=VersionRange.parse(">=4.3.0"),
)

CORDON_APPLIED_LATE = Deviation(
    kip=1066,
    promised="only a log directory not currently cordoned will be selected for a new replica",
    actual="a broker that starts creates the replicas that it got while it was down in a log dir that is cordoned",
    issue="none of its own found; KAFKA-20890 is the same for other settings: partitions are applied first",
    builds=VersionRange.parse(">=4.3.0"),
)
