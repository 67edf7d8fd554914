"""The expected state of a cluster: the broker, log dir and state of every replica.

It is taken once from a healthy cluster. Each event that a scenario causes then changes it, by the rules that the KIPs
promise. After each step :mod:`suites.state_check` compares all sources with it.

The rules for an event that takes replicas away (KIP-18 "Handling disk failures", KIP-112 "5. User queries replicas
state"):

* The assignment (``replicas``, in order) does not change.
* ``offline_replicas`` has the replicas on failed log dirs and those on dead brokers.
* The replicas that went offline leave the ISR. If none is left, the partition has no leader. Kafka then keeps a last
  member in the ISR; no KIP promises which, so the ISR is not compared.
* A leader that is still in the ISR stays. Otherwise the first replica of the assignment that is in the ISR leads.
* A partition without a leader is led again by the last member of its ISR, once that is back.
* A partition without a replica on what failed keeps its leader and its leader epoch.
* If a leader must stay, it leads all the while, also if followers fail. The cluster's watcher asks some twenty times a
  second and must not see another leader.
* A replica is created on, or moved to, neither a failed log dir nor a cordoned one (KIP-1066). Replicas that a cordoned
  log dir already has are untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import ClusterState, PartitionState
from harness.kafka.security import Bootstrap
from harness.kafka.tool_answers import DescribedPartition, Key
from harness.kafka.versions import Mode

Answer = TypeVar("Answer")
ReplicaKey = tuple[str, int, int]
"""Topic, partition, broker id."""


@dataclass(frozen=True, kw_only=True)
class ExpectedPartition:
    """What one partition should look like; ``isr`` is None where it has no leader, and any ISR will do."""

    replicas: tuple[int, ...]
    leader: int | None
    isr: frozenset[int] | None
    offline: frozenset[int]

    def disagreement(self, seen: PartitionState | DescribedPartition) -> str | None:
        """The differences in words, or None. Kafka's tools do not show offline replicas, so these are not compared."""
        wanted: list[tuple[str, object, object]] = [
            ("replicas", self.replicas, seen.replicas),
            ("leader", self.leader, seen.leader),
        ]
        if isinstance(seen, PartitionState):
            wanted.append(("offline_replicas", set(self.offline), set(seen.offline_replicas)))
        if self.isr is not None:
            wanted.append(("isr", set(self.isr), set(seen.isr)))
        return ", ".join(f"{what} {was} instead of {should}" for what, should, was in wanted if was != should) or None


@dataclass(frozen=True, kw_only=True)
class Leadership:
    """The leader of a partition and its leader epoch, when all sources last agreed or when the topic was added."""

    leader: int
    epoch: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class InSync:
    """The ISR of a partition, when all sources last agreed."""

    isr: frozenset[int]
    epoch: int
    at: datetime


