"""Shows that no log dir goes offline without a fault (KIP-112, "Metrics"), in a minute of daily operations.

Topics are created and deleted, segments roll, are flushed and deleted, replicas move between log dirs, and brokers
restart: all at once and under load. Kafka has mistaken renamed, deleted or closed files for a failed disk. Examples are
KAFKA-15391 (topic deletion), KAFKA-15572 (a roll during a move) and KAFKA-19571 (a flush after a move closed the log).
"""

from __future__ import annotations

import collections
import itertools
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from confluent_kafka import Producer

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Deviation, Expectation
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.background import in_background
from suites.checks import check_delivery, check_ends, log_dir_stops, no_log_dir_fails, refuses_to_start
from suites.deviations import (
    GOOD_LOG_DIR_OFFLINE,
    GOOD_LOG_DIR_OFFLINE_AMID_SWAP,
    GOOD_LOG_DIR_OFFLINE_AT_TIMES,
)
from suites.observing import expectation_of, observe
from suites.on_disk import check_no_replica_twice
from suites.scenario import NO_FAULT, scenario
from suites.steps import ALL_DIRS_FAILED, FOUND_TWICE, delete_by_hand

GOOD_DIR_OFFLINE = (GOOD_LOG_DIR_OFFLINE, GOOD_LOG_DIR_OFFLINE_AT_TIMES)
RESTARTS, MAX_RESTARTS = 3, 9
"""Broker restarts: every broker once, in about a minute; at most nine, until enough has happened."""
ROLLS = {"segment.ms": "500", "segment.bytes": "1048576"}  # 4.0 and later allow no smaller bytes (KIP-1030)
EXPIRES = {"retention.ms": "1000", "file.delete.delay.ms": "100"}
MINIMUM_UNMOVED = {"topics deleted": 12, "segments rolled": 200}
MINIMUM = MINIMUM_UNMOVED | {"moves ended": 30}
"""The least that must have happened in the minute; less is inconclusive."""
FREQUENT_RETENTION = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}
LOGGED = {"moves ended": "successfully replaced with the future replica", "segments rolled": "Rolled new log segment"}
"""The log lines that show how often these happened. A move may be cancelled by the next one, so only its end counts."""


@scenario(
    "kip-112/no-fault",
    kip=112,
    plan="OfflineLogDirectoryCount stays 0 where no log dir fails",
    floors=NO_FAULT,
    deviations=(*GOOD_DIR_OFFLINE, GOOD_LOG_DIR_OFFLINE_AMID_SWAP),
    overrides=FREQUENT_RETENTION,
)
def test_no_fault(cluster: Cluster, workload: CaseWorkload, case: Case) -> None:
    """Topic deletions, rolls, moves and restarts race under load: no log dir goes offline, and nothing is lost.

    Builds with KAFKA-19571 must, or may, show it. Their brokers are then restarted, and nothing may be lost either.
    """
    known = next((each for each in GOOD_DIR_OFFLINE if expectation_of(each, cluster) is not Expectation.NONE), None)
    operate_for_a_minute(cluster, workload, case, known=known, least=MINIMUM)


@scenario(
    "kip-112/no-fault-unmoved",
    kip=112,
    plan="OfflineLogDirectoryCount stays 0 where no log dir fails, and nothing is moved",
    modes=(Mode.ZK,),
    floors=NO_FAULT,
    overrides=FREQUENT_RETENTION,
)
def test_no_fault_unmoved(cluster: Cluster, workload: CaseWorkload, case: Case) -> None:
    """Topic deletions, rolls and restarts race under load, without moves: no log dir goes offline, on any build.

    All builds with ZooKeeper have KAFKA-19571, which needs a move. With moves, it would hide other bugs.
    """
    operate_for_a_minute(cluster, workload, case, known=None, least=MINIMUM_UNMOVED)


