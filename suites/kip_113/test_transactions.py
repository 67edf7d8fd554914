"""Transactions through a move: what a log knows of its producers moves with it, and so does what is void in it.

A log is more than its records: there is the state of its producers (who wrote what last, and since when a transaction
is open; in snapshots on disk) and the index of aborted transactions. The copy gets both from the records that it is
sent, as a follower does (``UnifiedLog.appendAsFollower``), and they are believed from the swap on: without them a
duplicate would be taken for new, an open transaction for none, and an aborted record for one that may be read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from faults.base import injected
from faults.broker import BrokerStopped
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.metadata import ProducerState
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from harness.workload.producer import Transactions
from suites.checks import check_delivery
from suites.on_disk import check_same_bytes
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import HOLDS_MOVES, begin_move, check_under_way, finish_move, make_leader, moves_held

RECORDS = 200  # of a transaction, 200 KB, three times what a held move may begin with
# The broker's own upper limit: a transaction that is open on purpose is not to be ended by Kafka.
NEVER_MS = 15 * 60 * 1000


@scenario(
    "kip-113/transactions",
    kip=113,
    plan="2. Complete replica data movement: the leader's, under transactions",
    floors=Floors(faults=0),
    overrides=HOLDS_MOVES,
)
def test_transactions(cluster: Cluster, workload: CaseWorkload) -> None:
    """Leaders' replicas move amid transactions: open ones stay open, aborted ones void, also after the next start."""
    orders = cluster.create_topic("orders")
    alike = NewTopic(name="ledger", replicas=3, assignment={0: orders[0].describe().replicas})
    [ledger] = cluster.create_topics(alike)
    world = World(cluster, orders, ledger)
    mover = leader_of(orders[0])
    ends = {topic[0]: other_dir(topic[0].log_dir_on(mover)) for topic in (orders, ledger)}
    with workload.running(orders, record_bytes=1000, transactional=Transactions()) as pair:
        pair.await_count(500)
        before, amid = Stranger(ledger, "before"), Stranger(ledger, "amid")
        kept, void = before.write(commit=True), before.write(commit=False)
        begun = before.write()
        with moves_held(mover):
            for partition, there in ends.items():
                begin_move(partition, there, waits=partition.topic == ledger.name)
                world.moving(partition, there)
            kept_too, void_too = amid.write(commit=True), amid.write(commit=False)
            begun_too = amid.write()
            known = mover.admin.describe_producers(ledger.name, 0)
            for partition, there in ends.items():
                check_under_way(partition, there)
        for partition, there in ends.items():
            finish_move(world, partition, there)
        check_producers_known(ledger[0], known)
        check_reads(ledger, "read_committed", kept)  # what came later waits for the end of what was begun
        ended, ended_too = before.write(commit=True), amid.write(commit=False)
        committed = [*kept, *begun, *kept_too, *ended]
        everything = [*kept, *void, *begun, *kept_too, *void_too, *begun_too, *ended, *ended_too]
        check_reads(ledger, "read_committed", committed)
        check_reads(ledger, "read_uncommitted", everything)
        world.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    with injected(BrokerStopped(mover)):  # in good order: after a crash it would build its indexes anew
        world.broker_gone(mover)
        world.check()
    world.broker_back(mover)
    world.check(timeouts.RECOVERY_S)
    make_leader(cluster, world, mover)  # what is read now is what it found on its disks
    check_reads(ledger, "read_committed", committed)
    check_reads(ledger, "read_uncommitted", everything)
    check_same_bytes(*ledger.partitions)
    check_delivery(workload)


class Stranger:
    """A transactional producer that is none of the run's; each of its values is another one.

    :raises PromiseBroken: it can't go on, in any of what it does
    """

    def __init__(self, topic: Topic, name: str) -> None:
        self._topic, self._name = topic, name
        self._numbers = itertools.count()
        self._open = False
        self._client = Producer(
            {
                "bootstrap.servers": topic.cluster.bootstrap,
                "transactional.id": f"{topic}-{name}",
                "transaction.timeout.ms": NEVER_MS,
                "batch.size": 16384,
                "log_level": 0,  # brokers come and go: that is no news for the terminal
            }
        )
        with self._promised():
            self._client.init_transactions(timeouts.PROGRESS_S)

    def write(self, *, commit: bool | None = None) -> list[bytes]:
        """Records of the open transaction, or of a new one, acked; it is then ended, or left open (None)."""
        values = [f"{self._name} {next(self._numbers)}".ljust(1000).encode() for _ in range(RECORDS)]
        refused: list[KafkaError] = []

        def report(error: KafkaError | None, _: object) -> None:
            if error is not None:
                refused.append(error)

        with self._promised():
            if not self._open:
                self._client.begin_transaction()
            for value in values:
                self._client.produce(self._topic.name, value, partition=0, on_delivery=report)
            left = self._client.flush(timeouts.PROGRESS_S)
            if left or refused:
                raise PromiseBroken(
                    f"{self._name} could not write {left} of {RECORDS} records to {self._topic}; {refused}"
                )
            if commit is not None:
                (self._client.commit_transaction if commit else self._client.abort_transaction)(timeouts.PROGRESS_S)
        self._open = commit is None
        return values

    @contextmanager
    def _promised(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise PromiseBroken(f"the transactional producer {self._name} can't go on: {error}") from error


def check_producers_known(partition: Partition, before: Sequence[ProducerState]) -> None:
    """Its leader knows of producers what it knew before, when the last of them had written; two have begun something.

    :raises PromiseBroken: it doesn't
    """
    leader = partition.leader()
    known = leader.admin.describe_producers(partition.topic, partition.index)
    leader.journal.write("producers.known", partition=str(partition), producers=[str(each) for each in known])
    if known != before or [each.open_since is None for each in known] != [False, False]:
        raise PromiseBroken(f"{leader} knows {list(known)} of the producers of {partition}, and knew {list(before)}")


def check_reads(topic: Topic, isolation: str, values: Sequence[bytes]) -> None:
    """A consumer that begins at the beginning is handed these and no others, in this order.

    :raises PromiseBroken: it is not
    """
    client = Consumer(
        {
            "bootstrap.servers": topic.cluster.bootstrap,
            "group.id": f"{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    read: list[bytes] = []

    def reaches_end() -> bool:
        for message in client.consume(1000, 0.5):
            error = message.error()
            if error is None:
                read.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                return True
        return False

    try:
        client.assign([TopicPartition(topic.name, 0, OFFSET_BEGINNING)])
        what = f"a {isolation} consumer to come to the end of {topic}"
        await_until(reaches_end, timeout_s=timeouts.PROGRESS_S, what=what, failure=PromiseBroken)
    finally:
        client.close()
    topic.cluster.journal.write("consumer.read", topic=topic.name, isolation=isolation, records=len(read))
    if read != list(values):
        raise PromiseBroken(
            f"a {isolation} consumer was handed {len(read)} records of {topic} instead of {len(values)}: "
            f"{len(set(values) - set(read))} missing, {len(set(read) - set(values))} that should not be there"
        )
