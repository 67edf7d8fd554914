"""The known deviations of Kafka builds from KIP-113, as data."""

from __future__ import annotations

from dataclasses import replace

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

REASSIGNED_BEFORE_REFUSAL = Deviation(
    kip=113,
    promised="kafka-reassign-partitions sends brokers the log dirs first, and reassigns nothing if one refuses",
    actual="it reassigns first: if a broker does not have the log dir, it ends with an error after replicas have moved",
    issue="none known; since the rewrite for KIP-455, KAFKA-8820",
    builds=VersionRange.parse(">=2.6.0"),
    pollutes=False,
)

EMPTIED_DIR_NAMED = Deviation(
    kip=113,
    promised="the log dir that a replica has left has nothing of it any more",
    actual="if the log dir has no other replica, its replication-offset-checkpoint still names the one that left",
    issue="none known; ReplicaManager.checkpointHighWatermarks",
)

NO_LOG_DIRS_OPTION = Deviation(
    kip=113,
    promised="kafka-log-dirs --log-dirs shows the named log dirs",
    actual="it has no such option, and always shows all log dirs",
    issue="none known",
    pollutes=False,
)

ANY_REFUSED = Deviation(
    kip=113,
    promised='a broker that is asked to move a replica to "any" cancels the move of it that is under way',
    actual="the broker answers LOG_DIR_NOT_FOUND, and the move goes on; a request for the replica's present log dir "
    "cancels it",
    issue="none known",
    pollutes=False,
)

MOVE_ANSWERED_WITHOUT_ERROR = Deviation(
    kip=113,
    promised="a broker answers a request that begins a move with MoveInProgress",
    actual="it answers without an error; the protocol has no such error",
    issue="none known",
    pollutes=False,
)

UNKNOWN_TOPIC_ANSWERED = Deviation(
    kip=113,
    promised="a broker that has not created the replica answers with ReplicaNotAvailable, and remembers the log dir",
    actual="if it does not know the topic, it answers with UNKNOWN_TOPIC_OR_PARTITION, and remembers the log dir",
    issue="none known; ReplicaManager.getPartitionOrError",
    builds=VersionRange.parse(">=2.2.0"),
    pollutes=False,
)

LAG_OF_FOLLOWER_HIDDEN = Deviation(
    kip=113,
    promised="offset_lag of a replica is how far its log end offset is behind the partition's high watermark",
    actual="it is always 0: a broker compares with its own high watermark, which is never above its log end offset",
    issue="none found; ReplicaManager.getLogEndOffsetLag",
    pollutes=False,
)

TWICE_AMID_SWAP = Deviation(
    kip=113,
    promised="the log directory for a particular replica is updated atomically",
    actual="during the swap, DescribeLogDirs shows the replica in both log dirs, as a current replica in each",
    issue="none found; LogManager.replaceCurrentWithFutureLog renames the log before it replaces the current one",
    deterministic=False,  # lasts for about a millisecond
    pollutes=False,
)

MOVE_THROTTLE_RENAMED = Deviation(
    kip=113,
    promised="intra.broker.throttled.rate limits the rate of moves between log dirs",
    actual="it has no effect; the setting is replica.alter.log.dirs.io.max.bytes.per.second",
    issue="none known; since the implementation of KIP-113",
    pollutes=False,
)

LOG_DIRS_OPTIONS_RENAMED = Deviation(
    kip=113,
    promised="kafka-log-dirs has the options --zookeeper, --broker and --topics",
    actual="they are --bootstrap-server, --broker-list and --topic-list",
    issue="none known; since the implementation of KIP-113",
    pollutes=False,
)

LOG_DIRS_KEYS_RENAMED = Deviation(
    kip=113,
    promised="kafka-log-dirs prints one list of log dirs, each with is_live, path and partitions; each of those has "
    "topic, partition, size, offset_lag and is_temporary",
    actual="it prints a list of brokers, each with logDirs, with the keys logDir, error and partitions; each of those "
    "has partition, size, offsetLag and isFuture",
    issue="none known; since the implementation of KIP-113",
    pollutes=False,
)

LOG_DIRS_NOT_REQUESTED = Deviation(
    kip=113,
    promised="kafka-reassign-partitions --verify requests the expected log dirs and partitions of each broker",
    actual="it requests the partitions only: DescribeLogDirs has no field for log dirs",
    issue="none known; since the implementation of KIP-113",
    pollutes=False,
)

