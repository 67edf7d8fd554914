"""The known deviations of Kafka builds from KIP-112, as data."""

from __future__ import annotations

from dataclasses import replace

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

UNTRIMMED_MARKED_CLEAN = Deviation(
    kip=112,
    promised="a broker marks a log dir as cleanly shut down only if it closed all logs there without an error",
    actual="it logs that it could not trim an index, and still marks the log dir: the next start does not recover the "
    "log, and acked records may expire at once",
    issue="KAFKA-19221",
    builds=VersionRange.parse("<4.0.1"),
    pollutes=False,
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

COORDINATOR_RELOADED = Deviation(
    kip=112,
    promised="transactions go on when a log dir with a replica of the transaction coordinator's log fails",
    actual="the coordinator loads its log again, though it led before, and a transaction under way then never ends",
    issue="KAFKA-15468",
    builds=VersionRange.parse(">=3.7.0,<3.8.0"),
    modes=(Mode.KRAFT,),
    deterministic=False,  # only if a record of the coordinator's log waited for followers as it was loaded
)

MARKER_SKIPPED = Deviation(
    kip=112,
    promised="a transaction whose partition has no leader ends there once it has one again",
    actual="the coordinator takes the partition for deleted and completes the transaction without a marker there: "
    "read_committed consumers get nothing more of the partition",
    issue="KAFKA-20734",
    builds=VersionRange.parse(">=4.3.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
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

CREATION_ERROR_STOPS_OTHERS = Deviation(
    kip=112,
    promised="if the creation of a replica meets an IOException, its log dir is marked as bad, and new replicas are "
    "created on the good ones",
    actual="if the replica has its folder already, the error ends the whole LeaderAndIsr request, and the broker does "
    "not create the other new replicas of it",
    issue="KAFKA-13468",
    modes=(Mode.ZK,),
    pollutes=False,  # a restart creates them
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

DELETED_CONFIGS_BACK = Deviation(
    kip=112,
    promised="a topic that is deleted and created again has none of its old configs",
    actual="a broker that starts and reads the configs and the deletion together has them for the new topic",
    issue="none known of Kafka, AutoMQ/automq#3556; ConfigurationsDelta.replay overlooks configs in its own delta",
    builds=VersionRange.parse(">=3.8.0"),
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

FAILED_REPLICA_IN_ISR = Deviation(
    kip=112,
    promised="a replica on a failed log dir stays out of the ISR",
    actual="a leader that was about to ask for the replica takes it back into the ISR though the controller knows of "
    "the failure, and it stays there while no producer writes",
    issue="none found; ReplicationControlManager.ineligibleReplicasForIsr checks the broker, not the log dir",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    metadata=r"broker \d+ in the ISR of \S+, though its log dir \S+ is not online: "
    r'PARTITION_CHANGE_RECORD (?!.*"(?:leader|replicas|directories)":)',
)

FAILED_REPLICA_IN_ISR_AT_TIMES = replace(FAILED_REPLICA_IN_ISR, deterministic=False)
"""Where no hold makes the leader ask at the wrong time."""

OFFSET_SHOWN_LATE = Deviation(
    kip=112,
    promised="a new group coordinator has every offset whose commit was acknowledged",
    actual="it shows an older offset until the next write to its log, if its high watermark rose as it became active",
    issue="none found; CoordinatorRuntime registers its listener without a look at the present high watermark",
    builds=VersionRange.parse(">=4.0.0"),
    modes=(Mode.KRAFT,),
)

COORDINATOR_STAYS = Deviation(
    kip=112,
    promised="a broker whose replica of __consumer_offsets is offline is no coordinator of groups any more",
    actual="it goes on, and answers with the offsets that it knew when its log dir failed",
    issue="none found; KafkaApis.handleLeaderAndIsrRequest resigns only for partitions that become followers",
    builds=VersionRange.parse(">=2.8.2"),
    modes=(Mode.ZK,),
)

FAILED_REPLICA_BLOCKS = Deviation(
    kip=112,
    promised="a partition can be reassigned to a broker with a failed log dir: the replica is created on a good one",
    actual="if the broker had a replica of it on the failed log dir when that failed, it creates none, and the "
    "reassignment does not end",
    issue="none found; ReplicaManager.stopPartitions removes online partitions only",
    builds=VersionRange.parse(">=2.8.2"),
    pollutes=False,
)

DELETED_TOPIC_HIDES_FAILURE = Deviation(
    kip=112,
    promised="a broker reports a failed log dir to the controller, which elects other leaders",
    actual="if a topic without an ISR was deleted that had a replica there, each active controller resigns over the "
    "report, until the broker exits",
    issue="none found; ReplicationControlManager.replay(RemoveTopicRecord) skips directories where the ISR is empty",
    builds=VersionRange.parse(">=4.3.0"),
    modes=(Mode.KRAFT,),
    failures=r"(?s)^Encountered quorum controller fault: processBrokerHeartbeat: .*"
    r"Topic ID \S+ existed in isrMembers, but not in the topics map",
)

SECOND_FAILURE_RESTARTS_TIMEOUT = Deviation(
    kip=112,
    promised="a broker that cannot report a failed log dir for log.dir.failure.timeout.ms shuts down (KIP-858)",
    actual="the failure of a second log dir restarts the time-out of the first",
    issue="none found; BrokerLifecycleManager.propagateDirectoryFailure schedules each under the same tag",
    builds=VersionRange.parse(">=3.8.0"),
    modes=(Mode.KRAFT,),
)

WAITING_REQUEST_UNANSWERED = Deviation(
    kip=112,
    promised="the leader's log dir fails, and clients get an error at once",
    actual="a request that waits for followers is answered only at its time-out, though another broker leads",
    issue="none found; ReplicaManager.handleLogDirFailure does not complete the requests in the purgatory",
)

MARKER_WAITS = Deviation(
    kip=112,
    promised="a committed transaction can be read as soon as another broker leads",
    actual="if its marker waited for followers as the leader's log dir failed, the new leader gets it only after the "
    "broker's request.timeout.ms",
    issue="none found; ReplicaManager.handleLogDirFailure does not complete the requests in the purgatory",
)

ENDS_AS_LOGS_LOAD = Deviation(
    kip=112,
    promised="a log dir that meets an error as its broker starts goes offline, and the broker goes on with the others",
    actual="if it fails after the broker has first accessed it, and before the broker has loaded its logs, the broker "
    "ends",
    issue="none found; LogCleanerManager's constructor lets the error of a new cleaner checkpoint pass",
)

LED_ON_FAILED_LOG_DIR = Deviation(
    kip=112,
    promised="a partition has no leader on a log dir that has failed",
    actual="if one heartbeat of a broker reports the log dir and asks to be unfenced, partitions without a leader get "
    "one there, until the broker restarts",
    issue="none found; ReplicationControlManager.processBrokerHeartbeat unfences a broker before it takes log dirs "
    "offline, and neither sees the other's records",
    builds=VersionRange.parse(">=3.8.0"),
    modes=(Mode.KRAFT,),
    metadata=r"broker \d+ as leader of \S+, though its log dir \S+ is not online: ",
)

MIN_ISR_CHANGE_ENDS_ELECTIONS = Deviation(
    kip=112,
    promised="a partition without a leader is led by its last leader again, once that is back (KIP-966)",
    actual="if min.insync.replicas of the topic or of the cluster is set meanwhile, no replica can be elected: the "
    "partition stays without a leader, with all replicas on good log dirs, until an unclean election",
    issue="none found; ClearElrRecord also clears the last known leader",
    builds=VersionRange.parse(">=4.1.0"),
    modes=(Mode.KRAFT,),
)

CLEARED_ELR_STOPS_REGISTRATION = Deviation(
    kip=112,
    promised="a broker that starts is active again",
    actual="if min.insync.replicas was set while the broker was an eligible leader replica, and the topic was deleted, "
    "the controller fails at each registration of the broker and gives up its leadership; the broker ends",
    issue="none found; ReplicationControlManager.removeTopicElrs does not update brokersToElrs",
    builds=VersionRange.parse(">=4.1.0"),
    modes=(Mode.KRAFT,),
    failures=r"Topic ID \S+ existed in isrMembers, but not in the topics map",
)

CORRECTED_LOG_DIR_NOT_LED = Deviation(
    kip=112,
    promised="a replica on a good log dir can lead",
    actual="if the controller had it in an offline log dir, and its broker corrects that, nothing elects a leader: the "
    "partition stays without one, with its only replica on a good log dir",
    issue="none found; ReplicationControlManager.LeaderAcceptor asks for the earlier log dir of the replica",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    metadata=r"without a leader, though broker \d+ could lead: "
    r'PARTITION_CHANGE_RECORD (?!.*"(?:leader|replicas|isr)":).*"directories":',
)

REMOTE_READS_NEED_FIRST_DIR = Deviation(
    kip=112,
    promised="a broker serves the replicas in its good log dirs, whatever happens to another one",
    actual="if its first log dir fails, the broker answers UNKNOWN_SERVER_ERROR to reads of records that are only "
    "remote (KIP-405), since its cache of remote indexes is there",
    issue="none found; createRemoteLogManager of BrokerServer and KafkaServer names the first of log.dirs",
    builds=VersionRange.parse(">=3.9.0"),
    pollutes=False,
)

TIERED_START_NEEDS_FIRST_DIR = Deviation(
    kip=112,
    promised="a broker that finds a log dir bad at its start goes on with its good ones",
    actual="with tiered storage (KIP-405), the broker ends if the first log dir is bad, since it cannot create its "
    "cache of remote indexes there",
    issue="none found; RemoteIndexCache.init",
    builds=VersionRange.parse(">=3.9.0"),
    pollutes=False,
)
