"""Shows how Kafka copes with power cuts, slow disks, flipped bits and two failures at once (beyond KIP-112).

KIP-112 knows only good and bad log dirs, and promises nothing for a slow disk. The scenarios check what Kafka always
promises, and measure how long clients get no acks or records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from faults.base import Fault, injected
from faults.broker import BrokerKilled, BrokerPaused, BrokerStopped
from faults.file_system import Eio, PowerCut, ReadOnly
from faults.quorum import ControllerKilled
from faults.segment import BitsFlipped, ByteFlipped, IndexByteFlipped
from faults.slow import SLOW_FAULTS, SlowVolume
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.events import BrokersChanged, NodeKilled, NodeStopped, NodeStopping, PartitionChanged
from harness.journal import now
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.measure.floors import Floors
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until, let_pass
from suites.broker_epochs import check_not_in_isr, check_one_process, check_stale_fetch_refused, check_stale_refused
from suites.checks import MAY_END, check_delivery, check_logged, check_lost, check_not_noticed
from suites.followers_behind import injected_ahead
from suites.log_cleaning import SMALL_SEGMENTS
from suites.on_disk import logs_of, segment_files
from suites.scenario import NO_FAULT, each_fault, each_role, scenario
from suites.state_check import StateCheck
from suites.steps import flipped_while_down, log_dirs_failed, make_leader, start_after_healing

SEVERAL = 4  # segments
GZIP = 1
"""The id of the compression type, in the attributes of batches."""
SEEN_LATE = timedelta(seconds=1)
"""A broker may show the watcher a change so much later. Without a handover, it takes a session's time-out."""


@scenario(
    "disks/power-cut",
    kip=112,
    plan="a broker loses what it had not synced",
    volumes="ext4",
    needs=PowerCut.needs,
    kraft={"metadata_apart": False},  # the power cut hits the metadata log, too
)
@each_role
def test_power_cut(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """A broker loses power, and records that it had not synced: it fetches them again, and leads with every record.

    It has several segments by then. It syncs each when it begins the next one, and trusts it after the cut. It trusts
    the segment's indexes, too, and finds the first record by its time.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3, configs=SMALL_SEGMENTS)
    state = StateCheck(cluster, orders)
    victim = role(orders[0])
    with workload.running(orders, record_bytes=1000) as pair:
        await_segments(orders[0].log_dir_on(victim), orders[0], SEVERAL)
        with injected_ahead(orders, PowerCut(victim)) as cut:
            check_lost(cut)
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
        state.broker_back(victim)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    make_leader(cluster, state, victim)
    check_first_found_by_time(orders[0])
    check_delivery(workload)


def check_first_found_by_time(partition: Partition) -> None:
    """By a time before all records, the leader finds the first one."""
    leader, key = partition.leader(), (partition.topic, partition.index)
    await_until(
        lambda: leader.admin.offset_at(*key, 1),
        lambda found: found == 0,
        timeout_s=timeouts.QUESTION_S,
        what=f"{leader} to find offset 0 of {partition} by the time of 1 ms",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )


def await_segments(log_dir: LogDir, partition: Partition, count: int) -> None:
    """Wait until the replica in this log dir has so many segments."""
    folder = log_dir.replica_dir(partition.topic, partition.index)
    await_until(
        lambda: len(segment_files(folder)),
        lambda segments: segments >= count,
        timeout_s=timeouts.PROGRESS_S,
        what=f"{partition} to have {count} segments in {log_dir}",
    )


@scenario(
    "disks/power-cut-everywhere",
    kip=112,
    plan="all brokers lose what they had not synced, of a topic that syncs each write",
    volumes="ext4",
    needs=PowerCut.needs,
    floors=Floors(faults=3, during=0),
)
def test_power_cut_everywhere(cluster: Cluster, workload: CaseWorkload) -> None:
    """All brokers lose power at once, under load: with flush.messages=1 no acked record is lost.

    control/power-cut-everywhere shows that acked records are lost without that setting.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3, configs={"flush.messages": "1"})
    with workload.running(orders) as pair:
        with injected(*map(PowerCut, cluster.brokers)):
            pass
        cluster.await_healthy(failure=PromiseBroken)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "disks/two-dirs-at-once",
    kip=112,
    plan="two of three replicas' log dirs fail",
    volumes="ext4",
    needs=ReadOnly.needs,
)
def test_two_dirs_at_once(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's log dir gets EIO as a follower's becomes read-only: the third replica serves alone."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victims = [leader_of(orders[0]), follower_of(orders[0])]
    first, second = (orders[0].log_dir_on(victim) for victim in victims)
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Eio(first), ReadOnly(second), ahead=orders):
            pair.await_progress(after=now())
            for victim in victims:
                victim.stop()
            state.broker_gone(*victims)
        for victim in victims:
            start_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("disks/slow-log-dir", kip=112, plan="not handled by the KIP: a slow disk", floors=Floors(during=0))
