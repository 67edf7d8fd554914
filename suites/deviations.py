"""Where a Kafka build is known to do other than its KIP says: expected, named, and missed where it no longer shows.

Data alone; checks hold what they see against it by :mod:`suites.observing`.
"""

from __future__ import annotations

from dataclasses import replace

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

HALF_EXECUTED = Deviation(
    kip=113,
    promised="kafka-reassign-partitions tells brokers the log dirs first, and if one refuses reassigns nothing",
    actual=(
        "it reassigns first: with a log dir that a broker doesn't have, it ends with an error and replicas have moved"
    ),
    issue="none known; since the rewriting for KIP-455, KAFKA-8820",
    builds=VersionRange.parse(">=2.6.0"),
    pollutes=False,
)

EMPTIED_DIR_NAMED = Deviation(
    kip=113,
    promised="the log dir that a replica was moved out of has nothing of it any more",
    actual="if nothing else is in it, its replication-offset-checkpoint is not written again, and goes on naming it",
    issue="none known; ReplicaManager.checkpointHighWatermarks",
    builds=VersionRange.parse(""),
)

GROWTH_NOT_CANCELLED = Deviation(
    kip=455,
    promised="kafka-reassign-partitions --cancel cancels a reassignment that is under way",
    actual="one that only adds replicas is said not to be active, and goes on, with its throttle taken off",
    issue="https://github.com/apache/kafka/pull/20003",
    builds=VersionRange.parse(">=3.7.0,<4.0.1"),
    pollutes=False,
)

CANCELLED_COPY_STAYS = Deviation(
    kip=455,
    promised="where a reassignment is cancelled, the replicas that it was adding are deleted",
    actual="their broker ignores the order to delete them, since no leader epoch began with it: they stay",
    issue="KAFKA-13972",
    builds=VersionRange.parse(">=2.6.0,<3.4.1"),
    modes=(Mode.ZK,),
)

NO_LOG_DIRS_OPTION = Deviation(
    kip=113,
    promised="kafka-log-dirs --log-dirs shows the log dirs that are named",
    actual="it has no such option and always shows all",
    issue="none known",
    builds=VersionRange.parse(""),
    pollutes=False,
)

ANY_REFUSED = Deviation(
    kip=113,
    promised='a broker that is asked to move a replica to "any" cancels the move of it that is under way',
    actual=(
        "it answers LOG_DIR_NOT_FOUND, and the move goes on; it ends if asked for the log dir that the replica is in"
    ),
    issue="none known",
    builds=VersionRange.parse(""),
    pollutes=False,
)

CLEANING_STOPS = Deviation(
    kip=113,
    promised="a move can be called off or given another log dir, and the replica goes on as before",
    actual="the log of a replica whose move was changed is never compacted again, nor does it lose what has expired",
    issue="KAFKA-19458",
    builds=VersionRange.parse("<4.2.0"),
)

