"""The known deviations of Kafka builds from their KIPs, as data. :mod:`suites.observing` compares checks with them."""

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

GROWTH_NOT_CANCELLED = Deviation(
    kip=455,
    promised="kafka-reassign-partitions --cancel cancels a reassignment that is under way",
    actual="it says that one which only adds replicas is not active, and removes its throttle: the replicas are added",
    issue="https://github.com/apache/kafka/pull/20003",
    builds=VersionRange.parse(">=3.7.0,<4.0.1"),
    pollutes=False,
)

CANCELLED_REPLICA_STAYS = Deviation(
    kip=455,
    promised="when a reassignment is cancelled, the replicas that it was adding are deleted",
    actual="their broker ignores the request to delete them, since it has no new leader epoch: they stay",
    issue="KAFKA-13972",
    builds=VersionRange.parse(">=2.6.0,<3.4.1"),
    modes=(Mode.ZK,),
)

STAYING_REPLICA_AWAITED = Deviation(
    kip=455,
    promised="a reassignment ends when the replicas that it adds are in the ISR, unless the ISR would shrink",
    actual="it never ends while a replica that stays is not in the ISR, for example on a failed log dir",
    issue="KAFKA-19975",
    builds=VersionRange.parse(">=3.8.0,<4.3.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,  # it ends when the replica is back
)

LEADER_REMOVED = Deviation(
    kip=455,
    promised="a partition with a replica in the ISR on a good log dir has a leader",
    actual="if a reassignment replaces another one that was adding the leader, the partition has no leader",
    issue="KAFKA-14808",
    builds=VersionRange.parse(">=2.4.0"),
    modes=(Mode.ZK,),
    pollutes=False,  # a leader is elected when the reassignment is cancelled
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

UNTRIMMED_MARKED_CLEAN = Deviation(
    kip=112,
    promised="a broker marks a log dir as cleanly shut down only if it closed all logs there without an error",
    actual="it logs that it could not trim an index, and still marks the log dir: the next start does not recover the "
    "log, and acked records may expire at once",
    issue="KAFKA-19221",
    builds=VersionRange.parse("<4.0.1"),
    pollutes=False,
)

REVERSED_NEVER_ENDS = Deviation(
    kip=455,
    promised="a reassignment that is under way can be replaced by another one, also by one to the old replicas",
    actual="a replica that was being added and shall be removed again stays, and the reassignment never ends",
    issue="none known; fixed by KAFKA-15665, and back since KAFKA-19975",
    builds=VersionRange.parse("<3.8.0 | >=4.3.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

CLEAN_ELECTIONS_COUNTED = Deviation(
    kip=18,
    promised="UncleanLeaderElectionsPerSec counts the leaders that were not elected from the ISR",
    actual="it also counts a leader that joins the ISR as it becomes leader, at the end of a reassignment",
    issue="KAFKA-19212",
    builds=VersionRange.parse(">=3.9.0,<4.1.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

EPOCHS_LEFT_BEHIND = Deviation(
    kip=113,
    promised="a moved replica is as before: its followers fetch from it, and join the ISR",
    actual="its new log lacks the leader epochs without records, so a follower with a later one fetches in vain until "
    "the next record is written",
    issue="KAFKA-20961",
    builds=VersionRange.parse(">=2.7.0"),
    pollutes=False,  # the next record gives the log a later epoch
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
    issue="none found; ReplicaAlterLogDirsThread.addPartitions forgets how far the move was",
    builds=VersionRange.parse(">=3.7.0,<4.0.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # in one run of three
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

FAILED_SWAP_REPORTED_ONLINE = Deviation(
    kip=112,
    promised="offline_replicas names every replica on a failed log dir",
    actual="it misses a replica whose swap with its future replica failed: that is offline on its broker and not in "
    "the ISR, and metadata shows it as online",
    issue="none found; since KAFKA-16297 its broker reports the old log dir, and then the new one again",
    builds=VersionRange.parse(">=3.7.1"),
    modes=(Mode.KRAFT,),
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

GOOD_LOG_DIR_OFFLINE_AMID_SWAP = Deviation(
    kip=112,
    promised="a broker whose log dirs are all good starts",
    actual="if its good log dir went offline between the two renames of a swap, the broker finds two replicas, and "
    "refuses to start until one is deleted by hand",
    issue="KAFKA-19571, with the order of the renames in LogManager.replaceCurrentWithFutureLog",
    builds=VersionRange.parse(">=3.9.2,<4.0.0"),
    deterministic=False,
)

CREATION_ERROR_UNREPORTED = Deviation(
    kip=112,
    promised="a new replica whose creation meets an IOException is offline, and another broker leads",
    actual="the broker reports its failed log dir, and the controller does not know that the replica was to be there: "
    "the replica counts as online, and a partition that the broker was to lead has no working leader",
    issue="none found; ReplicaManager.applyLocalLeadersDelta skips the replica, whose directory stays UNASSIGNED",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

READ_ERROR_IGNORED = Deviation(
    kip=112,
    promised="a log dir is marked as bad once an access (read or write) meets an IOException",
    actual="a read of records that meets an IOException gets UNKNOWN_SERVER_ERROR, and the log dir stays online until "
    "a write fails",
    issue="none found; RecordBatchIterator.makeNext turns the IOException into a KafkaException",
    pollutes=False,
)

OFFLINE_REPLICAS_UNCOUNTED = Deviation(
    kip=112,
    promised="OfflineReplicaCount is the number of replicas on failed log dirs",
    actual="it is always 0: it compares with the class of HostedPartition.Offline's companion, which no entry has",
    issue="since the fix of KAFKA-16157",
    builds=VersionRange.parse(">=3.7.0,<4.3.0"),
    pollutes=False,
)

OFFLINE_REPLICAS_COUNTED_LATE = Deviation(
    kip=112,
    promised="OfflineReplicaCount is the number of replicas on failed log dirs",
    actual="a broker that finds a log dir bad at its start counts a replica there only once its partition has changed",
    issue="none known; Partition.createLogInAssignedDirectoryId skips the first update, and nothing marks the replica",
    builds=VersionRange.parse(">=4.3.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # the partition may change before the check looks
    pollutes=False,
)

OFFLINE_REPLICAS_NOT_PRINTED = Deviation(
    kip=112,
    promised="kafka-topics shows the offline replicas of a partition",
    actual="it does not; only the Metadata response has them",
    issue="none known",
    pollutes=False,
)

OFFLINE_LOG_DIRS_ELSEWHERE = Deviation(
    kip=112,
    promised="OfflineLogDirectoryCount is kafka.server:type=LogManager",
    actual="it is kafka.log:type=LogManager",
    issue="none known; since the implementation of KIP-112",
    pollutes=False,
)

UNWRITABLE_ENDS_START = Deviation(
    kip=112,
    promised="a broker that finds a log dir bad at its start goes on with its good ones",
    actual="if the log dir is readable and not writable, the broker ends, since it cannot write meta.properties",
    issue="KAFKA-13773",
    builds=VersionRange.parse(">=2.4.0,<3.2.1"),
    modes=(Mode.ZK,),
    deterministic=False,  # shows only with a fault that leaves the log dir readable
)

UNFORMATTED_REFUSED = Deviation(
    kip=112,
    promised="a broker that is restarted with an empty disk recreates its replicas there",
    actual="in KRaft it refuses to start until kafka-storage format --ignore-formatted was run",
    issue="intended, since KRaft (KIP-631)",
    modes=(Mode.KRAFT,),
    pollutes=False,
)

STRAY_KEPT = Deviation(
    kip=112,
    promised="topic deletion deletes all replicas, an offline one as soon as its broker is back with it",
    actual="the broker finds the replica at its start, renames it to -stray, and keeps it",
    issue='none: intended ("Move aside stray partitions, don\'t delete them", LogManager)',
    modes=(Mode.KRAFT,),
)

STORAGE_ERROR_TO_CLIENTS = Deviation(
    kip=112,
    promised="a broker answers requests for a replica on its failed log dir with UNKNOWN_TOPIC_OR_PARTITION",
    actual="it answers with KAFKA_STORAGE_ERROR, on which clients also refresh their metadata",
    issue="none known; ReplicaManager.getPartitionOrError, since the implementation of KIP-112",
    pollutes=False,
)

REPLICA_CREATED_TWICE = Deviation(
    kip=112,
    promised="a replica that is on no good log dir is created on one only if it is new, or if no log dir is bad",
    actual="a broker that is killed before it reports the log dir (0.1 to 0.5 s) creates the replica on a good log "
    "dir, too, and refuses to start when the bad one is back",
    issue="none known; what the fix of KAFKA-16234 left: a replica without a directory counts as new",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
)

FAILED_REPLICA_PREFERRED = Deviation(
    kip=392,
    promised="a consumer is served by another replica where the nearest is offline",
    actual="the leader still names the nearest replica, which is not in the ISR, and the consumer reads nothing",
    issue="KAFKA-14372",
    builds=VersionRange.parse(">=2.4.0,<3.3.2"),
)

LEADERS_OVER_RACKS = Deviation(
    kip=36,
    promised="if the partitions are a multiple of the brokers, all brokers have as many leaders and as many replicas",
    actual="KRaft's placer spreads leaders evenly over racks, so brokers of one rack may have more leaders or replicas",
    issue="KAFKA-15354",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

RACKS_PASSED_OVER = Deviation(
    kip=36,
    promised="leaders are chosen from the racks round-robin; if the partitions are a multiple of the brokers, all "
    "brokers have as many leaders and as many replicas",
    actual="from the second round on, KRaft's placer skips racks of one broker, which it considers used up, so brokers "
    "may have more leaders or replicas than others",
    issue="none found: StripedReplicaPlacer.BrokerList keeps its position when a new epoch begins",
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
    promised="if the partitions are a multiple of the brokers, all brokers have as many leaders",
    actual="the placement of partitions that are added to a topic does not continue where its first ones ended",
    issue="KAFKA-17198, in KRaft KAFKA-14437",
    builds=VersionRange.parse(">=1.0.0"),
    pollutes=False,
)

EMPTY_RACKS = Deviation(
    kip=36,
    promised="a broker whose rack is not available has none in metadata",
    actual="with an inter.broker.protocol.version below 0.10.0, every broker has an empty rack in metadata",
    issue='none found; the generated UpdateMetadataRequest has "" where its version has no rack',
    builds=VersionRange.parse(">=2.4.0,<4.0.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

TOOL_REFUSES_WITHOUT_REASON = Deviation(
    kip=36,
    promised="if some brokers have no rack, kafka-topics refuses, and says so",
    actual="it reports an unexpected server error, and only the broker's log has the reason",
    issue="none found",
    builds=VersionRange.parse(">=3.0.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

AUTOMATIC_REFUSED = Deviation(
    kip=36,
    promised="if some brokers have no rack, automatic topic creation ignores racks",
    actual="the topics are not created",
    issue="none found; since AutoTopicCreationManager assigns as CreateTopics does (KIP-590)",
    builds=VersionRange.parse(">=2.8.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

NO_RACK_IS_A_RACK = Deviation(
    kip=36,
    promised="if some brokers have no rack, kafka-topics refuses, and says so",
    actual="it creates the topic, and treats the brokers without a rack as one more rack",
    issue="none found; StripedReplicaPlacer treats an empty rack as a rack",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

AUTOMATIC_BY_RACKS = Deviation(
    kip=36,
    promised="if some brokers have no rack, automatic topic creation ignores racks",
    actual="replicas are spread over the racks, and the brokers without a rack count as one more rack",
    issue="none found; StripedReplicaPlacer treats an empty rack as a rack",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

NO_OPTION_TO_IGNORE_RACKS = Deviation(
    kip=36,
    promised="if some brokers have no rack, an option of kafka-topics makes it ignore racks",
    actual="it has no such option: the broker places the replicas",
    issue="KAFKA-12596, which removed --zookeeper",
    builds=VersionRange.parse(">=3.0.0"),
    pollutes=False,
)

# --- KIP-1066 ---------------------------------------------------------------------------------------------------------

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