@each_fault("slow", SLOW_FAULTS)
def test_slow_log_dir(cluster: Cluster, workload: CaseWorkload, slow: type[SlowVolume]) -> None:
    """The leader's log dir is slow or stalls, on a topic that syncs each write: the leader stays, nothing is lost."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3, configs={"flush.messages": "1"})
    state = StateCheck(cluster, orders)
    log_dir = orders[0].log_dir_on(leader_of(orders[0]))
    with workload.running(orders) as pair:
        with injected(slow(log_dir)) as fault:
            let_pass(12.0, since=fault.injected_monotonic_s)  # a stalling disk is off, on and off again in that time
            state.disk_slow(log_dir.broker)
            state.check()
        state.disk_fast_again(log_dir.broker)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_not_noticed(fault, log_dir)
    check_delivery(workload)


@scenario("disks/paused-broker", kip=112, plan="a broker that hangs for longer than its session")
@each_role
def test_paused_broker(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """A broker is paused for longer than its session, then resumed: its log is truncated to what the others have.

    While it is paused, clients that do not know the new leader yet still ask it. Leaders compress what they get.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3, configs={"compression.type": "gzip"})
    state = StateCheck(cluster, orders)
    victim = role(orders[0])
    with workload.running(orders) as pair:
        with injected_ahead(orders, BrokerPaused(victim)):
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
        state.broker_back(victim)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_delivery(workload)
    check_compressed(orders[0])


def check_compressed(partition: Partition) -> None:
    """Each batch of each replica is compressed with gzip, though the producer compresses none."""
    for broker, log in logs_of([partition], lambda state: state.replicas)[partition].items():
        if (codecs := log.codecs()) != {GZIP}:
            raise PromiseBroken(
                f"broker {broker} has batches of {partition} with the codecs {codecs}, instead of {GZIP}"
            )