def operate_for_a_minute(
    cluster: Cluster, workload: CaseWorkload, case: Case, *, known: Deviation | None, least: Mapping[str, int]
) -> None:
    """Run daily operations until everything in ``least`` has happened and each broker was restarted.

    :param known: the deviation of a build that must, or may, take good log dirs offline; the minute is longer then
    """
    orders = cluster.create_topic("orders", partitions=3, replicas=3, configs=ROLLS)
    for broker in cluster.brokers if known else ():
        broker.node.expect_end()  # it ends once its second log dir is offline
    with workload.running(orders, record_bytes=1000) as pair:
        with (
            no_log_dir_fails(cluster, expected=known) as offline,
            daily_operations(cluster, orders, random.Random(case.id.seed), moves="moves ended" in least) as done,
        ):
            for broker in itertools.islice(itertools.cycle(cluster.brokers), MAX_RESTARTS):
                await_in_sync(cluster, orders, pair, records=1000, or_else=offline)
                enough = (
                    known is None
                    and done["brokers restarted"] >= RESTARTS
                    and not missing_activity(cluster, done, least)
                )
                if offline or enough:
                    break
                restart(broker, may_end=known is not None)
                done["brokers restarted"] += 1
            # Check it here: at the end of the block, a build that was only too slow to deviate would count as mended.
            if not offline and (missing := missing_activity(cluster, done, least)):
                raise Inconclusive(f"too little happened to show anything: {missing}, at least {dict(least)} wanted")
        if offline:
            pair.stop()  # moves that go on under load would take the next log dir offline
            for broker in cluster.brokers:
                if not broker.is_alive:  # all its log dirs went offline
                    check_ends(broker, exit_code=1, saying=ALL_DIRS_FAILED)
                restart_with_good_log_dirs(cluster, broker)
        await_settled(cluster, only=orders if offline else None)
    check_no_replica_twice(orders)
    check_delivery(workload)


def restart(broker: Broker, *, may_end: bool) -> None:
    """Restart a broker in a controlled way; with ``may_end`` it may end by itself afterwards."""
    broker.restart()
    if may_end:
        broker.node.expect_end()


def restart_with_good_log_dirs(cluster: Cluster, broker: Broker) -> None:
    """Restart a broker whose good log dir went offline, and wait until it joins.

    If that happened during a swap, the broker finds a replica twice. The one in that log dir is deleted by hand, as the
    broker's error asks for.

    :raises PromiseBroken: it refuses to start on a build without this deviation, or for replicas in other log dirs
    """
    went_offline = {Path(stop.path) for stop in log_dir_stops(broker, broker.started_at)}
    broker.restart()
    while line := refuses_to_start(broker, saying=FOUND_TWICE):
        twice = re.search(FOUND_TWICE, line.text)
        left = [Path(folder) for folder in (twice.groups() if twice else ()) if Path(folder).parent in went_offline]
        if len(left) != 1:
            raise PromiseBroken(f"{broker} refuses to start: {line.text[:500]}")
        observe(GOOD_LOG_DIR_OFFLINE_AMID_SWAP, cluster, deviates=True, seen=line.text[:500])
        delete_by_hand(broker, left[0])
        broker.start()


@contextmanager
def daily_operations(
    cluster: Cluster, orders: Topic, chance: random.Random, *, moves: bool
) -> Iterator[collections.Counter[str]]:
    """Inside the block, threads create and delete topics and move replicas; yields the counts of what was done."""
    done = collections.Counter[str]()
    current: collections.deque[str] = collections.deque(maxlen=1)
    numbers = itertools.count()

    def create_and_delete_a_topic() -> None:
        name = f"passing-{next(numbers)}"
        new = NewTopic(name=name, partitions=3, replicas=2, configs=ROLLS | EXPIRES)
        ask_any_broker(cluster, lambda admin: admin.create_topics([new]))
        done["topics created"] += 1
        current.append(name)
        write(cluster, name, seconds=1.0)
        cluster.journal.write("topic.deleted", topic=name)  # before any broker may take its replica for a stray one
        ask_any_broker(cluster, lambda admin: admin.delete_topics([name]))
        done["topics deleted"] += 1

    def move_a_replica() -> None:
        broker = chance.choice(cluster.live_brokers())
        topic, partition = chance.choice([orders.name, *current]), chance.randrange(3)
        broker.admin.alter_replica_log_dir(topic, partition, str(chance.choice(broker.log_dirs).path))
        done["moves begun"] += 1

    def undisturbed(step: Callable[[], None]) -> None:
        with suppress(Refused, NoAnswer):  # a broker is down, a topic is gone, a move is under way
            step()

    steps = (partial(undisturbed, step) for step in (create_and_delete_a_topic, *((move_a_replica,) if moves else ())))
    errors: Sequence[Exception] = ()
    try:
        with in_background(*steps, every_s=0.05) as errors:
            yield done
    finally:
        cluster.journal.write("everyday.ended", done=dict(done), errors=list(map(repr, errors)))
    if errors:
        raise errors[0]


