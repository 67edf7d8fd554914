"""What the suite of KIP-1066 does in the same words: cordon, create topics all the while, see that something is empty.

A cordon is in force when the controller has heard of it, with a heartbeat; until then a new replica may come to the log
dir, and nobody promises otherwise. So a cordon is awaited in the controller's metadata log, and a topic is held only
against the cordons that were in force from before it was asked for until it was there.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.doors.tool_answers import Directories, dump_directories
from harness.doors.wire import NoAnswer
from harness.errors import Inconclusive, PromiseBroken
from harness.log_dir import LogDir
from harness.quorum.kraft import KRaftQuorum
from harness.reassign import Placement
from harness.releases.versions import Mode, VersionRange
from harness.runs.measure import Floors
from harness.topic import Partition, Topic
from harness.waiting import await_until
from suites.meanwhile import meanwhile
from suites.model import World
from suites.scenario import scenario
from suites.steps import reassign_together

NO_FAULT = Floors(faults=0)
a_cordon = functools.partial(
    scenario, kip=1066, modes=(Mode.KRAFT,), builds=VersionRange.parse(">=4.3.0"), floors=NO_FAULT
)
CORDONED = "cordoned.log.dirs"


def quorum_of(cluster: Cluster) -> KRaftQuorum:
    """The cluster's quorum, which is KRaft's."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    return cluster.quorum


def cordon(world: World, broker: Broker, *log_dirs: LogDir, value: str | None = None) -> None:
    """Have these of a broker's log dirs cordoned, and no others, and all sources say so; none: uncordon.

    :param value: how the configuration has it, instead of their paths
    """
    world.cordons(broker, *world.cordoned.intersection(log_dirs))  # those that are so all the while
    broker.configure({CORDONED: ",".join(str(each.path) for each in log_dirs) if value is None else value})
    await_in_force(world, broker, *log_dirs)


def await_in_force(world: World, broker: Broker, *log_dirs: LogDir) -> None:
    """The controller has heard which of the broker's log dirs are cordoned; so have, now, the model and all sources.

    :raises PromiseBroken: it doesn't hear
    """
    await_known_to_controller(world.cluster, broker, *log_dirs)
    world.cordons(broker, *log_dirs)
    world.check()
    world.cluster.journal.write("cordon.in_force", broker=broker.id, log_dirs=[str(each) for each in log_dirs])


def await_known_to_controller(cluster: Cluster, broker: Broker, *log_dirs: LogDir) -> None:
    """The controller says in its log that these, and no others, are the broker's cordoned log dirs.

    In its log, where it tells each record of a registration that it has replayed: to dump its metadata log each time
    would start a JVM for what takes a tenth of a second. The dump is a source like others.

    :raises PromiseBroken: it never does
    """
    should = {log_dir.directory_id() for log_dir in log_dirs}
    [controller] = cluster.quorum_nodes
    await_until(
        lambda: cordons_told((line.text for line in controller.log.lines()), broker.id),
        lambda ids: ids == should,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the controller to know {[str(each) for each in log_dirs]} as the cordoned log dirs of {broker}",
        failure=PromiseBroken,
    )


def cordons_told(lines: Iterable[str], broker: int) -> set[str] | None:
    """The ids of a broker's cordoned log dirs by the controller's log, oldest line first; None: it hasn't said yet.

    A registration begins anew; of a change the log dirs that it says nothing of stay as they were.
    """
    record = re.compile(
        rf"(RegisterBroker|BrokerRegistrationChange)Record\(brokerId={broker},.*cordonedLogDirs=(null|\[[^\]]*\])",
        re.DOTALL,
    )
    told: set[str] | None = None
    for found in filter(None, map(record.search, lines)):
        if found[2] != "null":
            told = set(re.findall(r"[\w-]{22}", found[2]))
        elif found[1] == "RegisterBroker":
            told = None
    return told


def directories(cluster: Cluster) -> Directories:
    """What the controller's metadata log says of log dirs."""
    return dump_directories(cluster.distribution, quorum_of(cluster).metadata_log)


# --- topics, all the while --------------------------------------------------------------------------------------------


