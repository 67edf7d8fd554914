"""All that the suites depend on in a Kafka build: what it is, which cases need it, and what happens without it.

Little of it is a public interface, so a release may move, rename or drop it. A new dependency of a suite, a fault or
the harness needs a row here. It also needs a try in one of the modules beside this one.
"""

from __future__ import annotations

from harness.kafka import mbeans
from harness.kafka.versions import VersionRange
from suites.probe.dependency import (
    CANCELLED,
    COMPARED,
    CONTROLLER_FAILS,
    CORDONS,
    KRAFT,
    METADATA_LOG,
    MOVES,
    REASSIGNED,
    REASSIGNED_BY_REQUEST,
    ZK,
    Dependency,
    config,
    file,
    mbean,
    request,
    tool,
)
from suites.probe.texts import TEXTS

DEPENDENCIES: tuple[Dependency, ...] = (
    # --- start, format, classes ---------------------------------------------------------------------------------------
    Dependency(
        id="start", kind="start", what="a cluster of one broker with three log dirs starts, with jbod's own settings"
    ),
    Dependency(
        id="format-ignore-formatted",
        kind="format",
        what="kafka-storage format refuses a formatted log dir, and formats beside it with --ignore-formatted",
        words=("already formatted.*--ignore-formatted",),
        needed_by=("kip-112/bootstrap-missing", "kip-112/disk-replaced", "kip-113", "schedules"),
        modes=KRAFT,
    ),
    Dependency(
        id="format-release-version",
        kind="format",
        what="kafka-storage format --release-version 4.2-IV1",
        needed_by=("kip-1066/metadata-version",),
        modes=KRAFT,
        builds=CORDONS,
    ),
    Dependency(
        id="rack-aware-selector",
        kind="class",
        what="org.apache.kafka.common.replica.RackAwareReplicaSelector, by which a consumer reads from its rack",
        words=("org.apache.kafka.common.replica.RackAwareReplicaSelector",),
        needed_by=("kip-36/nearest-replica",),
        builds=VersionRange.parse(">=2.4"),
    ),
    Dependency(
        id="admin-client",
        kind="class",
        what="org.apache.kafka.clients.admin.Admin and the results of its methods for log dirs",
        words=("DescribeReplicaLogDirsResult$ReplicaLogDirInfo",),
        needed_by=("kip-113/tools-asked",),
        builds=VersionRange.parse(">=2.4"),
    ),
    Dependency(
        id="java-client",
        kind="class",
        what="Kafka's Java client has Admin.describeLogDirs and LogDirDescription.isCordoned",
        needed_by=("kip-1066/what-users-see",),
        modes=KRAFT,
        builds=CORDONS,
    ),
    Dependency(
        id="exit-hook",
        kind="class",
        what="Exit$Procedure, which keeps Kafka's tools from ending the JVM that they run in",
        needed_by=COMPARED,
        without="each tool runs in a JVM of its own: slower",
    ),
    # --- tools --------------------------------------------------------------------------------------------------------
    tool(
        id="tool-topics-describe",
        what="kafka-topics --describe, alone and with --under-replicated-partitions or --unavailable-partitions",
        needed_by=COMPARED,
        builds=VersionRange.parse(">=2.2"),
    ),
    tool(
        id="tool-topics-create",
        what="kafka-topics --create --partitions --replication-factor",
        words=("--topic", "--zookeeper"),
        needed_by=("kip-36/some-without-rack",),
        builds=VersionRange.parse(">=2.2"),
    ),
    tool(
        id="tool-log-dirs",
        what="kafka-log-dirs --describe --broker-list, alone and with --topic-list",
        words=("--bootstrap-server",),
        needed_by=COMPARED,
    ),
    tool(
        id="tool-configs-describe",
        what="kafka-configs --describe --all --entity-type brokers",
        needed_by=("kip-1066/by-tool", "kip-1066/entries", "kip-1066/static", "kip-1066/what-users-see"),
        builds=VersionRange.parse(">=2.5"),
    ),
    tool(
        id="tool-configs-describe-one",
        what="kafka-configs --describe for one broker: its dynamic configs with their synonyms",
        needed_by=("kip-1066/by-tool",),
        builds=CORDONS,
    ),
    tool(
        id="tool-config-docs",
        what="kafka-config-docs (the class KafkaConfig) prints the type and importance of each broker config",
        needed_by=("kip-1066/what-users-see",),
        builds=CORDONS,
    ),
    tool(
        id="tool-configs-alter",
        what="kafka-configs --alter with --add-config A=[x,y] and --delete-config, for one broker",
        words=(
            "--entity-type",
            "--entity-name",
        ),
        needed_by=("kip-1066/by-tool",),
        builds=CORDONS,
    ),
    tool(
        id="tool-reassign-generate",
        what="kafka-reassign-partitions --generate, alone and with --disable-rack-aware",
        words=(
            "--topics-to-move-json-file",
            "--broker-list",
        ),
        needed_by=("kip-113/tools-across", "kip-36/placement", "kip-36/some-without-rack"),
    ),
    tool(
        id="tool-reassign-execute",
        what="kafka-reassign-partitions --execute with log dirs, --throttle, --replica-alter-log-dirs-throttle, "
        "--timeout; and --verify, until it reports that all is done",
        words=("--reassignment-json-file",),
        needed_by=REASSIGNED,
    ),
    tool(
        id="tool-reassign-cancel",
        what="kafka-reassign-partitions --cancel",
        needed_by=CANCELLED,
        builds=VersionRange.parse(">=2.6"),
    ),
    tool(
        id="tool-cluster",
        what="kafka-cluster unregister, which needs a live broker",
        words=(
            "--bootstrap-server",
            "--id",
        ),
        needed_by=("kip-1066/broker-decommissioned", "kip-36/placement"),
        modes=KRAFT,
    ),
    tool(
        id="tool-features",
        what="kafka-features describe, and upgrade --release-version",
        needed_by=("kip-1066/metadata-version",),
        modes=KRAFT,
        builds=CORDONS,
    ),
    tool(
        id="tool-dump-log",
        what="kafka-dump-log --files, alone and with --print-data-log",
        words=(
            "isControl: true",
            "isvalid: true",
        ),
        needed_by=("control", "kip-113", "schedules"),
        without="jbod explain does not show where a record is, and a producer's new session may look like duplicates",
    ),
    tool(
        id="tool-verifiable",
        what="kafka-verifiable-producer and -consumer",
        without="jbod bench fails; no case does",
    ),
    # --- requests -----------------------------------------------------------------------------------------------------
    request("ApiVersions", 0),
    request("Metadata", 7),
    request("CreateTopics", 1),
    request("DeleteTopics", 1),
    request("DescribeConfigs", 1),
    request("DescribeLogDirs", 0),
    request("DescribeLogDirs", 5, "kip-1066", builds=">=4.3", modes=KRAFT),
    request("ListOffsets", 1),
    request("CreatePartitions", 0, "kip-1066", "kip-36/placement", "schedules"),
    request("DeleteRecords", 0, "control", "kip-113/records-deleted", "known-bugs/records-deleted-amid-move", "logs"),
    request("IncrementalAlterConfigs", 0, *MOVES, builds=">=2.3"),
    request("AlterReplicaLogDirs", 0, "kip-1066", "kip-112/no-fault", "kip-113", "known-bugs", "schedules"),
    request("AlterPartitionReassignments", 0, *REASSIGNED_BY_REQUEST, builds=">=2.4"),
    request("ListPartitionReassignments", 0, *REASSIGNED_BY_REQUEST, builds=">=2.4"),
    request("DescribeProducers", 0, "kip-113/transactions", builds=">=2.8"),
    request("Produce", 3, "kip-112/creation-fails", "kip-112/what-users-see", "logs"),
    request("Fetch", 4, "kip-112/index-unreadable", "kip-112/records-unreadable", "kip-112/what-users-see", "logs"),
    request("OffsetForLeaderEpoch", 3, "logs/leader-epochs"),
    request("InitProducerId", 0, "transactions/sequence-numbers"),
    request("DescribeQuorum", 0, modes=KRAFT),
    # --- MBeans -------------------------------------------------------------------------------------------------------
    mbean(mbeans.OFFLINE_DIRS, *COMPARED),
    mbean(mbeans.DIR_OFFLINE, *COMPARED),
    mbean(mbeans.OFFLINE_REPLICAS, *COMPARED),
    mbean(mbeans.ACTIVE, *COMPARED),
    mbean(mbeans.OFFLINE_PARTITIONS, *COMPARED),
    mbean(mbeans.UNDER_REPLICATED, without="the journal does not have it"),
    mbean(mbeans.BYTES_OUT, "kip-36/nearest-replica"),
    Dependency(
        id="mbean-ConsumerLag",
        kind="mbean",
        what=mbeans.FETCHED,
        needed_by=("kip-112/follower-at-runtime", "kip-112/leader-at-runtime"),
        without="these cases are invalid, since no follower seems to fetch",
        tried=False,  # a cluster of one broker has no fetcher
    ),
    mbean(mbeans.RAFT, *CONTROLLER_FAILS, modes=KRAFT),
    mbean(mbeans.UNASSIGNED, modes=KRAFT),
    mbean(mbeans.UNCLEAN_ELECTIONS, "known-bugs/clean-election-counted", builds=">=3.9"),
    mbean(mbeans.CORDONED_DIRS, "kip-1066", builds=">=4.3", modes=KRAFT),
    mbean(mbeans.DIR_CORDONED, "kip-1066", builds=">=4.3", modes=KRAFT),
    mbean(mbeans.STATE, without="a case waits for an MBean that the build lacks, and does not name it"),
    # --- ZooKeeper and disks ------------------------------------------------------------------------------------------
    Dependency(
        id="znodes",
        kind="znode",
        what="the znodes of brokers, topics, partitions, the controller, and brokers' notifications",
        words=(
            "/brokers/ids",
            "/brokers/ids/…",
            "/brokers/topics",
            "/brokers/topics/…",
            "/config/topics",
            "/controller",
            "/admin/delete_topics",
            "/admin/reassign_partitions",
            "/admin/preferred_replica_election",
            "/isr_change_notification",
            "/log_dir_event_notification",
        ),
        needed_by=COMPARED,
        modes=ZK,
    ),
    file(
        id="file-segments",
        what="a replica's folder in a log dir, topic-partition, with its .log, .index and .timeindex files",
        words=("*.log", "…*/*.log", "*/*/*.log", "*.timeindex"),
        needed_by=COMPARED,
    ),
    file(
        id="file-checkpoints",
        what="recovery-point-offset-checkpoint and replication-offset-checkpoint name a log dir's replicas",
        words=("log-start-offset-checkpoint", "cleaner-offset-checkpoint", "*-checkpoint.tmp"),
        needed_by=("disks", "kip-113", "network", "schedules"),
    ),
    file(
        id="file-meta",
        what="meta.properties in each log dir",
        needed_by=METADATA_LOG,
    ),
    file(
        id="file-made",
        what="partition.metadata in a replica's folder",
        needed_by=("kip-112/killed-while-new", "known-bugs/topic-id-lost"),
        modes=KRAFT,
    ),
    file(
        id="file-future",
        what="a future replica's folder in a log dir, topic-partition.<uuid>-future",
        words=("-future", "….*-future/*.log"),
        needed_by=("kip-113", "known-bugs", "schedules"),
    ),
    file(
        id="file-rare",
        what="the names of stray and deleted folders and files, of snapshots, and of the mark of a clean shutdown",
        words=(
            "-delete",
            "….*-delete",
            "-stray",
            "*.deleted",
            "*.checkpoint",
            "bootstrap.checkpoint",
            ".kafka_cleanshutdown",
        ),
        needed_by=("kip-1066/lasts", "kip-113", "known-bugs/error-on-close", "known-bugs/topic-id-lost", "schedules"),
        without="cases that wait for them are unknown or invalid, and clusters are reused less often",
        tried=False,
    ),
    # --- the metadata log ---------------------------------------------------------------------------------------------
    Dependency(
        id="records-directories",
        kind="metadata record",
        what="kafka-dump-log --cluster-metadata-decoder shows brokers' log dirs and each replica's directory",
        words=(
            "__cluster_metadata-0",
            "*.log",
        ),
        needed_by=METADATA_LOG,
        modes=KRAFT,
    ),
    Dependency(
        id="records-cordons",
        kind="metadata record",
        what="kafka-dump-log --cluster-metadata-decoder shows a broker's cordoned log dirs",
        needed_by=("kip-1066",),
        modes=KRAFT,
        builds=CORDONS,
    ),
    # --- configs ------------------------------------------------------------------------------------------------------
    config(
        id="config-settings",
        what="the settings that jbod gives every broker (harness/cluster/spec.py), as kafka-configs shows them",
        without="Kafka's defaults apply: what a case waits for may come too late",
        builds=VersionRange.parse(">=2.5"),
    ),
    config(
        id="config-connects-soon",
        what="socket.connection.setup.timeout.ms and .max.ms",
        without="in containers, a client waits 10 to 30 s for a node that is gone",
        builds=VersionRange.parse(">=2.7"),
    ),
    config(
        id="config-first-tasks",
        what="log.initial.task.delay.ms",
        needed_by=("kip-113",),
        without="a broker deletes and cleans nothing in its first 30 s: clusters are reused less often",
        builds=VersionRange.parse(">=3.8"),
    ),
    config(
        id="config-move-throttle",
        what="replica.alter.log.dirs.io.max.bytes.per.second can be set at run time, and throttles a move",
        needed_by=("control", "kip-1066/moved-onto", "kip-1066/disk-taken-out", "kip-113", "known-bugs", "schedules"),
    ),
    config(
        id="config-cordoned",
        what="cordoned.log.dirs can be set at run time, and is described as a dynamic config",
        needed_by=("kip-1066",),
        modes=KRAFT,
        builds=CORDONS,
    ),
    *TEXTS,
)
