"""A model of where everything is.

The harness keeps its own expectation of partition → broker → log dir → state: taken once from a healthy cluster, then
carried forward by the events that a scenario causes, with the rules that the KIPs promise. After each step all sources
are compared with it (:mod:`suites.state_check`).

The rules, for an event that takes replicas away (KIP-18 "Handling disk failures", KIP-112 "5. User queries replicas
state"):

* the assignment (``replicas``, in order) does not change;
* ``offline_replicas`` is the union of the replicas on failed log dirs and on dead brokers;
* ISR' = ISR − the replicas that went offline; where none would be left the partition has no leader (which last
  member Kafka then keeps in the ISR is not promised and not compared);
* a leader that is still in the ISR stays; otherwise the first of the assignment that is in ISR' leads;
* a partition without a leader is led again when the last of its ISR comes back, by that one;
* partitions without a replica on what failed are untouched: they have the leader that they had, in the leader epoch
  that they had, so that nobody else led in between; and where a leader is to stay that something did touch, nobody
  else was seen to lead in between, by the cluster's watcher, which asks some twenty times a second;
* a replica that is made or moved comes neither to a failed log dir nor to a cordoned one (KIP-1066), whose replicas
  are untouched.
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
from harness.kafka.tool_answers import DescribedPartition, Key
from harness.kafka.versions import Mode

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one partition should look like; ``isr`` None where any will do (nobody leads it)."""

    replicas: tuple[int, ...]
    leader: int | None
    isr: frozenset[int] | None
    offline: frozenset[int]

    def disagreement(self, seen: PartitionState | DescribedPartition) -> str | None:
        """What differs, in words; None where nothing does. Kafka's programs don't tell offline replicas."""
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
class Led:
    """Who led a partition when all sources last agreed, or when the model first heard of it, in which leader epoch."""

    leader: int
    epoch: int
    at: datetime