@scenario("disks/rolling-restart", kip=112, plan="every broker once, one after another")
@each_fault("end", (BrokerStopped, BrokerKilled))
def test_rolling_restart(cluster: Cluster, workload: CaseWorkload, end: type[Fault]) -> None:
    """Every broker is stopped or killed, and started, one after another, once all are in sync: nothing is lost.

    The producer compresses its batches, so leaders set the offsets in compressed ones.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    with workload.running(orders, producer_config={"compression.type": "lz4"}) as pair:
        for broker in cluster.brokers:
            with injected_ahead(orders, end(broker)):
                state.broker_gone(broker)
                state.check()
                pair.await_progress(after=now())
            state.broker_back(broker)
            state.check(timeouts.RECOVERY_S)
    check_delivery(workload)


@scenario("disks/leader-stopped", kip=112, plan="a clean stop: the leader hands its partitions over before it ends")
def test_leader_stopped(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader is stopped under load: it ends in time, and others lead its partitions by then.

    A topic that is created while it is down has all its replicas on the other brokers. In KRaft it is in no ISR while
    it is down. Controller and leaders refuse the process before its restart, and other requests that are out of date.
    """
    orders = cluster.create_topic("orders", partitions=3, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    led = [partition for partition in orders.partitions if leader_of(partition) == victim]
    with workload.running(orders) as pair:
        with injected(BrokerStopped(victim)):
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
            check_handed_over(victim, led)
            if cluster.spec.mode is Mode.KRAFT:
                check_fenced_first(victim)
                check_not_in_isr(orders[0], victim)
            state.add_topic(cluster.create_topic("refunds", partitions=6, replicas=2, failure=PromiseBroken))
            state.check()
        state.broker_back(victim)
        state.check(timeouts.RECOVERY_S)
        if cluster.spec.mode is Mode.KRAFT:
            check_not_in_isr(orders[0], victim, process=-2)
            check_one_process(cluster, victim)
            check_stale_refused(orders[0], victim)
            check_stale_fetch_refused(orders[0], victim)
            state.check()
        pair.await_progress(after=now())
    check_delivery(workload)


def check_handed_over(broker: Broker, led: Sequence[Partition]) -> None:
    """A broker that was stopped ended by itself, and the watcher saw other leaders of its partitions by then."""
    node, journal = broker.node.spec.name, broker.journal
    asked_at = max(event.at for event in journal.of(NodeStopping) if event.node == node)
    ended_at = max(event.at for event in journal.of(NodeStopped) if event.node == node)
    if any(event.node == node and event.at > asked_at for event in journal.of(NodeKilled)):
        raise PromiseBroken(f"{broker} did not end within {timeouts.STOP_S:.0f} s of SIGTERM")
    for partition in led:
        seen_at = min(
            event.at
            for event in journal.of(PartitionChanged)
            if event.key == (partition.topic, partition.index) and event.leader not in (None, broker.id)
            if event.at > asked_at
        )
        if seen_at > ended_at + SEEN_LATE:
            raise PromiseBroken(
                f"{broker} ended at {ended_at.isoformat()}, and another broker led {partition} only at "
                f"{seen_at.isoformat()}: it did not hand it over before"
            )


def check_fenced_first(broker: Broker) -> None:
    """KRaft: the controller fenced a broker before it let the broker end, so the watcher saw that the others know."""
    node, journal = broker.node.spec.name, broker.journal
    asked_at = max(event.at for event in journal.of(NodeStopping) if event.node == node)
    granted = check_logged(broker, MAY_END, asked_at)
    gone = (event.at for event in journal.of(BrokersChanged) if event.at > asked_at and broker.id not in event.brokers)
    if (gone_at := min(gone, default=now())) > granted.at + SEEN_LATE:
        raise PromiseBroken(
            f"the controller let {broker} end at {granted.at.isoformat()}, and it was still in the metadata of the "
            f"other brokers until {gone_at.isoformat()}: it was not fenced before"
        )


@scenario(
    "disks/broker-and-controller-killed",
    kip=112,
    plan="a broker and the controller die at once",
    kraft={"controllers": 3},
    floors=Floors(faults=2),
)
def test_broker_and_controller_killed(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader and the active controller are killed at once: the next controller elects another leader.

    The next controller never hears from the dead broker. It must end the broker's session by itself.
    """
    orders = cluster.create_topic("orders", partitions=3, replicas=3)
    state = StateCheck(cluster, orders)
    controller = cluster.controller_broker()
    victim = next(leader for partition in orders.partitions if (leader := leader_of(partition)) != controller)
    dead = [victim] if controller is None else [victim, controller]
    unseats = ControllerKilled(cluster, cluster.others(victim)[0]) if controller is None else BrokerKilled(controller)
    with workload.running(orders) as pair:
        with injected(BrokerKilled(victim), unseats):
            state.broker_gone(*dead)
            state.check(timeouts.RECOVERY_S)
            pair.await_progress(after=now())
        for broker in dead:
            state.broker_back(broker)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "disks/index-byte-flipped",
    kip=112,
    plan="a replica's offset index rots while its broker is down",
    floors=NO_FAULT,
)
def test_index_byte_flipped(cluster: Cluster, workload: CaseWorkload) -> None:
    """A killed broker starts with a flipped bit in an offset index: it rebuilds the index and serves every record.

    It rebuilds the indexes of what it had not flushed. A broker that was stopped cleanly loads an index as it is: no
    build since 2.1 checks it (``LogSegment.sanityCheck``, KAFKA-7283), and no KIP promises that.
    """
    flip_while_down(cluster, workload, lambda log_dir: IndexByteFlipped(log_dir, "orders", 0))


@scenario(
    "disks/byte-flipped",
    kip=112,
    plan="a replica's segment rots while its broker is down, where it was not flushed",
    floors=NO_FAULT,
)
def test_byte_flipped(cluster: Cluster, workload: CaseWorkload, case: Case) -> None:
    """A killed broker starts with a flipped bit in a record: it truncates its log there, and fetches the rest again.

    It checks what it had not flushed. Flushed records are served as they are (control/flipped-byte).
    """
    text = f"jbod {case.run_token} p0 60 ".encode()
    flip_while_down(cluster, workload, lambda log_dir: ByteFlipped(log_dir, "orders", 0, text=text))


def flip_while_down(cluster: Cluster, workload: CaseWorkload, make_fault: Callable[[LogDir], BitsFlipped]) -> None:
    """Bits flip in the leader's files while it is down: it rebuilds them, and as the leader has every record."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    flip = make_fault(log_dir)
    with workload.running(orders) as pair:
        pair.await_count(1000)
        # Late records may be in few batches, and an index has an entry for some batches only.
        await_until(flip.is_possible, timeout_s=timeouts.PROGRESS_S, what=f"something to flip in {flip.target}")
    with flipped_while_down(state, flip):
        make_leader(cluster, state, victim)
    check_delivery(workload)