def missing_activity(cluster: Cluster, done: collections.Counter[str], least: Mapping[str, int]) -> dict[str, int]:
    """Everything in ``least`` that has not happened often enough, with how often it did."""
    lines = [line.text for broker in cluster.brokers for line in broker.log.lines()]
    happened = done + collections.Counter({what: sum(said in line for line in lines) for what, said in LOGGED.items()})
    return {what: happened[what] for what, times in least.items() if happened[what] < times}


def ask_any_broker(cluster: Cluster, ask: Callable[[Admin], None]) -> None:
    """Ask brokers in turn until one accepts: in ZooKeeper mode only the controller does.

    :raises Refused: none accepts; the error of the last one
    :raises NoAnswer: none answers
    """
    refusal: Refused | NoAnswer = NoAnswer("no broker is alive")
    for broker in cluster.live_brokers():
        try:
            return ask(broker.admin)
        except (Refused, NoAnswer) as error:
            refusal = error
    raise refusal


def write(cluster: Cluster, topic: str, *, seconds: float) -> None:
    """Write records that nothing checks, so that segments roll."""
    client = Producer({**cluster.bootstrap.librdkafka, "acks": "1", "message.timeout.ms": 3000, "log_level": 0})
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        client.produce(topic, bytes(1000))
        client.poll(0.01)
    client.flush(1.0)


def await_in_sync(cluster: Cluster, topic: Topic, pair: Pair, *, records: int, or_else: Collection[str]) -> None:
    """Wait until so many more records have got through, and all live brokers see all replicas of the topic in sync.

    :param or_else: stop waiting once this is not empty
    """
    first = pair.progress

    def lagging() -> list[str]:
        seen = [s for b in cluster.live_brokers() for s in b.admin.describe_cluster(topics=(topic.name,)).partitions]
        through = pair.progress.fewest_since(first)
        waiting = [f"{through} of {records} records acked and read"] if through < records else []
        return waiting + [str(state) for state in seen if state.leader is None or state.under_replicated]

    def check() -> None:
        cluster.check_nodes()
        pair.check()

    await_until(
        lagging,
        lambda found: bool(or_else) or not found,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{topic} to be in sync, and {records} more records of it to be acked and read",
        retry_on=(NoAnswer,),
        watch=check,
        failure=PromiseBroken,
    )


def await_settled(cluster: Cluster, *, only: Topic | None) -> None:
    """Wait until the cluster is healthy and no replica is moving.

    :param only: the only topic whose moves count; None: all. After log dirs went offline, other moves must not count: a
        topic that was deleted meanwhile leaves its future replica in such a log dir. A restarted broker with ZooKeeper
        loads that as a move that never ends
    """
    cluster.await_healthy(failure=PromiseBroken)
    await_until(
        lambda: [
            f"{r.topic}-{r.partition} on {b}"
            for b in cluster.brokers
            for d in b.describe_log_dirs()
            for r in d.replicas
            if r.is_future and (only is None or r.topic == only.name)
        ],
        lambda moving: not moving,
        timeout_s=timeouts.RECOVERY_S,
        what="all moves between log dirs to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
