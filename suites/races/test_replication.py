"""Holds a leader's or a follower's thread while the controller changes leaders and ISRs."""

from __future__ import annotations

import functools
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused
from faults.held import Held
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode, VersionRange
from harness.waiting import await_until, let_pass
from suites.background import in_background
from suites.broker_epochs import check_not_in_isr
from suites.checks import MAY_END, check_logged, promised
from suites.deviations import COMMITTED_TRUNCATED, FAILED_REPLICA_IN_ISR
from suites.followers_behind import SHRUNK
from suites.leadership import await_end, await_leader, await_offline, await_out_of_sync, elect, lead
from suites.moves import await_moved
from suites.observations import directories
from suites.observing import observe
from suites.races.test_moves import happens_in_time
from suites.reassignments import await_no_reassignment
from suites.scenario import scenario
from suites.steps import await_checkpoints, write_untracked_records

PATIENT = {"replica.lag.time.max.ms": "30000"}
"""Kafka's default: a follower that is held stays in the ISR."""
IMPATIENT = {"replica.lag.time.max.ms": "2000"}
COMMITTED, TAIL = 100, 10
"""The number of records that all replicas have at first, and of those that only the first leader has."""


@scenario(
    "races/failed-replica-rejoins",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: a replica on a failed log dir stays out of the ISR",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.7.0"),
    judged=False,
    deviations=(FAILED_REPLICA_IN_ISR,),
    holds=True,
)
def test_failed_replica_rejoins(cluster: Cluster) -> None:
    """A leader asks for a follower's return to the ISR as the follower's log dir fails: the controller refuses."""
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, COMMITTED)
    leader, follower = leader_of(orders[0]), follower_of(orders[0])
    log_dir = orders[0].log_dir_on(follower)
    with injected(BrokerPaused(follower)) as pause:
        await_out_of_sync(orders[0], follower)
        write_untracked_records(orders, TAIL)
        rejoins = Held(cluster, leader, "isr-change-sent", about="orders-0", by=pause.undo)
        with injected(rejoins), injected(Chmod000(log_dir)):
            await_offline(orders[0], follower, via=leader)
            rejoins.undo()
            await_checkpoints(orders[0].log_dir_on(leader), 4)
            state = orders[0].describe(leader)
            observe(FAILED_REPLICA_IN_ISR, cluster, deviates=follower.id in state.isr, seen=state)


@scenario(
    "races/stale-answer",
    kip=18,
    plan="ISR: an answer to a follower waits, and records that are committed meanwhile stay",
    issue="KAFKA-18991",
    builds=VersionRange.parse(">=2.7.0"),
    judged=False,
    holds=True,
    overrides=PATIENT,
)
def test_stale_answer(cluster: Cluster) -> None:
    """An answer that makes a follower truncate is delayed. It leads and commits these records meanwhile: they stay."""
    # The answer with the offset where the logs diverge, and no answer that the other broker does not lead yet.
    leader = commit_before_truncation(cluster, "fetch-answered", about=f"orders-0 endOffset={COMMITTED}")
    await_end(leader, COMMITTED + TAIL, failure=PromiseBroken)


@scenario(
    "races/shutting-down",
    kip=112,
    plan="a clean stop: the leader hands its partitions over before it ends, and is in no ISR from then on",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    holds=True,
)
def test_shutting_down(cluster: Cluster) -> None:
    """A leader shuts down, and a broker is slow to hear of the next one: it may not end yet, nor join the ISR again."""
    orders = cluster.create_topic("orders", replicas=3)
    leader = leader_of(orders[0])
    following, slow = cluster.others(leader)
    directories(cluster)  # the first call takes longer than a hold may
    heard = Held(cluster, slow, "metadata-applied", by=leader.node.request_stop)
    with injected(heard):
        await_leader(orders[0], following, lambda id: id not in (None, leader.id), "to have another leader")
        check_not_in_isr(orders[0], leader, via=following)
        early = leader.log.first(MAY_END, since=heard.injected_at)
    leader.stop()
    if early:
        raise PromiseBroken(f"{leader} may end, though {slow} has yet to hear of the next leader: {early}")
    check_logged(leader, MAY_END, heard.injected_at)
    leader.start()
    cluster.await_healthy(failure=PromiseBroken)