class Creation:
    """Topics as they come, each with the log dirs that were cordoned all the while it was created."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._new: deque[tuple[Topic, frozenset[LogDir]]] = deque()

    def create(self, name: str, replicas: int) -> None:
        """One more."""
        before = self._world.cordoned
        topic = self._world.cluster.create_topic(name, replicas=replicas)
        self._new.append((topic, before & self._world.cordoned))

    def learn(self, at_least: int = 0) -> list[Topic]:
        """Take into the model what was created since the last time.

        :param at_least: wait until there are so many that were asked for under all the cordons of now
        :raises PromiseBroken: a replica came to a log dir that was cordoned
        :raises Inconclusive: there aren't so many
        """
        learnt: list[Topic] = []
        fresh = 0

        def so_far() -> int:
            nonlocal fresh
            while self._new:
                topic, cordoned = self._new[0]
                self._world.learn(topic, cordoned=cordoned)
                self._new.popleft()
                learnt.append(topic)
                fresh += cordoned >= self._world.cordoned
            return fresh

        await_until(
            so_far,
            lambda count: count >= at_least,
            timeout_s=timeouts.PROGRESS_S,
            what=f"{at_least} topics to be created",
            retry_on=(NoAnswer,),
            failure=Inconclusive,
        )
        self._world.cluster.journal.write("topics.learnt", topics=[topic.name for topic in learnt])
        return learnt


@contextmanager
def topics_created(world: World, *, replicas: int = 2) -> Iterator[Creation]:
    """Inside the block topics are created one after another, some a second, by a thread.

    :raises PromiseBroken: one can't be
    """
    creation, numbers = Creation(world), itertools.count()

    def one_more() -> None:
        with suppress(NoAnswer):  # whoever was asked is just being stopped
            creation.create(f"passing-{next(numbers)}", replicas)

    with meanwhile(one_more, every_s=0.5) as errors:
        yield creation
    if errors:
        raise PromiseBroken(f"topics could not be created all the while: {errors[0]}") from errors[0]
    creation.learn()
    world.check()


# --- empty ------------------------------------------------------------------------------------------------------------


def drain(world: World, *brokers: Broker) -> None:
    """All replicas of these brokers are reassigned to others, as an operator does before removing them.

    Each goes to that broker, of those that aren't wholly cordoned, that has the fewest, and none of the partition.

    :raises Inconclusive: one of them has nothing, or something that has no other place
    """
    cluster = world.cluster
    learn_kafkas_own(world)
    held = {each: sum(len(world.replicas_in(log_dir)) for log_dir in each.log_dirs) for each in cluster.brokers}
    if bare := [str(broker) for broker in brokers if not held[broker]]:
        raise Inconclusive(f"{', '.join(bare)}: nothing is there; to drain it shows nothing")
    open_ones = [each for each in cluster.others(*brokers) if not world.cordoned.issuperset(each.log_dirs)]
    placements = []
    for (topic, index), expected in world.partitions.items():
        on = [cluster.broker(id) for id in expected.replicas]
        for place in set(brokers).intersection(on):
            targets = [each for each in open_ones if each not in on]
            if not targets:
                raise Inconclusive(f"{topic}-{index} on {place} has no other place: {expected.replicas}")
            on[on.index(place)] = target = min(targets, key=held.__getitem__)
            held[target] += 1
        if any(broker.id in expected.replicas for broker in brokers):
            placements.append(Placement(partition=Partition(cluster, topic, index), on=tuple(on)))
    reassign_together(world, *placements)


def learn_kafkas_own(world: World) -> None:
    """The topics of Kafka itself, which clients bring about, are in the model too, whenever they came."""
    own = [state for state in world.strangers(world.cluster.describe()) if state.topic.startswith("__")]
    for name, states in itertools.groupby(own, key=lambda state: state.topic):
        world.learn(Topic(world.cluster, name, len(list(states))), cordoned=frozenset())


def placements_within(world: World, leaving: LogDir, staying: LogDir) -> list[Placement]:
    """All that is in one log dir, in another of the same broker, and elsewhere where it is."""
    learn_kafkas_own(world)
    placements = []
    for topic, index in sorted(world.replicas_in(leaving)):
        partition = Partition(world.cluster, topic, index)
        brokers = map(world.cluster.broker, world.expected(topic, index).replicas)
        on = tuple(staying if broker == leaving.broker else partition.log_dir_on(broker) for broker in brokers)
        placements.append(Placement(partition=partition, on=on))
    if not placements:
        raise Inconclusive(f"{leaving} has nothing; to empty it shows nothing")
    return placements


def check_empty(*log_dirs: LogDir) -> None:
    """Nothing is in these log dirs, by what their broker says and by the folders on disk.

    :raises PromiseBroken: something is, and stays
    """
    [broker] = {log_dir.broker for log_dir in log_dirs}
    paths = {str(log_dir.path) for log_dir in log_dirs}

    def found() -> list[str]:
        described = [state for state in broker.describe_log_dirs() if state.path in paths]
        replicas = [f"{r.topic}-{r.partition} in {state.path}" for state in described for r in state.replicas]
        return replicas + [str(path) for each in log_dirs for path in each.path.iterdir() if path.is_dir()]

    await_until(
        found,
        lambda left: not left,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{' and '.join(map(str, log_dirs))} to be empty",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    broker.journal.write("log_dirs.empty", log_dirs=sorted(paths))
