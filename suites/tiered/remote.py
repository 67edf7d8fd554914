"""A tiered topic, and the checks that its segments go to remote storage, leave the local logs and stay readable.

Segments have 1 MiB, and the local log keeps one of them, so most records of a topic under load are only remote. A
follower keeps its own local log small: it knows from the leader's metadata what is remote.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.stored_log import batches
from harness.kafka.tiered_storage import METADATA_TOPIC, remote_files
from harness.kafka.versions import VersionRange
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from harness.workload.workload import LoadSettings
from suites.checks import check_verdict
from suites.moves import finish_move
from suites.on_disk import check_same_bytes
from suites.scenario import scenario
from suites.state_check import StateCheck

PRODUCTION_READY = VersionRange.parse(">=3.9")
"""The builds in which tiered storage is no early access any more, and that name the last remote offset (KIP-1005).

Before 3.8 it refuses several log dirs (KAFKA-16399), and retention stops after a move (KAFKA-16711).
"""

# Fresh: Kafka's internal topic of remote segments outlives the topics, and is read from its first record.
tiered_scenario = functools.partial(scenario, builds=PRODUCTION_READY, tiered=True, fresh=True)

SEGMENT = 1 << 20
_CONFIGS = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT), "local.retention.bytes": str(SEGMENT)}

LOAD: LoadSettings = {"record_bytes": 1000, "rate_per_s": 1500}
"""Three segments in two seconds."""

TIERING_S = 60.0
"""Seconds until all records that a topic has are only remote, under :data:`LOAD`: 3 to 5 on idle cores."""

_SUFFIXES = {".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"}
"""The files of each remote segment; one with transactions has ``.txnindex``, too."""


def create_tiered(cluster: Cluster, *, replicas: int = 3) -> Topic:
    """Create the tiered topic ``orders``, once Kafka has created its topic of remote segments."""
    cluster.await_topics({METADATA_TOPIC: 1})
    return cluster.create_topic("orders", replicas=replicas, configs=_CONFIGS)


def place(state: StateCheck, partition: Partition, log_dir: LogDir) -> None:
    """Move the partition's replica into this log dir of its broker, unless it is there."""
    if partition.log_dir_on(log_dir.broker) != log_dir:
        partition.move_to(log_dir)
        finish_move(state, partition, log_dir)


def check_served_by(broker: Broker, partition: Partition, offset: int) -> None:
    """The broker gives a consumer a record that is only remote."""

    def answer() -> str:
        try:
            batches = broker.admin.fetch(partition.topic, partition.index, offset)
        except Refused as refusal:
            return refusal.error
        return "records" if batches and int.from_bytes(batches[:8]) <= offset else "no records"

    await_until(
        answer,
        lambda said: said == "records",
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to serve {partition} from offset {offset} on, which is only remote",
        retry_on=(NoAnswer,),
        watch=broker.node.check_alive,
        failure=PromiseBroken,
    )