@scenario(
    "races/stale-truncation",
    kip=18,
    plan="ISR: a follower is slow to truncate its log, and records that are committed meanwhile stay",
    builds=VersionRange.parse(">=2.7.0"),
    judged=False,
    deviations=(COMMITTED_TRUNCATED,),
    holds=True,
    overrides=PATIENT,
)
def test_stale_truncation(cluster: Cluster) -> None:
    """A follower is slow to truncate its log. It leads and commits these records meanwhile: they stay."""
    leader = commit_before_truncation(cluster, "follower-truncates")
    with promised(cluster, unless=COMMITTED_TRUNCATED, seen=f"to be {COMMITTED + TAIL}; last seen: {COMMITTED}$"):
        await_end(leader, COMMITTED + TAIL, failure=PromiseBroken)


def commit_before_truncation(cluster: Cluster, point: str, *, about: str = "orders-0") -> Broker:
    """Hold a follower at this point, on its way to truncate records, until it has led and committed them.

    It follows again when the hold ends. Then all other brokers are killed before it fetches: it is in the ISR, so it
    leads. Returns this broker.
    """
    orders = cluster.create_topic("orders", replicas=3)
    others = cluster.create_topic("others", partitions=3, replicas=3)
    write_untracked_records(orders, COMMITTED)
    victim, second, third = leader_of(orders[0]), *orders[0].followers()
    # Each fetcher thread that is held has another partition, so that no broker waits for its end.
    for partition, leader in zip(others.partitions, (victim, second, second), strict=True):
        lead(partition, leader)
    of_victim = f"ReplicaFetcherThread-0-{victim.id}"
    behind = [Held(cluster, each, "follower-fetches", of_thread=of_victim) for each in (second, third)]
    with ExitStack() as tail_alone:
        tail_alone.enter_context(injected(*behind))
        write_untracked_records(orders, TAIL, to=victim)
        truncates = Held(
            cluster,
            victim,
            point,
            about=about,
            of_thread=f"ReplicaFetcherThread-0-{second.id}",
            by=lambda: elect(orders[0], second),
        )
        with injected(truncates):
            tail_alone.close()
            elect(orders[0], victim)
            await_end(victim, COMMITTED + TAIL, failure=Inconclusive)
            ordered_at = now()
            elect(orders[0], second)
            # Before the victim follows again, its thread would skip the truncation.
            follows = rf"Added fetcher to broker {second.id} for partitions .*\borders-0 ->"
            check_logged(victim, follows, ordered_at, timeouts.REQUEST_S, failure=Inconclusive)
            fetches = Held(cluster, victim, "follower-fetches", about="orders-0", by=truncates.undo)
            with injected(fetches):  # it has truncated, or not, and cannot fetch again what it has lost
                for broker in (second, third):
                    BrokerKilled(broker).inject()
    await_until(
        lambda: orders[0].describe(victim).leader,
        lambda leader: leader == victim.id,
        timeout_s=timeouts.BROKER_FAILURE_S,
        what=f"{victim} to lead {orders[0]}, since no other broker runs",
        retry_on=(NoAnswer,),
        failure=Inconclusive,
    )
    return victim


