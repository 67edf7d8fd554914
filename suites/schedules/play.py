"""Plays a schedule on a cluster under load.

A step is passed over if it would take the last in-sync replica of a partition, since no KIP protects against that. It
is also passed over if it has nothing to act on, such as a held move. Faults stay in force until a later step heals one.
Held moves stay held until a later step releases one. So both overlap. At the end everything is healed, and all moves
end. After each step :class:`suites.state_check.StateCheck` compares all sources.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from faults.base import Fault, injected
from faults.file_system import PowerCut
from faults.log_dir import LogDirFault
from faults.quorum import ControllerKilled
from faults.segment import IndexByteFlipped
from faults.slow import SlowVolume
from faults.targets import other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.holds import Hold, Who
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, BuildLacks, PromiseBroken
from harness.journal import now
from harness.kafka.versions import Mode
from harness.runner.deviation import Expectation
from harness.workload.pair import Pair
from suites.checks import check_noticed
from suites.deviations import STAYING_REPLICA_AWAITED
from suites.followers_behind import ahead_of_followers
from suites.moves import MOVES_FREE, MOVES_HELD, await_begun, finish_move
from suites.observing import expectation_of
from suites.reassignments import reassign_by_request
from suites.schedules.schedule import BROKER_WAYS, CUT_WAYS, LOG_DIR_WAYS, SLOW_WAYS, Schedule, Step
from suites.state_check import StateCheck
from suites.steps import flipped_while_down, restart_after_healing, write_untracked_records

_HELD_S = 1.0
"""How long a thread is held: less than any session or time-out."""


class PassedOver(Exception):
    """A step may not be done now; the message says why."""


@dataclass(frozen=True, kw_only=True)
class _Outage:
    """A fault in force."""

    broker: Broker
    fault: Fault


@dataclass(frozen=True, kw_only=True)
class _Move:
    """A held move of a replica into another log dir of its broker."""

    partition: Partition
    there: LogDir

    @property
    def broker(self) -> Broker:
        """The broker whose replica moves."""
        return self.there.broker


class Player:
    """Does steps, one at a time; a :class:`Step` names one of the public methods.

    :param topic: the topic of the load
    :param offsets: the topic of the group coordinator's log
    :param compacted: a topic whose log must go on being cleaned; its replica may move, too
    :param spread: a topic whose partitions have replicas on some brokers only
    :ivar begun: how many steps were tried
    :ivar done: how many steps were done and not passed over
    :ivar deleted: the names of the topics that steps have deleted
    """

    def __init__(
        self,
        cluster: Cluster,
        state: StateCheck,
        topic: Topic,
        offsets: Topic,
        compacted: Topic,
        spread: Topic,
        pair: Pair,
    ) -> None:
        self.begun = self.done = 0
        self._cluster = cluster
        self._state = state
        self._topic = topic
        self._offsets = offsets
        self._compacted = compacted[0]
        self._spread = spread
        self._pair = pair
        self._outages: list[_Outage] = []
        self._moves: list[_Move] = []
        self._passing: list[Topic] = []
        self.deleted: list[str] = []
        self._numbers = itertools.count()

    @contextmanager
    def playing(self) -> Iterator[None]:
        """At the end of the block, undo all faults that are in force, also after an error."""
        try:
            yield
        finally:
            for outage in reversed(self._outages):
                outage.fault.undo()

    def play(self, schedule: Schedule) -> None:
        """Do the steps until enough are done, then heal everything and end all moves."""
        for number, step in enumerate(schedule.steps):
            if self.done == schedule.enough:
                break
            self.begun += 1
            try:
                self._cluster.journal.write("step.begun", number=number, step=str(step))
                with self._held(step):
                    getattr(self, step.do)(step)
                self._pair.await_progress(after=now())
            except PassedOver as reason:
                self._cluster.journal.write("step.passed_over", number=number, step=str(step), reason=str(reason))
            else:
                self.done += 1
                self._cluster.journal.write("step.done", number=number, step=str(step))
        # Brokers first: a broker with a failed log dir may be the only one in an ISR, and must not be restarted before.
        for outage in sorted(self._outages, key=lambda outage: isinstance(outage.fault, LogDirFault)):
            self._heal(outage)
        for move in [*self._moves]:
            self._finish(move)
        after = now()
        self._pair.await_progress(after=after)
        self._pair.await_readers(after=after)

    @contextmanager
    def _held(self, step: Step) -> Iterator[None]:
        """Inside the block, a thread of a broker is held if it comes to the step's point; does nothing without one."""
        hold = self._hold_of(step)
        if hold is None:
            yield
            return
        hold.begin()
        try:
            yield
        finally:
            with suppress(AwaitTimeout):  # its broker was killed in this moment
                hold.release()

    def _hold_of(self, step: Step) -> Hold | None:
        """The hold of a step; None if the build does not have its point: the steps are the same on all builds."""
        if step.hold is None:
            return None
        brokers = self._state.live_brokers()
        node = brokers[step.pick % len(brokers)].node
        try:
            return Hold(self._cluster, node, step.hold, Who(), for_s=_HELD_S)
        except BuildLacks:
            return None

    # --- faults that stay in force ----------------------------------------------------------------------------------

    def fail_log_dir(self, step: Step) -> None:
        """On the broker of the step's role, the log dir of a partition fails."""
        partition = self._partition(step)
        broker = self._unbroken_broker(step)
        log_dir = self._state.log_dir_of(partition, broker)
        self._require_in_sync_elsewhere(broker, log_dir)
        if any(move.partition is self._compacted and move.there == log_dir for move in self._moves):
            raise PassedOver(f"{self._compacted} moves there, and would not be cleaned again (finding 46)")
        assert step.fault is not None
        fault = LOG_DIR_WAYS[step.fault](log_dir)
        if fault.undo_unmounts and self._is_moving(broker):
            # A replica that lost its records is empty, and its move is done at once.
            raise PassedOver(f"a replica that moves on {broker} may not have been synced")
        self._outages.append(_Outage(broker=broker, fault=fault))
        with ahead_of_followers(self._topic, fault):
            fault.inject()
        self._state.log_dir_failed(log_dir)
        self._state.check()
        check_noticed(fault)

    def end_broker(self, step: Step) -> None:
        """The broker of the step's role is killed, stopped or paused, or loses power."""
        broker = self._unbroken_broker(step)
        self._require_in_sync_elsewhere(broker)
        assert step.fault is not None
        fault = BROKER_WAYS[step.fault](broker)
        if isinstance(fault, PowerCut) and self._is_moving(broker):
            raise PassedOver(f"a replica that moves on {broker} may not have been synced")
        self._outages.append(_Outage(broker=broker, fault=fault))
        with ahead_of_followers(self._topic, fault):
            fault.inject()
        self._state.broker_gone(broker)
        self._state.check(timeouts.RECOVERY_S)

    def heal(self, step: Step) -> None:
        """Undo one of the faults in force, and restart its broker if that was a log dir.

        It is the picked one, or the next one that may be healed now.
        """
        reason = PassedOver("nothing is broken")
        first = step.pick % max(1, len(self._outages))
        for outage in (*self._outages[first:], *self._outages[:first]):
            try:
                if isinstance(outage.fault, LogDirFault):
                    self._require_in_sync_elsewhere(outage.broker)
            except PassedOver as why_not:
                reason = why_not
            else:
                self._heal(outage)
                return
        raise reason

    def _heal(self, outage: _Outage) -> None:
        outage.fault.undo()
        self._outages.remove(outage)
        if isinstance(outage.fault, LogDirFault):
            restart_after_healing(self._state, outage.broker)
            return
        if isinstance(outage.fault, SlowVolume):
            self._state.disk_fast_again(outage.broker)
        else:
            self._state.broker_back(outage.broker)
        self._state.check(timeouts.RECOVERY_S)

    def slow_disk(self, step: Step) -> None:
        """The disk of a partition's log dir becomes slow or stalls; for KIP-112 the log dir is still a good one."""
        partition, broker = self._partition(step), self._unbroken_broker(step)
        assert step.fault is not None
        fault = SLOW_WAYS[step.fault](self._state.log_dir_of(partition, broker))
        self._outages.append(_Outage(broker=broker, fault=fault))
        fault.inject()
        self._state.disk_slow(broker)
        self._state.check()

    # --- faults that are undone in the step -------------------------------------------------------------------------

    def restart(self, step: Step) -> None:
        """Restart the broker of the step's role."""
        broker = self._unbroken_broker(step)
        self._require_in_sync_elsewhere(broker)
        restart_after_healing(self._state, broker)

    def lose_controller(self, step: Step) -> None:
        """Kill the controller, and start it once another one has taken over; in ZooKeeper mode it is a broker."""
        broker = self._cluster.controller_broker()
        if broker is None:
            witness = self._state.live_brokers()[0]
            with injected(ControllerKilled(self._cluster, witness)):
                self._pair.await_progress(after=now())
            self._state.check(timeouts.RECOVERY_S)
            return
        self._require_unbroken(broker)
        self._require_in_sync_elsewhere(broker)
        with injected(BROKER_WAYS["broker_killed"](broker)):
            self._state.broker_gone(broker)
            self._state.check(timeouts.RECOVERY_S)
            self._pair.await_progress(after=now())
        self._state.broker_back(broker)
        self._state.check(timeouts.RECOVERY_S)

    def cut_off(self, step: Step) -> None:
        """Cut off the broker of the step's role from brokers and controllers, then undo the cut.

        Clients reach it all the while, and may go on asking it. The judge checks what it acks.
        """
        broker = self._unbroken_broker(step)
        self._require_in_sync_elsewhere(broker)
        others = [each.node for each in self._state.live_brokers() if each != broker]
        assert step.fault is not None
        cut = CUT_WAYS[step.fault](broker, [*self._cluster.quorum_nodes, *others])
        cut.may_hold_up_clients = True
        with injected(cut):
            self._state.broker_cut_off(broker)
            self._state.check(timeouts.RECOVERY_S)
        self._state.broker_back(broker)
        self._state.check(timeouts.RECOVERY_S)

    def rot(self, step: Step) -> None:
        """Kill a broker and flip a bit in an offset index of it; the broker rebuilds the index at its start.

        A broker that was stopped cleanly has flushed the index, and believes it. So does each broker with the index of
        a rolled segment; the log of this topic has one segment.
        """
        broker = self._unbroken_broker(step)
        on_it = [
            partition
            for partition in self._spread.partitions
            if broker.id in self._state.expected(partition.topic, partition.index).replicas
        ]
        if not on_it:
            raise PassedOver(f"{broker} has no replica of {self._spread}")
        partition = on_it[step.pick % len(on_it)]
        self._require_in_sync_elsewhere(broker)
        flip = IndexByteFlipped(self._state.log_dir_of(partition, broker), partition.topic, partition.index)
        if not flip.is_possible():
            raise PassedOver(f"the index of {partition} on {broker} has too few entries")
        with flipped_while_down(self._state, flip):
            self._pair.await_progress(after=now())

    # --- what operators do ------------------------------------------------------------------------------------------

    def move(self, step: Step) -> None:
        """Move a replica into its broker's other log dir."""
        partition, broker = self._partition(step), self._unbroken_broker(step)
        if self._is_moving(broker):
            raise PassedOver(f"moves of {broker} are held")
        log_dir = other_dir(self._state.log_dir_of(partition, broker))
        partition.move_to(log_dir)
        finish_move(self._state, partition, log_dir)
        self._state.check()

    def begin_move(self, step: Step) -> None:
        """Begin to move a replica into its broker's other log dir, and hold the move.

        It is a replica of the load's topic, or of the compacted one.
        """
        broker = self._unbroken_broker(step)
        may_move = (*self._topic.partitions, self._compacted)
        partition = may_move[step.pick % len(may_move)]
        if self._is_moving(broker):
            raise PassedOver(f"another replica of {broker} is moving")
        there = other_dir(self._state.log_dir_of(partition, broker))
        broker.configure(MOVES_HELD)
        partition.move_to(there)
        await_begun(partition, there)
        future = broker.find_replica(partition.topic, partition.index, is_future=True)
        if future is None or future[1].offset_lag <= 0:
            broker.configure(MOVES_FREE)
            finish_move(self._state, partition, there)
            self._state.check()
            raise PassedOver(f"{partition} has too few records for its move to be held")
        self._moves.append(_Move(partition=partition, there=there))
        self._state.move_held(partition, there)
        self._state.check()

    def end_move(self, step: Step) -> None:
        """Release one of the held moves, and wait until it ends."""
        if not self._moves:
            raise PassedOver("no move is held")
        move = self._moves[step.pick % len(self._moves)]
        self._require_unbroken(move.broker)
        self._finish(move)

    def _finish(self, move: _Move) -> None:
        move.broker.configure(MOVES_FREE)
        finish_move(self._state, move.partition, move.there)
        self._moves.remove(move)
        self._state.check()

    def reassign(self, step: Step) -> None:
        """Reassign a partition to its replicas in another order, and so to another preferred leader."""
        partition = self._partition(step)
        expected = self._state.expected(partition.topic, partition.index)
        if expected.leader is None:
            raise PassedOver(f"{partition} has no leader")
        first, *rest = [self._cluster.broker(id) for id in expected.replicas]
        reassign_by_request(self._state, partition, *rest, first)

    def replace(self, step: Step) -> None:
        """Reassign a replica to a broker that has none of the partition, and perhaps a failed log dir."""
        partition = self._spread[step.pick % len(self._spread)]
        expected = self._state.expected(partition.topic, partition.index)
        if expected.leader is None:
            raise PassedOver(f"{partition} has no leader")
        staying = [id for id in expected.replicas if (id == expected.leader) != (step.role == "leader")]
        if expected.offline - {*staying}:
            raise PassedOver(f"the log of the offline replica of {partition} that leaves would stay")
        if expected.offline and self._waits_for_offline_replicas():
            raise PassedOver(f"{partition} has an offline replica, so its reassignment would not end on this build")
        coming = next((each for each in self._state.live_brokers() if each.id not in expected.replicas), None)
        if coming is None:
            raise PassedOver(f"the broker without a replica of {partition} is dead")
        if any(outage.broker == coming and isinstance(outage.fault, SlowVolume) for outage in self._outages):
            raise PassedOver(f"a disk of {coming} is slow")
        reassign_by_request(self._state, partition, *map(self._cluster.broker, staying), coming)

    def _waits_for_offline_replicas(self) -> bool:
        """Whether a reassignment waits for all replicas that it keeps: in ZooKeeper mode, and with KAFKA-19975."""
        known = expectation_of(STAYING_REPLICA_AWAITED, self._cluster)
        return self._cluster.spec.mode is Mode.ZK or known is not Expectation.NONE

    def create_topic(self, step: Step) -> None:
        """Create a topic, which must be placed on good log dirs."""
        if self._state.dead:
            raise PassedOver(f"too few brokers for three replicas: {sorted(self._state.dead)} are dead")
        name = f"passing-{next(self._numbers)}"
        topic = self._cluster.create_topic(name, partitions=2, replicas=3, failure=PromiseBroken)
        write_untracked_records(topic, 100)
        self._passing.append(topic)
        self._state.add_topic(topic)
        self._state.check()

    def delete_topic(self, step: Step) -> None:
        """Delete the oldest topic that a step has created."""
        if not self._passing:
            raise PassedOver("there is no topic to delete")
        topic = self._passing[0]
        if any(self._state.expected(topic.name, partition.index).offline for partition in topic.partitions):
            raise PassedOver(f"{topic} has offline replicas")
        self._cluster.delete_topics(topic)
        self._passing.remove(topic)
        self.deleted.append(topic.name)
        self._state.remove_topic(topic)
        self._state.check()

    def quiet(self, step: Step) -> None:
        """Do nothing but wait for load."""
        self._pair.await_progress(after=now(), records=1000)

    # --- the target of a step ---------------------------------------------------------------------------------------

    def _partition(self, step: Step) -> Partition:
        if step.role == "coordinator":
            return self._offsets[0]
        return self._topic[step.pick % len(self._topic)]

    def _unbroken_broker(self, step: Step) -> Broker:
        """The broker of the step's role, which must have no fault in force."""
        partition = self._partition(step)
        expected = self._state.expected(partition.topic, partition.index)
        followers = [id for id in expected.replicas if id != expected.leader and id not in expected.offline]
        by_role = {"leader": expected.leader, "follower": followers[step.pick % len(followers)] if followers else None}
        controller = self._cluster.controller_broker() if step.role == "controller" else None
        id = controller.id if controller else by_role.get(step.role, expected.leader)
        if id is None:
            raise PassedOver(f"{partition} has no {step.role}")
        broker = self._cluster.broker(id)
        self._require_unbroken(broker)
        return broker

    def _is_moving(self, broker: Broker) -> bool:
        return any(move.broker == broker for move in self._moves)

    def _require_unbroken(self, broker: Broker) -> None:
        for outage in self._outages:
            if outage.broker == broker:
                raise PassedOver(f"{outage.fault} is in force")

    def _require_in_sync_elsewhere(self, broker: Broker, log_dir: LogDir | None = None) -> None:
        """Every partition that has a replica on the broker, or on this log dir of it, must have another in-sync one.

        Replicas on brokers with slow disks do not count, since they may fall behind.

        :raises PassedOver: a partition has none
        """
        there = None if log_dir is None else self._state.replicas_in(log_dir)
        going = {broker.id} | {outage.broker.id for outage in self._outages if isinstance(outage.fault, SlowVolume)}
        for key, expected in self._state.partitions.items():
            if (there is None or key in there) and not (expected.isr or frozenset()) - going:
                raise PassedOver(f"{key[0]}-{key[1]} has no other in-sync replica than {broker}'s")