MOVE_NEVER_ENDS = Deviation(
    kip=113,
    promised="a future replica that has caught up replaces the replica",
    actual="it never does: an acknowledgement for an earlier move fails in the broker, and takes this move's along",
    issue="none found; AssignmentsManager.AssignmentResponseEvent, ReplicaAlterLogDirsThread.updateReassignmentState",
    builds=VersionRange.parse(">=3.7.1,<3.8.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # seen on 3.7.2 in one run of four, where one move began as another ended
)

COPY_PASSED_OVER = Deviation(
    kip=113,
    promised="a copy that is found without its replica, with all log dirs good, becomes the replica",
    actual="the broker makes an empty replica, fetches it from the leader, and copies it anew into the copy",
    issue="none known; ReplicaManager.becomeLeaderOrFollower creates what is not there",
    builds=VersionRange.parse(""),
    modes=(Mode.ZK,),
)

OLD_DIR_TOLD_AGAIN = Deviation(
    kip=113,
    promised="a copy that is found without its replica, with all log dirs good, becomes the replica",
    actual="as it ended the move its broker told the controller the old log dir again: killed within some 0.1 s, it "
    "makes an empty replica there, fetches it from the leader, and copies it anew into the copy",
    issue="none found; ReplicaAlterLogDirsThread.addPartitions forgets how far the move was",
    builds=VersionRange.parse(">=3.7.0,<4.0.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # in one run of three
)

COPY_KNOWN_TO_CONTROLLER = Deviation(
    kip=113,
    promised="a copy that is found without its replica, with a log dir bad, is left alone, and the replica is offline",
    actual="the controller knows that the replica is in none of the bad log dirs: the copy becomes the replica",
    issue="KIP-858, which came later; LogManager.recoverAbandonedFutureLogs",
    builds=VersionRange.parse(""),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

LONE_COPY_EMPTIED = Deviation(
    kip=113,
    promised="a copy that is found without its replica, with all log dirs good, becomes the replica",
    actual="of a partition of one replica, an empty replica is made and copied over the copy: acked records are lost",
    issue="none known; as of several replicas, and there is no leader to fetch from",
    builds=VersionRange.parse(""),
    modes=(Mode.ZK,),
)

COPY_NAMED_FIRST = Deviation(
    kip=113,
    promised="6. to 7.: a replica that was moved is first renamed to be deleted, and then its copy to be the replica",
    actual="the copy is renamed first: if the log dir that is left fails then, or the broker dies, it finds two "
    "replicas at its next start, and refuses until one is deleted by hand",
    issue="none found; LogManager.replaceCurrentWithFutureLog",
    builds=VersionRange.parse(""),
)

TOLD_AS_SWAPPED = Deviation(
    kip=112,
    promised="offline_replicas names every replica on a failed log dir",
    actual="not one whose swap with its copy failed: it is offline on its broker, out of the ISR, and told as online",
    issue="none found; since KAFKA-16297 its broker says that it is in the old log dir, then in the new one again",
    builds=VersionRange.parse(">=3.7.1"),
    modes=(Mode.KRAFT,),
)

EXPIRED_UNTRIMMED = Deviation(
    kip=113,
    promised="a broker that found a replica twice says itself: recover by manually deleting one of the two directories",
    actual="it marked the other's log dir as cleanly shut down and left its time index untrimmed: "
    "acked records expire, or the follower stops fetching",
    issue="KAFKA-10207 is the same at another time",
    builds=VersionRange.parse("<4.0.0"),
    modes=(Mode.ZK,),
    deterministic=False,  # only where that log dir was loaded before the other
)

CUT_OFF_STAYS = Deviation(
    kip=113,
    promised="the segments of a copy under way are subject to log truncation in the same way as those of its source",
    actual="of a move that ends within file.delete.delay.ms after it began anew, what it had copied stays on the disk",
    issue="KAFKA-16424",
    builds=VersionRange.parse("<3.8.0"),
    deterministic=False,  # what had been copied may be deleted before the move ends
)

RETENTION_WAITS = Deviation(
    kip=113,
    promised="the segments of a copy under way are subject to log retention in the same way as those of its source",
    actual="neither loses what has expired for as long as the move takes",
    issue="none known; ReplicaManager.alterReplicaLogDirs pauses more than the compaction",
    builds=VersionRange.parse(""),
)

COORDINATOR_RELOADED = Deviation(
    kip=112,
    promised="transactions go on when a log dir with a replica of the transaction coordinator's log fails",
    actual="the coordinator loads its log again, though it led before, and a transaction under way then never ends",
    issue="KAFKA-15468",
    builds=VersionRange.parse(">=3.7.0,<3.8.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # only if a record of the coordinator's log waited for followers as it was loaded
)

GOOD_LOG_DIR_OFFLINE = Deviation(
    kip=113,
    promised="a log dir is offline when it fails; a move between log dirs touches nothing else",
    actual="a move that ends while the flush of a rolled segment is due takes the good log dir offline",
    issue="KAFKA-19571",
    builds=VersionRange.parse(">=3.7.0,<4.0.2 | >=4.1.0,<4.1.2"),
)

GOOD_LOG_DIR_OFFLINE_AT_TIMES = replace(
    GOOD_LOG_DIR_OFFLINE,
    builds=VersionRange.parse("<3.7.0"),
    deterministic=False,  # 3.6.2: one run in three
)

OFFLINE_REPLICAS_UNCOUNTED = Deviation(
    kip=112,
    promised="OfflineReplicaCount is the number of replicas on failed log dirs",
    actual="it is always 0: it counts entries of the class of HostedPartition.Offline's companion, which none has",
    issue="since the mending of KAFKA-16157",
    builds=VersionRange.parse(">=3.7.0,<4.3.0"),
    pollutes=False,
)

OFFLINE_REPLICAS_COUNTED_LATE = Deviation(
    kip=112,
    promised="OfflineReplicaCount is the number of replicas on failed log dirs",
    actual="a broker that finds a log dir bad as it starts counts a replica there once told of it for the second time",
    issue="none known; ReplicaManager.markPartitionOffline is for those it has served",
    builds=VersionRange.parse(""),
    deterministic=False,  # it may be told so before anybody looks
    pollutes=False,
)

OFFLINE_REPLICAS_NOT_PRINTED = Deviation(
    kip=112,
    promised="kafka-topics shows the offline replicas of a partition",
    actual="it doesn't: they are on the wire only",
    issue="none known",
    builds=VersionRange.parse(""),
    pollutes=False,
)

OFFLINE_LOG_DIRS_ELSEWHERE = Deviation(
    kip=112,
    promised="OfflineLogDirectoryCount is kafka.server:type=LogManager",
    actual="it is kafka.log:type=LogManager",
    issue="none known; so since KIP-112 came",
    builds=VersionRange.parse(""),
    pollutes=False,
)

UNWRITABLE_ENDS_START = Deviation(
    kip=112,
    promised="a broker that finds a log dir bad as it starts goes on with its good ones",
    actual="if it can read the log dir and not write to it, it ends: it writes meta.properties anew, and gives up",
    issue="KAFKA-13773",
    builds=VersionRange.parse(">=2.4.0,<3.2.1"),
    modes=(Mode.ZK,),
    deterministic=False,  # of the ways to fail, only with one that leaves the log dir readable
)

UNFORMATTED_REFUSED = Deviation(
    kip=112,
    promised="a broker that is restarted with an empty disk makes its replicas anew there",
    actual="in KRaft it refuses to start, until kafka-storage format --ignore-formatted was run",
    issue="on purpose, since KRaft came (KIP-631)",
    builds=VersionRange.parse(""),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

STRAY_KEPT = Deviation(
    kip=112,
    promised="topic deletion deletes all replicas, one that is offline when its broker is back with it",
    actual="the broker that finds it as it starts sets it aside, as -stray, and keeps it",
    issue='none: on purpose ("Move aside stray partitions, don\'t delete them", LogManager)',
    builds=VersionRange.parse(""),
    modes=(Mode.KRAFT,),
)

STORAGE_ERROR_TO_CLIENTS = Deviation(
    kip=112,
    promised="clients that ask a broker for a replica on its failed log dir are told UNKNOWN_TOPIC_OR_PARTITION",
    actual="they are told KAFKA_STORAGE_ERROR, by which they ask for metadata all the same",
    issue="none known; ReplicaManager.getPartitionOrError, since KIP-112 came",
    builds=VersionRange.parse(""),
    pollutes=False,
)

MADE_TWICE = Deviation(
    kip=112,
    promised="a replica that is on no good log dir is made on one only if it is new, or if no log dir is bad",
    actual="killed before it has told the controller the log dir (0.1 to 0.5 s), a broker makes it on a good one too, "
    "and refuses to start when the bad one is back",
    issue="none known; what KAFKA-16234 left of it: a replica without a directory is taken for a new one",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
)

FAILED_REPLICA_PREFERRED = Deviation(
    kip=392,
    promised="a consumer is served by another replica where the nearest is offline",
    actual="the leader goes on naming the nearest, which is out of the ISR, and the consumer reads nothing",
    issue="KAFKA-14372",
    builds=VersionRange.parse(">=2.4.0,<3.3.2"),
)

LEADERS_OVER_RACKS = Deviation(
    kip=36,
    promised="when the partitions are a multiple of the brokers, each broker leads as many, and has as many replicas",
    actual="KRaft's placer gives each rack as many leaders, and one broker of it more of them or of replicas",
    issue="KAFKA-15354",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

RACKS_PASSED_OVER = Deviation(
    kip=36,
    promised="leaders are chosen from the racks round-robin",
    actual="from the second round on, KRaft's placer passes over racks of one broker that it takes for used up",
    issue="none found: StripedReplicaPlacer.BrokerList keeps its place when the epoch begins anew",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

GENERATED_IN_STRIPES = Deviation(
    kip=36,
    promised="kafka-reassign-partitions assigns replicas along the rack-alternated broker list",
    actual="--generate uses KRaft's placer",
    issue="KAFKA-18798",
    builds=VersionRange.parse(">=4.1.0"),
    pollutes=False,
)

ADDED_ELSEWHERE = Deviation(
    kip=36,
    promised="when the partitions are a multiple of the brokers, each broker leads as many as any other",
    actual="partitions that are added to a topic don't begin where its first ones ended",
    issue="KAFKA-17198, in KRaft KAFKA-14437",
    builds=VersionRange.parse(">=1.0.0"),
    pollutes=False,
)

TOOL_REFUSES_WITHOUT_REASON = Deviation(
    kip=36,
    promised="if some brokers have no rack, kafka-topics refuses, and tells so",
    actual="it says that the server had an unexpected error, and only the broker's log has the reason",
    issue="none found",
    builds=VersionRange.parse(">=3.0.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

AUTOMATIC_REFUSED = Deviation(
    kip=36,
    promised="if some brokers have no rack, topics are created automatically as if none had",
    actual="they are not created",
    issue="none found; since AutoTopicCreationManager assigns as CreateTopics does (KIP-590)",
    builds=VersionRange.parse(">=2.8.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

NO_RACK_IS_A_RACK = Deviation(
    kip=36,
    promised="if some brokers have no rack, kafka-topics refuses, and tells so",
    actual="it creates the topic, with the brokers without a rack as a rack of their own",
    issue="none found; StripedReplicaPlacer takes an empty rack for a rack",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

AUTOMATIC_BY_RACKS = Deviation(
    kip=36,
    promised="if some brokers have no rack, topics are created automatically as if none had",
    actual="replicas are spread over the racks, with the brokers without a rack as a rack of their own",
    issue="none found; StripedReplicaPlacer takes an empty rack for a rack",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

NO_OPTION_TO_IGNORE_RACKS = Deviation(
    kip=36,
    promised="kafka-topics goes on, if some brokers have no rack, when it is told to ignore racks",
    actual="no option does that: the broker chooses, and is not told",
    issue="KAFKA-12596, which took --zookeeper away",
    builds=VersionRange.parse(">=3.0.0"),
    pollutes=False,
)

# --- KIP-1066 ---------------------------------------------------------------------------------------------------------

CORDONS_NOT_PRINTED = Deviation(
    kip=1066,
    promised="the output of the LogDirsCommand tool will also be updated to show if a log directory is cordoned or not",
    actual="kafka-log-dirs prints nothing of it; DescribeLogDirs v5 has it",
    issue="since KAFKA-19774, which brought the KIP without it",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

MOVE_ANSWERED_OTHERWISE = Deviation(
    kip=1066,
    promised="AlterReplicaLogDirs onto a cordoned log directory is answered with KAFKA_STORAGE_ERROR",
    actual="it is answered with INVALID_REPLICA_ASSIGNMENT, which its author found more appropriate",
    issue="KAFKA-19774",
    builds=VersionRange.parse(">=4.3.0"),
    pollutes=False,
)

_EXPLICIT = "KAFKA-20832"
_UNMENDED = VersionRange.parse(">=4.3.0,<4.3.2")  # also mended on the branch of 4.3, after 4.3.1

EXPLICIT_TOPIC_ACCEPTED = Deviation(
    kip=1066,
    promised="a new topic assigned to a broker without uncordoned log directories is INVALID_REPLICA_ASSIGNMENT",
    actual="it is created, in a cordoned log dir",
    issue=_EXPLICIT,
    builds=_UNMENDED,
)

EXPLICIT_PARTITIONS_ACCEPTED = Deviation(
    kip=1066,
    promised="new partitions assigned to a broker without uncordoned log directories are INVALID_REPLICA_ASSIGNMENT",
    actual="they are created, in a cordoned log dir",
    issue=_EXPLICIT,
    builds=_UNMENDED,
)

REASSIGNMENT_ACCEPTED = Deviation(
    kip=1066,
    promised="a reassignment onto a broker with no uncordoned log directories is INELIGIBLE_REPLICA",
    actual="it is carried out, into a cordoned log dir",
    issue=_EXPLICIT,
    builds=_UNMENDED,
)

REASSIGNMENT_ANSWERED_OTHERWISE = Deviation(
    kip=1066,
    promised="a reassignment onto a broker with no uncordoned log directories is INELIGIBLE_REPLICA",
    actual="it is refused with INVALID_REPLICA_ASSIGNMENT",
    issue=f"{_EXPLICIT}, which brought the refusal",
    builds=VersionRange.parse(">=4.3.2"),
    pollutes=False,
)

REGISTERED_WITHOUT_CORDONS = Deviation(
    kip=1066,
    promised="the broker will include the Uuids of cordoned log directories when it registers to the controller",
    actual="it registers without them, and tells with the heartbeats that follow when it has caught up",
    issue="KAFKA-20441, by which the KIP was changed",
    builds=VersionRange.parse(">=4.3.0"),
)

RELATIVE_UNCORDONED = Deviation(
    kip=1066,
    promised="entries of cordoned.log.dirs must be entries in log.dirs, and get no new partitions",
    actual="where log.dirs has relative paths, the entry is taken, and nothing is cordoned, by * neither",
    issue="KAFKA-20901",
    builds=VersionRange.parse(">=4.3.0"),
)

SLASHED_UNCORDONED = Deviation(
    kip=1066,
    promised="entries of cordoned.log.dirs must be entries in log.dirs, and get no new partitions",
    actual="where paths in log.dirs end in a slash, the entry is taken, and nothing is cordoned, by * neither",
    issue="none found of its own; KAFKA-20901 is the same of relative paths",
    builds=VersionRange.parse(">=4.3.0"),
)

STATIC_HALF_IN_FORCE = Deviation(
    kip=1066,
    promised=(
        "cordoned.log.dirs can be set in the broker properties files; no new partitions can be allocated there then"
    ),
    actual="the controller alone heeds the file: the broker calls nothing cordoned, and makes new replicas there",
    issue="none found",
    builds=VersionRange.parse(">=4.3.0"),
)