def check_tiers_on(partition: Partition, *, timeout_s: float = TIERING_S) -> int:
    """All records that the partition has now are soon in remote storage, and in no local log any more.

    So the leader goes on copying segments, and every broker goes on with local retention. Clients must write meanwhile.
    The first local segment is read from the disk. Returns the end offset that it began with.
    """
    cluster = partition.cluster
    end = _end_offset(partition)

    def left() -> list[str]:
        leader = partition.leader()
        tiered = leader.admin.tiered_offset(partition.topic, partition.index)
        found = [] if tiered is not None and tiered >= end - 1 else [f"{leader} has tiered {tiered}"]
        replicas = [broker for broker in cluster.live_brokers() if broker.id in partition.describe().isr]
        starts = {broker: local_start(partition, broker) for broker in replicas}
        return found + [
            f"the local log on {broker} starts at {start}" for broker, start in starts.items() if start < end
        ]

    await_until(
        left,
        lambda found: not found,
        timeout_s=timeout_s,
        what=f"the records of {partition} before {end} to be only remote",
        retry_on=(NoAnswer, Refused, AwaitTimeout, OSError),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    cluster.journal.write("tiered.only_remote", partition=str(partition), before=end)
    return end


def stays_local(broker: Broker) -> str:
    """A regular expression of the error of :func:`check_tiers_on` if only this broker's local log keeps its records."""
    return rf"last seen: \['the local log on {broker} starts at \d+'\]$"


def _end_offset(partition: Partition) -> int:
    return await_until(
        lambda: partition.leader().admin.end_offset(partition.topic, partition.index),
        lambda end: end > 0,
        timeout_s=timeouts.REQUEST_S,
        what=f"the end offset of {partition}",
        retry_on=(NoAnswer, Refused, AwaitTimeout),
        failure=PromiseBroken,
    )


def local_start(partition: Partition, broker: Broker) -> int:
    """The base offset of the first segment of the replica on this broker's disk.

    :raises FileNotFoundError: it has none
    """
    folder = partition.log_dir_on(broker).replica_dir(partition.topic, partition.index)
    segments = sorted(folder.glob("*.log"))
    if not segments:
        raise FileNotFoundError(f"{folder} has no segment")
    return int(segments[0].stem)


def check_not_copied(partition: Partition, before: int, *, on: Broker) -> None:
    """A new replica has no record that was only remote before it was created: it was not copied from elsewhere.

    :param before: as of :func:`check_tiers_on`: the records before this offset were only remote
    """
    start = local_start(partition, on)
    partition.cluster.journal.write(
        "tiered.rebuilt", partition=str(partition), broker=on.id, start=start, before=before
    )
    if start < before:
        raise PromiseBroken(
            f"{on} has records of {partition} from {start} on, and those before {before} are only remote"
        )


def check_read_from_start(partition: Partition, end: int) -> None:
    """A new consumer reads all records of the partition before this offset, from offset 0 on.

    :param end: as of :func:`check_tiers_on`: the records are only remote
    """
    client = Consumer(
        {
            **partition.cluster.bootstrap.librdkafka,
            "group.id": "tiered",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    offsets: list[int] = []

    def read() -> int:
        for message in client.consume(500, timeout=1.0):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            offset = message.offset()
            assert offset is not None, "a record has an offset"
            offsets.append(offset)
        return len(offsets)

    try:
        client.assign([TopicPartition(partition.topic, partition.index, 0)])
        await_until(
            read,
            lambda count: count >= end,
            timeout_s=timeouts.PROGRESS_S,
            what=f"a new consumer to read the first {end} records of {partition}, which are only remote",
            retry_on=(KafkaException,),
            failure=PromiseBroken,
        )
    finally:
        client.close()
    if offsets != list(range(len(offsets))):
        raise PromiseBroken(f"a new consumer of {partition} read other offsets than 0, 1, 2 …: {_first_gap(offsets)}")
    partition.cluster.journal.write("tiered.read", partition=str(partition), records=len(offsets))


def _first_gap(offsets: Sequence[int]) -> str:
    wrong = next(place for place, offset in enumerate(offsets) if place != offset)
    return f"{offsets[wrong]} in place {wrong}"


def check_tiered_delivery(workload: CaseWorkload, topic: Topic) -> None:
    """As :func:`~suites.checks.check_delivery`, for a tiered topic: no record is lost, local or only remote.

    The drain reads each partition from offset 0. The remote segments have every record, and the replicas are the same
    where their local logs must reach.
    """
    check_verdict(workload)
    for partition in topic.partitions:
        check_same_bytes(partition, start=check_remote_whole(partition))


def check_remote_whole(partition: Partition) -> int:
    """The remote segments have all their files, and all offsets from 0 to the last one that Kafka shows as remote.

    Two leaders may both have copied a segment. Returns the offset after the last one.
    """
    storage = partition.cluster.remote_storage

    def missing() -> tuple[int, str | None]:
        leader = partition.leader()
        tiered = leader.admin.tiered_offset(partition.topic, partition.index)
        if tiered is None:
            return 0, "nothing is tiered"
        return tiered + 1, gap_in(remote_files(storage, partition.topic, partition.index), tiered + 1)

    end, _ = await_until(
        missing,
        lambda found: found[1] is None,
        timeout_s=timeouts.RECOVERY_S,
        what=f"the remote segments of {partition} to be whole",
        retry_on=(NoAnswer, Refused, FileNotFoundError),
        failure=PromiseBroken,
    )
    partition.cluster.journal.write("tiered.whole", partition=str(partition), end=end)
    return end


def gap_in(files: Sequence[Path], end: int) -> str | None:
    """What remote segments lack to have all offsets before this one; None: nothing."""
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in files:
        found[path.stem][path.suffix] = path
    covered = 0
    for name, by_suffix in sorted(found.items()):
        if lacks := sorted(_SUFFIXES - by_suffix.keys()):
            return f"{name} lacks {', '.join(lacks)}"
        for base, last in _extents(by_suffix[".log"]):
            if base > covered:
                return f"{name} goes on at {base}, and the segments before end at {covered}"
            covered = max(covered, base + last + 1)
    return None if covered >= end else f"they end at {covered}, and Kafka says {end}"


def _extents(segment: Path) -> list[tuple[int, int]]:
    return [(base, last) for base, last, _ in batches(segment, segment.stat().st_size)]
