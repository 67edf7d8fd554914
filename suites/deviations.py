"""Where a Kafka build is known to do other than its KIP says: expected, named, and missed where it no longer shows."""

from __future__ import annotations

from harness.deviation import Deviation
from harness.versions import VersionRange

HALF_EXECUTED = Deviation(
    kip=113,
    says="kafka-reassign-partitions tells brokers the log dirs first, and if one refuses reassigns nothing",
    does="it reassigns first: with a log dir that a broker doesn't have, it ends with an error and replicas have moved",
    issue="none known; since the rewriting for KIP-455, KAFKA-8820",
    builds=VersionRange.parse(">=2.6.0"),
)

EMPTIED_DIR_NAMED = Deviation(
    kip=113,
    says="the log dir that a replica was moved out of has nothing of it any more",
    does="if nothing else is in it, its replication-offset-checkpoint is not written again, and goes on naming it",
    issue="none known; ReplicaManager.checkpointHighWatermarks",
    builds=VersionRange.parse(""),
)

GROWTH_NOT_CANCELLED = Deviation(
    kip=455,
    says="kafka-reassign-partitions --cancel cancels a reassignment that is under way",
    does="one that only adds replicas is said not to be active, and goes on, with its throttle taken off",
    issue="https://github.com/apache/kafka/pull/20003",
    builds=VersionRange.parse(">=3.7.0,<4.1.0"),
)

NO_LOG_DIRS_OPTION = Deviation(
    kip=113,
    says="kafka-log-dirs --log-dirs shows the log dirs that are named",
    does="it has no such option and always shows all",
    issue="none known",
    builds=VersionRange.parse(""),
)

ANY_REFUSED = Deviation(
    kip=113,
    says='a broker that is asked to move a replica to "any" cancels the move of it that is under way',
    does="it answers LOG_DIR_NOT_FOUND, and the move goes on; it ends if asked for the log dir that the replica is in",
    issue="none known",
    builds=VersionRange.parse(""),
)

CLEANING_STOPS = Deviation(
    kip=113,
    says="a move can be called off, and the replica goes on as before",
    does="the log of a replica whose move was called off is never compacted again, nor does it lose what has expired",
    issue="KAFKA-19458",
    builds=VersionRange.parse("<4.2.0"),
)

RETENTION_WAITS = Deviation(
    kip=113,
    says="the segments of a copy under way are subject to log retention in the same way as those of its source",
    does="neither loses what has expired for as long as the move takes",
    issue="none known; ReplicaManager.alterReplicaLogDirs pauses more than the compaction",
    builds=VersionRange.parse(""),
)

GOOD_LOG_DIR_OFFLINE = Deviation(
    kip=113,
    says="a log dir is offline when it fails; a move between log dirs touches nothing else",
    does="a move that ends while the flush of a rolled segment is due takes the good log dir offline",
    issue="KAFKA-19571",
    builds=VersionRange.parse("<4.2.0"),
)

OFFLINE_REPLICAS_UNCOUNTED = Deviation(
    kip=112,
    says="OfflineReplicaCount is the number of replicas on failed log dirs",
    does="it is always 0: it counts entries of the class of HostedPartition.Offline's companion, which none has",
    issue="since the mending of KAFKA-16157",
    builds=VersionRange.parse(">=3.7.0,<4.3.0"),
)
