"""A model of where everything is, and the check that all sources agree with it.

The harness keeps its own expectation of partition → broker → log dir → state: taken once from a healthy cluster, then
carried forward by the events that a scenario causes, with the rules that the KIPs promise. After each step
:meth:`World.check` compares every source with it: the metadata of every live broker, the log dirs that each of them
describes, the process table. A disagreement names its source and both values.

The rules, for an event that takes replicas away (KIP-18 "Handling disk failures", KIP-112 "5. User queries replicas
state"):

* the assignment (``replicas``, in order) does not change;
* ``offline_replicas`` is the union of the replicas on failed log dirs and on dead brokers;
* ISR' = ISR − the replicas that went offline; where none would be left the partition has no leader (which last
  member Kafka then keeps in the ISR is not promised and not compared);
* a leader that is still in the ISR stays; otherwise the first of the assignment that is in ISR' leads;
* partitions without a replica on what failed are untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.errors import Inconclusive, PromiseBroken
from harness.log_dir import LogDir
from harness.metadata import PartitionState
from harness.topic import Partition, Topic
from harness.waiting import await_until
from harness.wire import NoAnswer


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one partition should look like; ``isr`` None where any will do (nobody leads it)."""

    replicas: tuple[int, ...]
    leader: int | None
    isr: frozenset[int] | None
    offline: frozenset[int]

    def disagreement(self, seen: PartitionState) -> str | None:
        """What differs, in words; None where nothing does."""
        wanted: list[tuple[str, object, object]] = [
            ("replicas", self.replicas, seen.replicas),
            ("leader", self.leader, seen.leader),
            ("offline_replicas", set(self.offline), set(seen.offline_replicas)),
        ]
        if self.isr is not None:
            wanted.append(("isr", set(self.isr), set(seen.isr)))
        return ", ".join(f"{what} {was} instead of {should}" for what, should, was in wanted if was != should) or None