ADMIN_CLIENT_RENAMED = Deviation(
    kip=113,
    promised="AdminClient has alterReplicaDir, and describeLogDirs takes log dirs by broker; LogDirInfo, ReplicaInfo "
    "and ReplicaDirInfo have the KIP's fields",
    actual="it has alterReplicaLogDirs, and describeLogDirs takes brokers; LogDirDescription, ReplicaInfo and "
    "ReplicaLogDirInfo have the fields under other names",
    issue="none known; since the implementation of KIP-113, and KAFKA-10232 for LogDirDescription",
    builds=VersionRange.parse(">=2.7.0"),
    pollutes=False,
)

CLEANING_STOPS = Deviation(
    kip=113,
    promised="after a move is cancelled or redirected, the replica goes on as before",
    actual="its log is never compacted again, and expired segments stay",
    issue="KAFKA-19458",
    builds=VersionRange.parse("<4.2.0"),
)

EPOCHS_LEFT_BEHIND = Deviation(
    kip=113,
    promised="a moved replica is as before: its followers fetch from it, and join the ISR",
    actual="its new log lacks the leader epochs without records, so a follower with a later one fetches in vain until "
    "the next record is written",
    issue="KAFKA-20961",
    builds=VersionRange.parse(">=2.7.0"),
    pollutes=False,  # the next record gives the log a later epoch
    floods=r"^\[ReplicaFetcher [^]]*\] (Current offset \d+|Reset fetch offset) for partition orders-0 ",
)