class ExpectedState:
    """Where every replica should be, and in which state. A scenario reports each event that it causes.

    :ivar partitions: what each known partition should look like
    :ivar leader_epochs: the leader epoch of each partition that no event has touched since all sources last agreed
    :ivar failed: the log dirs that have failed
    :ivar cordoned: the log dirs whose cordon is in force: the controller knows of it
    :ivar dead: the ids of the brokers that do not run, are paused for long, or are cut off
    :ivar updated_since_start: for the id of each broker that was started with a failed log dir, the partitions whose
        leader or ISR has changed since all sources agreed that it is back
    :ivar slow: the ids of the brokers that have a slow disk
    """

    def __init__(self, cluster: Cluster, *topics: Topic) -> None:
        self.cluster = cluster
        self.partitions: dict[Key, ExpectedPartition] = {}
        self.leader_epochs: dict[Key, int] = {}
        self._led: dict[Key, Leadership] = {}

        self.failed: set[LogDir] = set()
        self.cordoned: frozenset[LogDir] = frozenset()
        self.dead: set[int] = set()
        self._disturbed_at: dict[int, datetime] = {}
        self._agreed_at = now()
        self.updated_since_start: dict[int, set[Key]] = {}
        self._starting: set[int] = set()
        self.slow: set[int] = set()
        self._fast_again_at: dict[int, datetime] = {}
        self._places: dict[ReplicaKey, LogDir] = {}
        self._future_replicas: dict[ReplicaKey, LogDir] = {}
        self._held_since: dict[ReplicaKey, datetime] = {}
        self._last_isr: dict[Key, frozenset[int]] = {}
        self._in_sync: dict[Key, InSync] = {}
        self._left_behind: set[tuple[Key, LogDir]] = set()
        self._undeleted: set[tuple[Key, LogDir]] = set()
        if topics:
            cluster.await_healthy()
        for topic in topics:
            self.add_topic(topic)

    # --- events -----------------------------------------------------------------------------------------------------

    def add_topic(self, topic: Topic, *, cordoned: frozenset[LogDir] | None = None) -> None:
        """A topic, or more partitions of a known one, was just created: take over its assignment, and check it.

        New replicas must be on good log dirs (KIP-112, "New replicas will only be created on good log directory") that
        are not cordoned (KIP-1066, "only a log directory not currently cordoned will be selected").

        A partition is added as a whole or not at all, so a caller that got NoAnswer may try again.

        :param cordoned: the log dirs that were cordoned all the while it was created; None: those that are cordoned now
        :raises PromiseBroken: a new replica is on a log dir that has failed, or is cordoned
        """
        for partition in topic.partitions:
            if (topic.name, partition.index) in self.partitions:
                continue
            seen = partition.describe()
            places = {id: partition.log_dir_on(self.cluster.broker(id)) for id in seen.replicas}
            for log_dir in places.values():
                self._check_fit(partition, log_dir, self.cordoned if cordoned is None else cordoned)
            self.add_partition(seen, places)

    def _check_fit(self, partition: Partition, log_dir: LogDir, cordoned: frozenset[LogDir]) -> None:
        """A log dir that just got a replica is neither failed nor cordoned."""
        for what, those in (("has failed", self.failed), ("is cordoned", cordoned)):
            if log_dir in those:
                raise PromiseBroken(f"{partition} was placed on {log_dir}, which {what}")

    def remove_topic(self, topic: Topic) -> None:
        """A topic was deleted.

        A replica on a failed log dir cannot be deleted ("StopReplicaRequest will fail if replica is offline", KIP-112).
        In ZooKeeper mode its broker counts it as offline until the log dir is back. In KRaft the broker forgets it.
        """
        for partition in topic.partitions:
            key = (partition.topic, partition.index)
            self._may_be_led_anew(key)
            places = {self._places.pop((*key, id)) for id in self.partitions.pop(key).replicas}
            if self.cluster.spec.mode is Mode.ZK:
                self._undeleted |= {(key, place) for place in places & self.failed}

    def add_partition(self, seen: PartitionState, places: Mapping[int, LogDir]) -> None:
        """Add one partition: its assignment and leader, and each replica's log dir by broker id.

        All replicas that are not offline are expected in the ISR. A broker that was just started may not be in it yet.
        """
        key = (seen.topic, seen.partition)
        self._places |= {(*key, id): log_dir for id, log_dir in places.items()}
        offline = self._offline(key, seen.replicas)
        isr = frozenset(seen.replicas) - offline
        self._expect(key, ExpectedPartition(replicas=seen.replicas, leader=seen.leader, isr=isr, offline=offline))
        if isr == frozenset(seen.isr):
            self.leader_epochs[key] = seen.leader_epoch
        if seen.leader is not None:
            self._led[key] = Leadership(leader=seen.leader, epoch=seen.leader_epoch, at=now())

    def _expect(self, key: Key, expected: ExpectedPartition) -> None:
        """The partition should look like this from now on.

        If anything changes, its leader epoch may change. If the leader changes, others may lead it until all sources
        agree again.
        """
        was = self.partitions.get(key)
        if was != expected:
            self.leader_epochs.pop(key, None)
        if was is not None and was.leader != expected.leader:
            self._led.pop(key, None)
        self._put(key, expected)

    def _put(self, key: Key, expected: ExpectedPartition) -> None:
        """The partition should look like this from now on, in the same leader epoch."""
        was = self.partitions.get(key)
        if was != expected:
            self._in_sync.pop(key, None)
        if was is not None and (was.leader, was.isr) != (expected.leader, expected.isr):
            for id in self.updated_since_start.keys() - self._starting:
                self.updated_since_start[id].add(key)
        self.partitions[key] = expected

    def _may_be_led_anew(self, key: Key) -> None:
        """Its leader epoch may change, and others may lead it until all sources agree again."""
        self.leader_epochs.pop(key, None)
        self._led.pop(key, None)
        self._in_sync.pop(key, None)

    def reassigned(self, partition: Partition, log_dirs: Sequence[LogDir]) -> None:
        """A partition was reassigned: its replicas are now in these log dirs, in this order (KIP-113).

        A leader that is still a replica stays. Otherwise the first replica that can lead becomes the leader. A replica
        that left a failed log dir leaves its log there, since it cannot be deleted ("StopReplicaRequest will fail if
        replica is offline", KIP-112 "7. Partition reassignment").

        :raises PromiseBroken: a new replica was created on a log dir that has failed, or is cordoned
        """
        key = (partition.topic, partition.index)
        before = {self._places.pop((*key, id)) for id in self.partitions[key].replicas}
        self._left_behind |= {(key, place) for place in before & self.failed if place not in log_dirs}
        for log_dir in log_dirs:
            if log_dir not in before:
                self._check_fit(partition, log_dir, self.cordoned)
            self._places[(*key, log_dir.broker.id)] = log_dir
        replicas = tuple(log_dir.broker.id for log_dir in log_dirs)
        self._may_be_led_anew(key)  # the new replicas begin a new leader epoch, whoever leads
        changed = {id: key in updated for id, updated in self.updated_since_start.items()}
        self._expect(key, replace(self.partitions[key], replicas=replicas, isr=frozenset(replicas)))
        self._carry_forward()
        for id in (id for id, before in changed.items() if not before):
            # The partition's record names its log dirs again, so the broker treats it as the first update.
            self.updated_since_start[id].discard(key)

    def reassigning(self, partition: Partition) -> None:
        """A partition was reassigned to its present replicas: its leader epoch may change, and nothing else.

        ZooKeeper's controller begins a leader epoch even if kafka-reassign-partitions names new log dirs only.
        """
        self._may_be_led_anew((partition.topic, partition.index))

    def led_by_preferred(self, partition: Partition, broker: Broker) -> None:
        """A broker was made the preferred leader of a partition, and elected."""
        key = (partition.topic, partition.index)
        was = self.partitions[key]
        replicas = tuple(dict.fromkeys((broker.id, *was.replicas)))
        self._may_be_led_anew(key)
        self._expect(key, replace(was, replicas=replicas, leader=broker.id))

    def move_held(self, partition: Partition, log_dir: LogDir) -> None:
        """A replica moves to another log dir of its broker, and a throttle holds the move.

        Sources must show the replica in the old log dir and the future replica in the new one.
        """
        key = (partition.topic, partition.index, log_dir.broker.id)
        self._future_replicas[key] = log_dir
        self._held_since[key] = now()

    def moved(self, partition: Partition, log_dir: LogDir) -> None:
        """A replica is now in this log dir of its broker: its move has ended, or was cancelled and it stayed.

        :raises PromiseBroken: it was moved to a log dir that has failed, or is cordoned
        """
        key = (partition.topic, partition.index, log_dir.broker.id)
        if self._places.get(key) != log_dir:
            self._check_fit(partition, log_dir, self.cordoned)
        self._future_replicas.pop(key, None)
        self._places[key] = log_dir
        self._left_behind.discard((key[:2], log_dir))
        self._carry_forward()

    def swap_interrupted(self, partition: Partition, log_dir: LogDir) -> None:
        """The swap of the replica with its future replica stopped half-way.

        The replica is still in the old log dir, which fails. The future replica in this log dir already has the
        replica's name.
        """
        key = (partition.topic, partition.index)
        self._future_replicas.pop((*key, log_dir.broker.id), None)
        self._left_behind.add((key, log_dir))

    def replica_kept(self, partition: Partition, log_dir: LogDir) -> None:
        """A log dir keeps a replica that Kafka should have deleted: its broker has left the partition's assignment."""
        self._left_behind.add(((partition.topic, partition.index), log_dir))

    def assumed_on_failed_dir(self, partition: Partition, log_dir: LogDir) -> None:
        """Kafka assumes that a replica is on this failed log dir, and counts it as offline.

        Its future replica is in another log dir. "If there is bad log directory, then broker considers topicPartition
        as offline" (KIP-113, 3.). Nothing was created on the failed one, so this breaks no promise. Call
        :meth:`moved` once the future replica has become the replica.
        """
        assert log_dir in self.failed
        self._places[partition.topic, partition.index, log_dir.broker.id] = log_dir
        self._carry_forward()

    def reassignment_cancelled(self, partition: Partition, wanted: Sequence[Broker]) -> None:
        """A reassignment to the wanted brokers was cancelled: the replicas are the same, in another order.

        The wanted ones among them come first now, so the preferred leader may change (``ReplicaAssignment.reassignTo``
        and ``removeReplica``, in KRaft ``PartitionReassignmentReplicas``). KIP-455 does not say so.
        """
        key = (partition.topic, partition.index)
        was = self.partitions[key]
        order = dict.fromkeys((*(broker.id for broker in wanted), *was.replicas))
        self._may_be_led_anew(key)
        self._expect(key, replace(was, replicas=tuple(id for id in order if id in was.replicas)))

    def log_dir_failed(self, log_dir: LogDir) -> None:
        """A log dir failed: its replicas go offline, and nothing else changes.

        If its broker is down, they are offline already. The broker then finds the failure before or after it registers
        with the controller. A leader epoch begins only in the second case, so the epochs are not compared.

        :raises Inconclusive: no known replica is in the log dir, so its failure would show nothing
        """
        if log_dir not in self._places.values():
            raise Inconclusive(f"{log_dir} holds no replica of a known topic; its failure shows nothing")
        for key in self.replicas_in(log_dir):
            self.leader_epochs.pop(key, None)
        self.failed.add(log_dir)
        self._disturbed_at[log_dir.broker.id] = now()
        self._carry_forward()

    def log_dirs_healed(self, broker: Broker) -> None:
        """A broker was restarted with all its log dirs good again: their replicas rejoin the ISR, and leaders stay.

        KRaft renames replicas that were left behind in them to ``-stray``. In ZooKeeper mode these stay as they are.
        """
        self.failed -= set(broker.log_dirs)
        self._undeleted = {(key, place) for key, place in self._undeleted if place not in broker.log_dirs}
        if self.cluster.spec.mode is Mode.KRAFT:
            self._left_behind = {(key, place) for key, place in self._left_behind if place not in broker.log_dirs}
        self.broker_back(broker)

    def replicas_recreated(self, log_dir: LogDir) -> None:
        """A broker was started with an empty disk in place of a log dir, or without the log dir: it recreates replicas.

        The log dir of each is taken from Kafka; the assignment and the leaders are not.

        :raises PromiseBroken: a replica is not recreated, or on a log dir that has failed or is cordoned
        """
        broker = log_dir.broker
        self.cluster.await_healthy(failure=PromiseBroken)
        self.failed.discard(log_dir)
        self._undeleted = {(key, place) for key, place in self._undeleted if place != log_dir}
        for topic, index in sorted(self.replicas_in(log_dir)):
            place = broker.log_dir_of(topic, index)
            if place is None:
                raise PromiseBroken(f"{broker} is in the ISR of {topic}-{index} and has it in no log dir")
            self.moved(Partition(self.cluster, topic, index), place)
        self.broker_back(broker)

    def set_cordoned(self, broker: Broker, *log_dirs: LogDir) -> None:
        """These log dirs of a broker are cordoned, and no others. Nothing else changes (KIP-1066)."""
        self.cordoned = frozenset(each for each in self.cordoned if each.broker != broker) | frozenset(log_dirs)

    def disk_slow(self, broker: Broker) -> None:
        """A disk of a broker is slow. Its request threads wait for the disk, so it may leave requests unanswered."""
        self.slow.add(broker.id)

    def disk_fast_again(self, broker: Broker) -> None:
        """The disk is as fast as before: the broker answers again."""
        self.slow.discard(broker.id)
        self._fast_again_at[broker.id] = now()

    def _slow_since(self, since: datetime) -> set[int]:
        """The ids of the brokers that have had a slow disk since then, or for some time since then."""
        return self.slow | {id for id, at in self._fast_again_at.items() if at >= since}

    def broker_gone(self, *brokers: Broker) -> None:
        """Brokers were killed, stopped or paused, one after another: all their replicas go offline."""
        for broker in brokers:
            self.dead.add(broker.id)
            self._disturbed_at[broker.id] = now()
            self._carry_forward()

    def broker_cut_off(self, broker: Broker) -> None:
        """Neither brokers nor the controller reach a broker: to them it is dead, whatever it reports itself."""
        self.cluster.unreachable.add(broker.id)
        self.broker_gone(broker)

    def broker_isolated(self, broker: Broker) -> None:
        """This broker and the others do not reach each other; all reach the controller.

        It stays the leader of what it leads, alone in the ISR. It leaves the ISR of what others lead. Nothing is
        offline.
        """
        for key, was in self.partitions.items():
            if was.isr is not None:
                isr = was.isr & {broker.id} if was.leader == broker.id else was.isr - {broker.id}
                self._expect(key, replace(was, isr=isr))

    def isolation_ended(self) -> None:
        """All brokers reach each other again: replicas that are not offline rejoin the ISR, and leaders stay."""
        for key, was in self.partitions.items():
            if was.isr is not None:
                self._put(key, replace(was, isr=frozenset(was.replicas) - was.offline))

    def broker_back(self, broker: Broker) -> None:
        """A broker was started or resumed, or is no longer cut off: its replicas on good log dirs rejoin the ISR.

        Leaders stay. A larger ISR begins no leader epoch, in either mode.
        """
        self.dead.discard(broker.id)
        self._disturbed_at[broker.id] = now()  # a broker that was paused logs only now that it lost its session
        if broker.id not in self.cluster.unreachable:
            self._started(broker)
        self.cluster.unreachable.discard(broker.id)
        for key, was in self.partitions.items():
            offline = self._offline(key, was.replicas)
            back = frozenset({broker.id} & set(was.replicas)) - offline
            if was.isr is not None:
                self._put(key, replace(was, isr=was.isr | back, offline=offline))
            elif back & self._last_isr[key]:
                self._expect(key, replace(was, leader=broker.id, isr=back, offline=offline))
            else:
                self._expect(key, replace(was, offline=offline))

    def _started(self, broker: Broker) -> None:
        self.updated_since_start.pop(broker.id, None)
        if any(log_dir.broker == broker for log_dir in self.failed):
            self.updated_since_start[broker.id] = set()
            self._starting.add(broker.id)

    def _restarted_since_held(self, key: ReplicaKey) -> bool:
        """Whether this replica's broker was started after its move was held (KRaft): the move may have ended."""
        if self.cluster.spec.mode is not Mode.KRAFT:
            return False
        return self.cluster.broker(key[2]).started_at > self._held_since[key]

    def _offline(self, key: Key, replicas: tuple[int, ...]) -> frozenset[int]:
        return frozenset(id for id in replicas if id in self.dead or self._places.get((*key, id)) in self.failed)

    def _carry_forward(self) -> None:
        for key, was in self.partitions.items():
            offline = self._offline(key, was.replicas)
            isr = None if was.isr is None else was.isr - offline
            if not isr:
                self._last_isr[key] = was.isr or self._last_isr[key]
                self._expect(key, replace(was, leader=None, isr=None, offline=offline))
                continue
            leader = was.leader if was.leader in isr else next(id for id in was.replicas if id in isr)
            self._expect(key, replace(was, leader=leader, isr=isr, offline=offline))

    # --- queries ----------------------------------------------------------------------------------------------------

    def expected(self, topic: str, partition: int = 0) -> ExpectedPartition:
        """What one partition should look like."""
        return self.partitions[topic, partition]

    def log_dir_of(self, partition: Partition, broker: Broker) -> LogDir:
        """The log dir that should have the replica."""
        return self._places[partition.topic, partition.index, broker.id]

    def live_brokers(self) -> list[Broker]:
        """The brokers that should run."""
        return [broker for broker in self.cluster.brokers if broker.id not in self.dead]

    def ask_each_broker(self, ask: Callable[[Broker], Answer]) -> Iterator[tuple[Broker, Answer]]:
        """The answer of each broker that should run. One with a slow disk may not answer; the journal notes that.

        :raises NoAnswer: a broker without a slow disk does not answer
        """
        for broker in self.live_brokers():
            try:
                answer = ask(broker)
            except NoAnswer as silence:
                if broker.id not in self.slow:
                    raise
                self.cluster.journal.write("broker.silent", broker=broker.id, says=str(silence))
            else:
                yield broker, answer

    def bootstrap(self) -> Bootstrap:
        """The brokers that should run."""
        return self.cluster.bootstrap_of(self.live_brokers())

    def replicas_in(self, log_dir: LogDir) -> set[Key]:
        """The replicas that should be in a log dir."""
        return {(topic, partition) for (topic, partition, _), place in self._places.items() if place == log_dir}

    def future_replicas_in(self, log_dir: LogDir) -> set[Key]:
        """The future replicas that should be in a log dir; only those of held moves."""
        return {
            (topic, partition) for (topic, partition, _), place in self._future_replicas.items() if place == log_dir
        }

    def left_behind_in(self, log_dir: LogDir) -> set[Key]:
        """The replicas that were not deleted from a log dir: it had failed then, or the build keeps them."""
        return {key for key, place in self._left_behind if place == log_dir}

    def undeleted_in(self, log_dir: LogDir) -> set[Key]:
        """The replicas in a failed log dir of topics that were deleted meanwhile."""
        return {key for key, place in self._undeleted if place == log_dir}

    def unknown_partitions(self, seen: ClusterState) -> list[PartitionState]:
        """The cluster's partitions that belong to no known topic."""
        return [state for state in seen.partitions if (state.topic, state.partition) not in self.partitions]