class World:
    """The model: begin with the topics of a healthy cluster, then tell it of every event."""

    def __init__(self, cluster: Cluster, *topics: Topic) -> None:
        self._cluster = cluster
        self._partitions: dict[tuple[str, int], Expected] = {}
        self._places: dict[tuple[str, int, int], LogDir] = {}
        self._failed: set[LogDir] = set()
        self._dead: set[int] = set()
        if topics:
            cluster.await_healthy(failure=Inconclusive)
        for topic in topics:
            self.learn(topic)

    # --- events -----------------------------------------------------------------------------------------------------

    def learn(self, topic: Topic) -> None:
        """A topic was just created: take over what Kafka decided (assignment, leader, dirs), and check it.

        New replicas must be on good log dirs (KIP-112, "New replicas will only be created on good log directory").
        """
        for partition in topic.partitions:
            seen = partition.describe()
            places = {id: partition.log_dir_on(self._cluster.broker(id)) for id in seen.replicas}
            for log_dir in places.values():
                if log_dir in self._failed:
                    raise PromiseBroken(f"{partition} was created on {log_dir}, which has failed")
            self.add(seen, places)

    def add(self, seen: PartitionState, places: Mapping[int, LogDir]) -> None:
        """Take over one partition as it is: its state, and each replica's log dir by broker id."""
        key = (seen.topic, seen.partition)
        self._partitions[key] = Expected(
            replicas=seen.replicas, leader=seen.leader, isr=frozenset(seen.isr), offline=frozenset()
        )
        self._places |= {(*key, id): log_dir for id, log_dir in places.items()}

    def reassigned(self, partition: Partition, log_dirs: Sequence[LogDir]) -> None:
        """Replicas were moved, and are now in these log dirs, on their brokers in this order (KIP-113).

        A leader that is still a replica stays; otherwise the first of the new replicas that can leads.
        """
        key = (partition.topic, partition.index)
        for id in self._partitions[key].replicas:
            del self._places[(*key, id)]
        self._places |= {(*key, log_dir.broker.id): log_dir for log_dir in log_dirs}
        replicas = tuple(log_dir.broker.id for log_dir in log_dirs)
        self._partitions[key] = replace(self._partitions[key], replicas=replicas, isr=frozenset(replicas))
        self._carry_forward()

    def moved(self, partition: Partition, log_dir: LogDir) -> None:
        """A replica is now in another log dir of its broker."""
        self._places[partition.topic, partition.index, log_dir.broker.id] = log_dir
        self._carry_forward()

    def log_dir_failed(self, log_dir: LogDir) -> None:
        """A log dir failed: its replicas go offline, nothing else changes.

        :raises Inconclusive: the model knows no replica in it, so its failure would show nothing
        """
        if log_dir not in self._places.values():
            raise Inconclusive(f"{log_dir} holds no replica of a known topic; its failure shows nothing")
        self._failed.add(log_dir)
        self._carry_forward()

    def log_dirs_back(self, broker: Broker) -> None:
        """A broker was restarted with all its log dirs good again: their replicas rejoin the ISR; leaders stay."""
        self._failed -= set(broker.log_dirs)
        self.broker_back(broker)

    def broker_gone(self, *brokers: Broker) -> None:
        """Brokers were killed or stopped, one after another: all their replicas go offline."""
        for broker in brokers:
            self._dead.add(broker.id)
            self._carry_forward()

    def broker_back(self, broker: Broker) -> None:
        """A broker was started: its replicas on good dirs catch up and rejoin the ISR; leaders stay."""
        self._dead.discard(broker.id)
        for key, was in self._partitions.items():
            offline = self._offline(key, was.replicas)
            back = frozenset({broker.id} & set(was.replicas)) - offline
            isr = None if was.isr is None else was.isr | back
            self._partitions[key] = replace(was, isr=isr, offline=offline)

    def _offline(self, key: tuple[str, int], replicas: tuple[int, ...]) -> frozenset[int]:
        return frozenset(id for id in replicas if id in self._dead or self._places.get((*key, id)) in self._failed)

    def _carry_forward(self) -> None:
        for key, was in self._partitions.items():
            offline = self._offline(key, was.replicas)
            isr = None if was.isr is None else was.isr - offline
            if not isr:
                self._partitions[key] = replace(was, leader=None, isr=None, offline=offline)
                continue
            leader = was.leader if was.leader in isr else next(id for id in was.replicas if id in isr)
            self._partitions[key] = replace(was, leader=leader, isr=isr, offline=offline)

    # --- the check --------------------------------------------------------------------------------------------------

    def expected(self, topic: str, partition: int = 0) -> Expected:
        """What the model says of one partition."""
        return self._partitions[topic, partition]

    def check(self, timeout_s: float = timeouts.LOG_DIR_FAILURE_S) -> None:
        """Wait until all sources agree with the model.

        :raises PromiseBroken: they don't, with every disagreement last seen; or a broker ended by itself, other than
            by SIGKILL (the kernel out of memory, which is the machine's affair: NodeDied)
        :raises Inconclusive: no broker is left to ask
        """
        if len(self._dead) == len(self._cluster.brokers):
            raise Inconclusive("no broker is left that could be asked for the state of the cluster")
        await_until(
            self.disagreements,
            lambda found: not found,
            timeout_s=timeout_s,
            what="the cluster to be as the KIP promises",
            retry_on=(NoAnswer,),
            watch=partial(self._cluster.check_nodes, promised=True),
            failure=PromiseBroken,
        )
        self._cluster.journal.write(
            "state.validated", expected={f"{t}-{p}": str(e) for (t, p), e in self._partitions.items()}
        )

    def disagreements(self) -> list[str]:
        """Every difference between the model and a source, now."""
        found = []
        alive = tuple(broker.id for broker in self._cluster.brokers if broker.id not in self._dead)
        for broker in self._cluster.brokers:
            if broker.is_alive == (broker.id in self._dead):
                found.append(f"{broker} {'runs' if broker.is_alive else 'does not run'}")
        for broker in (self._cluster.broker(id) for id in alive):
            seen = broker.describe_cluster()
            if seen.brokers != alive:
                found.append(f"{broker} sees brokers {list(seen.brokers)} instead of {list(alive)}")
            described = {(state.topic, state.partition): state for state in seen.partitions}
            for key, expected in self._partitions.items():
                difference = expected.disagreement(described[key]) if key in described else "no such partition"
                if difference:
                    found.append(f"{broker} sees {key[0]}-{key[1]}: {difference}")
            found += self._log_dir_disagreements(broker)
        return found

    def _log_dir_disagreements(self, broker: Broker) -> list[str]:
        found = []
        described = {state.path: state for state in broker.describe_log_dirs()}
        for log_dir in broker.log_dirs:
            state = described.get(str(log_dir.path))
            if state is None:
                found.append(f"{broker} does not describe {log_dir.path.name}")
            elif state.offline != (log_dir in self._failed):
                found.append(f"{broker} describes {log_dir.path.name} as {state.error or 'online'}")
            elif not state.offline:
                holds = {(r.topic, r.partition) for r in state.replicas if not r.is_future}
                should = {(t, p) for (t, p, id), place in self._places.items() if place == log_dir}
                found += [f"{broker} has no {t}-{p} in {log_dir.path.name}" for t, p in sorted(should - holds)]
                stray = {key for key in holds - should if key in self._partitions}
                found += [f"{broker} has a {t}-{p} in {log_dir.path.name}" for t, p in sorted(stray)]
        return found