class Model:
    """Begin with the topics of a healthy cluster, then tell it of every event.

    :ivar partitions: what each known partition should look like
    :ivar leader_epochs: of those that no event has touched since they were seen to look so: the leader epoch then
    :ivar failed: the log dirs that have failed
    :ivar cordoned: the log dirs that are cordoned, as far as the controller knows too
    :ivar dead: the brokers that don't run, or are missed: paused for long, or cut off
    :ivar started_wounded: the brokers that were started with a log dir that had failed before
    :ivar slow: the brokers of which a disk is slow
    """

    def __init__(self, cluster: Cluster, *topics: Topic) -> None:
        self.cluster = cluster
        self.partitions: dict[Key, Expected] = {}
        self.leader_epochs: dict[Key, int] = {}
        self._led: dict[Key, Led] = {}
        self._agreed: dict[Key, Led] = {}
        self.failed: set[LogDir] = set()
        self.cordoned: frozenset[LogDir] = frozenset()
        self.dead: set[int] = set()
        self._hit: dict[int, datetime] = {}
        self.started_wounded: set[int] = set()
        self.slow: set[int] = set()
        self._places: dict[tuple[str, int, int], LogDir] = {}
        self._copies: dict[tuple[str, int, int], LogDir] = {}
        self._unheld: set[tuple[str, int, int]] = set()
        self._last_isr: dict[Key, frozenset[int]] = {}
        self._left_behind: set[tuple[Key, LogDir]] = set()
        self._undeleted: set[tuple[Key, LogDir]] = set()
        if topics:
            cluster.await_healthy(failure=Inconclusive)
        for topic in topics:
            self.learn(topic)

    # --- events -----------------------------------------------------------------------------------------------------

    def learn(self, topic: Topic, *, cordoned: frozenset[LogDir] | None = None) -> None:
        """A topic, or more partitions of a known one, was just created: take over what Kafka decided, and check it.

        New replicas must be on good log dirs (KIP-112, "New replicas will only be created on good log directory") that
        are not cordoned (KIP-1066, "only a log directory not currently cordoned will be selected").

        A partition is taken over as a whole or not at all, so that who got no answer may begin anew.

        :param cordoned: the log dirs that were so all the while it was created; None: those that are so now
        """
        for partition in topic.partitions:
            if (topic.name, partition.index) in self.partitions:
                continue
            seen = partition.describe()
            places = {id: partition.log_dir_on(self.cluster.broker(id)) for id in seen.replicas}
            for log_dir in places.values():
                self._check_fit(partition, log_dir, self.cordoned if cordoned is None else cordoned)
            self.add(seen, places)

    def _check_fit(self, partition: Partition, log_dir: LogDir, cordoned: frozenset[LogDir]) -> None:
        """A log dir that just got a replica may get one."""
        for what, those in (("has failed", self.failed), ("is cordoned", cordoned)):
            if log_dir in those:
                raise PromiseBroken(f"{partition} came to {log_dir}, which {what}")

    def forget(self, topic: Topic) -> None:
        """A topic was deleted.

        In ZooKeeper mode its broker goes on counting a replica on a failed log dir, until that is back: it can't be
        deleted ("StopReplicaRequest will fail if replica is offline", KIP-112). KRaft's broker forgets it.
        """
        for partition in topic.partitions:
            key = (partition.topic, partition.index)
            self._may_be_led_anew(key)
            places = {self._places.pop((*key, id)) for id in self.partitions.pop(key).replicas}
            if self.cluster.spec.mode is Mode.ZK:
                self._undeleted |= {(key, place) for place in places & self.failed}

    def add(self, seen: PartitionState, places: Mapping[int, LogDir]) -> None:
        """Take over one partition: its assignment and leader, and each replica's log dir by broker id.

        Its ISR is what it must come to be, not that of the moment: of a broker that was just started it may lack some.
        """
        key = (seen.topic, seen.partition)
        self._places |= {(*key, id): log_dir for id, log_dir in places.items()}
        offline = self._offline(key, seen.replicas)
        isr = frozenset(seen.replicas) - offline
        self._expect(key, Expected(replicas=seen.replicas, leader=seen.leader, isr=isr, offline=offline))
        if isr == frozenset(seen.isr):
            self.leader_epochs[key] = seen.leader_epoch
        if seen.leader is not None:
            self._led[key] = Led(leader=seen.leader, epoch=seen.leader_epoch, at=now())

    def _expect(self, key: Key, expected: Expected) -> None:
        """The partition should look like this from now on; if otherwise than before, it may be led in another epoch,
        and if by another, others may lead it until all sources agree again.
        """
        was = self.partitions.get(key)
        if was != expected:
            self.leader_epochs.pop(key, None)
        if was is not None and was.leader != expected.leader:
            self._led.pop(key, None)
        self.partitions[key] = expected

    def _may_be_led_anew(self, key: Key) -> None:
        """An operator's order: it may be led in another epoch, and by others until all sources agree again."""
        self.leader_epochs.pop(key, None)
        self._led.pop(key, None)

    def reassigned(self, partition: Partition, log_dirs: Sequence[LogDir]) -> None:
        """Replicas were moved, and are now in these log dirs, on their brokers in this order (KIP-113).

        A leader that is still a replica stays; otherwise the first of the new replicas that can leads. A replica that
        went from a failed log dir leaves its log behind there, since it can't be deleted ("StopReplicaRequest will fail
        if replica is offline", KIP-112 "7. Partition reassignment").

        :raises PromiseBroken: a new replica was made on a log dir that has failed, or is cordoned
        """
        key = (partition.topic, partition.index)
        before = {self._places.pop((*key, id)) for id in self.partitions[key].replicas}
        self._left_behind |= {(key, place) for place in before & self.failed if place not in log_dirs}
        for log_dir in log_dirs:
            if log_dir not in before:
                self._check_fit(partition, log_dir, self.cordoned)
            self._places[(*key, log_dir.broker.id)] = log_dir
        replicas = tuple(log_dir.broker.id for log_dir in log_dirs)
        self._may_be_led_anew(key)  # in a new epoch, which begins with the new replicas, whoever leads
        self._expect(key, replace(self.partitions[key], replicas=replicas, isr=frozenset(replicas)))
        self._carry_forward()

    def reassigning(self, partition: Partition) -> None:
        """Its replicas were ordered to be where they are: it may be led in another epoch, and nothing else changes.

        So ZooKeeper's controller does it; for an order of kafka-reassign-partitions that is for log dirs alone, too.
        """
        self._may_be_led_anew((partition.topic, partition.index))

    def moving(self, partition: Partition, log_dir: LogDir) -> None:
        """A replica is on its way into another log dir of its broker, and held there: both copies are to be seen."""
        key = (partition.topic, partition.index, log_dir.broker.id)
        self._copies[key] = log_dir
        self._unheld.discard(key)

    def moved(self, partition: Partition, log_dir: LogDir) -> None:
        """A replica is now in another log dir of its broker; or in the same one, its move having been called off.

        :raises PromiseBroken: it came to one that has failed, or is cordoned
        """
        key = (partition.topic, partition.index, log_dir.broker.id)
        if self._places.get(key) != log_dir:
            self._check_fit(partition, log_dir, self.cordoned)
        self._copies.pop(key, None)
        self._places[key] = log_dir
        self._left_behind.discard((key[:2], log_dir))
        self._carry_forward()

    def half_swapped(self, partition: Partition, log_dir: LogDir) -> None:
        """A move ended amid the swap of the copies: the replica is in the log dir that it was leaving, which fails, and
        the copy in this one has its name already.
        """
        key = (partition.topic, partition.index)
        self._copies.pop((*key, log_dir.broker.id), None)
        self._left_behind.add((key, log_dir))

    def kept(self, partition: Partition, log_dir: LogDir) -> None:
        """A log dir goes on having a replica that Kafka was to delete, of a partition that its broker is no part of."""
        self._left_behind.add(((partition.topic, partition.index), log_dir))

    def taken_for_lost(self, partition: Partition, log_dir: LogDir) -> None:
        """Kafka takes a replica to be in this log dir, which has failed, so that it is offline: its copy, not
        swapped in yet, is elsewhere.

        "If there is bad log directory, then broker considers topicPartition as offline" (KIP-113, 3.).

        Nothing came there, so that it breaks no promise; :meth:`moved` says when the copy has become the replica.
        """
        assert log_dir in self.failed
        self._places[partition.topic, partition.index, log_dir.broker.id] = log_dir
        self._carry_forward()

    def reassignment_cancelled(self, partition: Partition, wanted: Sequence[Broker]) -> None:
        """A move to the wanted brokers was called off half-way: the replicas are what they were, in another order.

        Those of them that were wanted come first now (``ReplicaAssignment.reassignTo`` and ``removeReplica``, in KRaft
        ``PartitionReassignmentReplicas``), so that another leader may be the preferred one; KIP-455 is silent on it.
        """
        key = (partition.topic, partition.index)
        was = self.partitions[key]
        order = dict.fromkeys((*(broker.id for broker in wanted), *was.replicas))
        self._may_be_led_anew(key)
        self._expect(key, replace(was, replicas=tuple(id for id in order if id in was.replicas)))

    def log_dir_failed(self, log_dir: LogDir) -> None:
        """A log dir failed: its replicas go offline, nothing else changes.

        Where its broker is down, they are so already; whether it finds that out before it tells the controller that it
        is back or just afterwards, with which a leader epoch begins, is chance.

        :raises Inconclusive: the model knows no replica in it, so its failure would show nothing
        """
        if log_dir not in self._places.values():
            raise Inconclusive(f"{log_dir} holds no replica of a known topic; its failure shows nothing")
        for key in self.replicas_in(log_dir):
            self.leader_epochs.pop(key, None)
        self.failed.add(log_dir)
        self._hit[log_dir.broker.id] = now()
        self._carry_forward()

    def log_dirs_back(self, broker: Broker) -> None:
        """A broker was restarted with all its log dirs good again: their replicas rejoin the ISR; leaders stay.

        What was left behind in them KRaft then sets aside, as ``-stray``; in ZooKeeper mode it stays as it was.
        """
        self.failed -= set(broker.log_dirs)
        self._undeleted = {(key, place) for key, place in self._undeleted if place not in broker.log_dirs}
        if self.cluster.spec.mode is Mode.KRAFT:
            self._left_behind = {(key, place) for key, place in self._left_behind if place not in broker.log_dirs}
        self.broker_back(broker)

    def remade(self, log_dir: LogDir) -> None:
        """A broker was started on an empty disk in the place of a log dir, or without it: what was there is made anew.

        In which of its log dirs is taken from Kafka; the assignment and the leaders are not.

        :raises PromiseBroken: it is not made anew, or where it may not
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

    def cordons(self, broker: Broker, *log_dirs: LogDir) -> None:
        """These log dirs of a broker are cordoned, and no others; nothing else changes (KIP-1066)."""
        self.cordoned = frozenset(each for each in self.cordoned if each.broker != broker) | frozenset(log_dirs)

    def disk_slow(self, broker: Broker) -> None:
        """A disk of a broker is slow, which changes nothing; but its request threads wait for the disk, so that it may
        leave questions unanswered meanwhile.
        """
        self.slow.add(broker.id)

    def disk_quick(self, broker: Broker) -> None:
        """The disk is as it was before: the broker answers again."""
        self.slow.discard(broker.id)

    def broker_gone(self, *brokers: Broker) -> None:
        """Brokers were killed, stopped or paused, one after another: all their replicas go offline."""
        for broker in brokers:
            self.dead.add(broker.id)
            self._hit[broker.id] = now()
            self._carry_forward()

    def broker_cut_off(self, broker: Broker) -> None:
        """Neither brokers nor the controller hear of a broker any more: to them it is gone, whatever it says itself."""
        self.cluster.unreachable.add(broker.id)
        self.broker_gone(broker)

    def broker_alone(self, broker: Broker) -> None:
        """No other broker gets through to this one, nor it to them, and the controller hears of all: what it leads it
        leads on, alone in the ISR; of what others lead it leaves the ISR. Nothing is offline."""
        for key, was in self.partitions.items():
            if was.isr is not None:
                isr = was.isr & {broker.id} if was.leader == broker.id else was.isr - {broker.id}
                self._expect(key, replace(was, isr=isr))

    def broker_among_others(self) -> None:
        """All brokers get through to each other again: replicas that are not offline rejoin the ISR; leaders stay."""
        for key, was in self.partitions.items():
            if was.isr is not None:
                self.partitions[key] = replace(was, isr=frozenset(was.replicas) - was.offline)

    def broker_back(self, broker: Broker) -> None:
        """A broker was started or resumed, or is no longer cut off: its replicas on good dirs catch up and rejoin the
        ISR; leaders stay.

        A larger ISR begins no leader epoch, in either mode.
        """
        self.dead.discard(broker.id)
        if broker.id not in self.cluster.unreachable:
            self._started(broker)
        self.cluster.unreachable.discard(broker.id)
        for key, was in self.partitions.items():
            offline = self._offline(key, was.replicas)
            back = frozenset({broker.id} & set(was.replicas)) - offline
            if was.isr is not None:
                self.partitions[key] = replace(was, isr=was.isr | back, offline=offline)
            elif back & self._last_isr[key]:
                self._expect(key, replace(was, leader=broker.id, isr=back, offline=offline))
            else:
                self._expect(key, replace(was, offline=offline))

    def _started(self, broker: Broker) -> None:
        if self.cluster.spec.mode is Mode.KRAFT:
            self._unheld |= {key for key in self._copies if key[2] == broker.id}
        self.started_wounded.discard(broker.id)
        if any(log_dir.broker == broker for log_dir in self.failed):
            self.started_wounded.add(broker.id)

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

    # --- what it says -----------------------------------------------------------------------------------------------

    def expected(self, topic: str, partition: int = 0) -> Expected:
        """What the model says of one partition."""
        return self.partitions[topic, partition]

    def log_dir_of(self, partition: Partition, broker: Broker) -> LogDir:
        """The log dir in which a replica belongs."""
        return self._places[partition.topic, partition.index, broker.id]

    def live_brokers(self) -> list[Broker]:
        """The brokers that should run."""
        return [broker for broker in self.cluster.brokers if broker.id not in self.dead]

    def told_by_each(self, ask: Callable[[Broker], Answer]) -> Iterator[tuple[Broker, Answer]]:
        """What each broker that should run says; one with a slow disk may say nothing, which the journal notes.

        :raises NoAnswer: another says nothing
        """
        for broker in self.live_brokers():
            try:
                told = ask(broker)
            except NoAnswer as silence:
                if broker.id not in self.slow:
                    raise
                self.cluster.journal.write("broker.silent", broker=broker.id, says=str(silence))
            else:
                yield broker, told

    def bootstrap(self) -> str:
        """The addresses of the brokers that should run."""
        return ",".join(broker.bootstrap for broker in self.live_brokers())

    def replicas_in(self, log_dir: LogDir) -> set[Key]:
        """The replicas that belong in a log dir."""
        return {(topic, partition) for (topic, partition, _), place in self._places.items() if place == log_dir}

    def copies_in(self, log_dir: LogDir) -> set[Key]:
        """The replicas of which a copy is on its way into a log dir, and held there."""
        return {(topic, partition) for (topic, partition, _), place in self._copies.items() if place == log_dir}

    def left_behind_in(self, log_dir: LogDir) -> set[Key]:
        """The logs in a log dir that were not deleted: it had failed, or its broker is known to keep them."""
        return {key for key, place in self._left_behind if place == log_dir}

    def undeleted_in(self, log_dir: LogDir) -> set[Key]:
        """The replicas in a failed log dir of topics that were deleted since."""
        return {key for key, place in self._undeleted if place == log_dir}

    def strangers(self, seen: ClusterState) -> list[PartitionState]:
        """Those of the cluster's partitions that are of no known topic."""
        return [state for state in seen.partitions if (state.topic, state.partition) not in self.partitions]