@scenario(
    "races/swapped-before-high-watermark",
    kip=113,
    plan="the leader's replica moves as its high watermark is about to rise: clients get the record",
    issue="KAFKA-9263",
    judged=False,
    holds=True,
)
def test_swapped_before_high_watermark(cluster: Cluster) -> None:
    """The leader's replica is swapped as its high watermark is about to rise: the record is acked all the same."""
    orders = cluster.create_topic("orders", replicas=2)
    write_untracked_records(orders, COMMITTED)
    leader = leader_of(orders[0])
    there = other_dir(orders[0].log_dir_on(leader))
    with ThreadPoolExecutor(2) as apart:
        written: list[Future[int]] = []
        rises = Held(
            cluster,
            leader,
            "high-watermark-rises",
            about="orders-0",
            caller="updateFollowerFetchState",
            by=lambda: written.append(apart.submit(write_untracked_records, orders, 1)),
        )
        with injected(rises):
            moving = apart.submit(orders[0].move_to, there)
            happens_in_time(
                (there.path / "orders-0").is_dir
            )  # builds without the bug wait for the thread, also to answer
        await_end(leader, COMMITTED + 1, failure=PromiseBroken)  # before the producer sends the record again
        written[0].result()
        with suppress(NoAnswer):  # the answer waited for the hold, too
            moving.result()
    await_moved(orders[0], there)


@scenario(
    "races/isr-larger-than-replicas",
    kip=18,
    plan="ISR: a leader goes on checking its followers while a reassignment ends",
    issue="KAFKA-9672",
    modes=(Mode.ZK,),
    judged=False,
    holds=True,
    brokers=4,
    overrides=IMPATIENT,
)
def test_isr_larger_than_replicas(cluster: Cluster) -> None:
    """A controller is slow to end a reassignment: the leader goes on checking which followers are in sync."""
    controller = cluster.controller_broker()
    assert controller is not None
    leader, staying, leaving = cluster.others(controller)
    placed = NewTopic(name="orders", assignment={0: [leader.id, staying.id, leaving.id]})
    [orders] = cluster.create_topics(placed)
    write_untracked_records(orders, COMMITTED)
    ends = Held(
        cluster,
        controller,
        "controller-removes-replicas",
        about="orders-0",
        by=lambda: cluster.reassign(orders[0], [leader, staying, controller]),
    )
    since = now()
    with injected(ends):
        let_pass(2.0, since=time.monotonic())  # the leader checks once a second
    await_no_reassignment(cluster)
    if (line := leader.log.first(r"Uncaught exception in scheduled task 'isr-expiration'", since=since)) is not None:
        raise PromiseBroken(f"{leader} has stopped checking its followers: {line.text[:300]}")


CHECKPOINTS = 9  # 4 s: longer than replica.lag.time.max.ms, and the second until the leader looks


@scenario(
    "races/fetching-laggard",
    kip=18,
    plan="ISR: a follower goes on fetching, and is behind for longer than replica.lag.time.max.ms",
    judged=False,
    holds=True,
    overrides=IMPATIENT,
)
def test_fetching_laggard(cluster: Cluster) -> None:
    """A follower fetches again and again from the same offset, behind its leader's end: the leader shrinks the ISR."""
    began = now()
    orders = cluster.create_topic("orders", replicas=2)
    write_untracked_records(orders, COMMITTED)
    leader, follower = leader_of(orders[0]), follower_of(orders[0])
    fetch = functools.partial(
        Admin(leader.new_connection()).fetch_as_replica, orders.name, 0, COMMITTED, replica=follower.id
    )
    with injected(Held(cluster, follower, "follower-fetches", of_thread=f"ReplicaFetcherThread-0-{leader.id}")):
        write_untracked_records(orders, TAIL, to=leader)
        with in_background(fetch, every_s=0.2) as errors:
            await_checkpoints(orders[0].log_dir_on(leader), CHECKPOINTS)
    if errors:
        raise Inconclusive(f"{leader} did not answer a fetch as {follower}: {errors[0]}")
    if leader.log.first(SHRUNK.format(partition=orders[0]), since=began) is None:
        raise PromiseBroken(
            f"{follower} went on fetching {orders[0]} from {COMMITTED} for {CHECKPOINTS} checkpoints of {leader}: it "
            f"ends at {COMMITTED + TAIL}, and did not remove it from the ISR"
        )