LARGE_RECORD_NOT_COPIED = Deviation(
    kip=113,
    promised="a replica with any record that its leader has accepted can be moved or reassigned",
    actual="a record larger than the present segment.bytes is never copied: the move or reassignment never ends",
    issue="KAFKA-17375",
    pollutes=False,  # once segment.bytes is larger again, the move and the reassignment can be requested again
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

FUTURE_REPLICA_IGNORED = Deviation(
    kip=113,
    promised="a future replica that is found without a current one, with all log dirs good, becomes current",
    actual="the broker creates an empty replica, fetches it from the leader, and copies it into the future replica",
    issue="none known; ReplicaManager.becomeLeaderOrFollower creates what is not there",
    modes=(Mode.ZK,),
)

OLD_LOG_DIR_REPORTED = Deviation(
    kip=113,
    promised="a future replica that is found without a current one, with all log dirs good, becomes current",
    actual="at the end of the move the broker reports the old log dir to the controller again; killed within 0.1 s, it "
    "creates an empty replica there, fetches it from the leader, and copies it into the future replica again",
    issue="none found; ReplicaManager.maybeUpdateTopicAssignment does not know of the move",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # without a hold, in one run of three on 3.9.2
)

FUTURE_REPLICA_KNOWN_TO_CONTROLLER = Deviation(
    kip=113,
    promised="a future replica found without a current one, with a bad log dir, is left alone; the replica is offline",
    actual="the controller knows that no bad log dir has the replica: the future replica becomes the replica",
    issue="the later KIP-858; LogManager.recoverAbandonedFutureLogs",
    modes=(Mode.KRAFT,),
    pollutes=False,
)

LONE_FUTURE_REPLICA_EMPTIED = Deviation(
    kip=113,
    promised="a future replica that is found without a current one, with all log dirs good, becomes current",
    actual="the broker overwrites the only future replica with a new, empty replica: acked records are lost",
    issue="none known; as for several replicas, but there is no leader to fetch from",
    modes=(Mode.ZK,),
)

FUTURE_REPLICA_RENAMED_FIRST = Deviation(
    kip=113,
    promised="6. to 7.: first the replica is renamed for deletion, and then its future replica becomes the replica",
    actual="the future replica is renamed first: if the old log dir fails or the broker dies then, the broker finds "
    "two replicas at its next start, and refuses to start until one is deleted by hand",
    issue="none found; LogManager.replaceCurrentWithFutureLog",
)

UNTRIMMED_INDEX_EXPIRES = Deviation(
    kip=113,
    promised="after the recovery that the broker asks for (delete one of two replicas), no acked record is lost",
    actual="the broker marked the other replica's log dir as cleanly shut down, and left its time index untrimmed: "
    "acked records expire, or the follower stops fetching",
    issue="KAFKA-10207 is the same bug at another time",
    builds=VersionRange.parse("<4.0.0"),
    modes=(Mode.ZK,),
    deterministic=False,  # shows only if that log dir was loaded first
)

TRUNCATED_SEGMENTS_STAY = Deviation(
    kip=113,
    promised="segments of a future replica are subject to log truncation in the same way as those of the replica",
    actual="if a move starts again and ends within file.delete.delay.ms, the truncated segments stay on the disk",
    issue="KAFKA-16424",
    builds=VersionRange.parse("<3.8.0"),
    deterministic=False,  # the segments may be deleted before the move ends
)

MOVED_BEFORE_THROTTLE = Deviation(
    kip=113,
    promised="the total rate of moves between log dirs does not exceed the configured throttle",
    actual="a broker that starts goes on with its moves before it has its configuration: a move may end unthrottled",
    issue="none found; BrokerMetadataPublisher.onMetadataUpdate applies partitions before configurations",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # depends on how much is left to copy, and on how soon the configuration comes
    pollutes=False,
)

RETENTION_WAITS = Deviation(
    kip=113,
    promised="segments of a future replica are subject to log retention in the same way as those of the replica",
    actual="expired segments of both stay as long as the move takes",
    issue="none known; ReplicaManager.alterReplicaLogDirs pauses retention along with compaction",
)

GOOD_LOG_DIR_OFFLINE = Deviation(
    kip=113,
    promised="a log dir goes offline only when it fails",
    actual="a move that ends while the flush of a rolled segment is due takes the good log dir offline",
    issue="KAFKA-19571",
    builds=VersionRange.parse(">=3.7.0,<4.0.2 | >=4.1.0,<4.1.2"),
)

GOOD_LOG_DIR_OFFLINE_AT_TIMES = replace(
    GOOD_LOG_DIR_OFFLINE,
    builds=VersionRange.parse("<3.7.0"),
    deterministic=False,  # 3.6.2: one run in three
)

REFUSED_AFTER_SWAP = Deviation(
    kip=113,
    promised="clients go on as a future replica takes the place of the replica",
    actual="records of an open transaction are refused with INVALID_TXN_STATE, and the transaction must be aborted",
    issue="none found; the log has the verification of the transaction (KIP-890), and the future replica's has not",
    builds=VersionRange.parse(">=3.9.2,<3.9.3"),
    modes=(Mode.ZK,),
    deterministic=False,  # the swap must come between the verification of a transaction and its append
    pollutes=False,
)

REFUSED_AFTER_SWAP_IN_KRAFT = replace(
    REFUSED_AFTER_SWAP,
    builds=VersionRange.parse(">=3.9.2,<3.9.3 | >=4.4.0"),  # where it was seen
    modes=(Mode.KRAFT,),
)

FOLLOWER_STOPS = Deviation(
    kip=113,
    promised="a follower whose replica has moved goes on fetching",
    actual="a follower whose log is replaced and then deleted while it appends does not fetch the partition again",
    issue="none found; ReplicaFetcherThread.processPartitionData raises the high watermark of the log that it had "
    "before the append",
    builds=VersionRange.parse(">=3.8.0"),
)

PROMOTED_BEHIND = Deviation(
    kip=113,
    promised="a future replica becomes the replica once it has caught up; acked records stay",
    actual="a broker that starts after the controller has accepted the move promotes the future replica as it is, and "
    "deletes the records that only the replica has",
    issue="none found; LogManager.recoverAbandonedFutureLogs does not compare the ends of the two logs",
    builds=VersionRange.parse(">=3.9.0"),
    modes=(Mode.KRAFT,),
)

CLEANING_STOPS_WITH_DESTINATION = Deviation(
    kip=113,
    promised="if the destination of a move fails, the replica goes on as before",
    actual="its log is never compacted again, and expired segments stay, until the broker restarts",
    issue="none found; KAFKA-19458 is the same for a move that is cancelled, and KAFKA-14824 for one that fails",
    builds=VersionRange.parse(">=2.8.2"),
)

CLEANING_STOPS_WITH_TOPIC = Deviation(
    kip=113,
    promised="a topic that is deleted during a move leaves nothing behind",
    actual="if it is created again, its log is never compacted, and expired segments stay, until the broker restarts",
    issue="none found; LogCleanerManager keeps the pause by the partition's name",
    builds=VersionRange.parse(">=2.8.2"),
)

MOVES_STOP = Deviation(
    kip=113,
    promised="a move between two good log dirs ends, whatever happens to other log dirs",
    actual="if a moving replica becomes leader as its log dir fails, the thread of moves dies, and no move of it ends",
    issue="none found; AbstractFetcherThread.fetchTruncatingPartitions does not catch the error of one partition",
    builds=VersionRange.parse(">=3.9.0"),
    modes=(Mode.KRAFT,),
    failures=r"(?s)^\[ReplicaAlterLogDirsThread-0\]: Error due to .*Partition orders-0 is in an offline log directory",
)
