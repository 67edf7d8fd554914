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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.doors.admin import Refused
from harness.doors.tool_answers import Directories, dump_directories, dump_snapshot
from harness.doors.wire import NoAnswer
from harness.errors import AwaitTimeout, Inconclusive, PromiseBroken
from harness.journal import Journal, now
from harness.log_dir import LogDir
from harness.nodes.base import Node
from harness.quorum.kraft import KRaftQuorum
from harness.reassign import Placement
from harness.releases.versions import Mode, VersionRange
from harness.runs.measure import Floors
from harness.topic import Partition, Topic
from harness.waiting import await_until
from suites.checks import check_refused
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
    world.check(timeouts.RECOVERY_S)  # the broker may just have been started
    world.cluster.journal.write("cordon.in_force", broker=broker.id, log_dirs=[str(each) for each in log_dirs])


def await_known_to_controller(cluster: Cluster, broker: Broker, *log_dirs: LogDir) -> None:
    """The controller says in its log that these, and no others, are the broker's cordoned log dirs.

    In its log, where it tells each record of a registration that it has replayed: to dump its metadata log each time
    would start a JVM for what takes a tenth of a second. The dump is a source like others.

    :raises PromiseBroken: it never does
    """
    should = {log_dir.directory_id() for log_dir in log_dirs}
    await_until(
        lambda: cordons_told(words_since_starts(cluster, broker), broker.id),
        lambda ids: ids == should,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the controller to know {[str(each) for each in log_dirs]} as the cordoned log dirs of {broker}",
        failure=PromiseBroken,
    )


def words_since_starts(cluster: Cluster, broker: Broker) -> Iterator[str]:
    """What the controller says in its log since it and the broker were last started.

    Nothing before it is active again: until then it replays what once was so. What was so when it ended it has then
    said again, be it from its log or from a snapshot.
    """
    [controller] = cluster.quorum_nodes
    since = _last_start(cluster.journal, controller)
    if controller.log.first(ACTIVE, since=since):
        for line in controller.log.lines(since=max(since, _last_start(cluster.journal, broker.node))):
            yield line.text


ACTIVE = r"Becoming the active controller"


def _last_start(journal: Journal, node: Node) -> datetime:
    starts = (event["at"] for event in journal.of_kind("node.started") if event["node"] == node.spec.name)
    return datetime.fromisoformat(list(starts)[-1])


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


# --- the controller, ended and back -----------------------------------------------------------------------------------


def controller_restarted(cluster: Cluster) -> None:
    """The only controller is killed and started again, and is active.

    :raises Inconclusive: it isn't
    """
    [controller] = cluster.quorum_nodes
    controller.kill()
    controller.start()
    since = _last_start(cluster.journal, controller)
    await_until(
        lambda: controller.log.first(ACTIVE, since=since),
        timeout_s=timeouts.BOOT_S,
        what=f"{controller.spec.name} to say /{ACTIVE}/",
        watch=controller.check_alive,
        failure=Inconclusive,
    )


def restarted_with_snapshots(cluster: Cluster) -> Path:
    """The controller is killed and started again, and from now on writes snapshots of its metadata; the first one.

    :raises Inconclusive: it writes none
    """
    [controller] = cluster.quorum_nodes
    folder = quorum_of(cluster).metadata_log
    controller.configure({"metadata.log.max.snapshot.interval.ms": "1000"})
    before = set(folder.glob("*.checkpoint"))
    controller_restarted(cluster)
    return min(
        await_until(
            lambda: set(folder.glob("*.checkpoint")) - before,
            timeout_s=timeouts.PROGRESS_S,
            what=f"a snapshot in {folder}",
            watch=controller.check_alive,
            failure=Inconclusive,
        )
    )


def restarted_from_snapshot(cluster: Cluster, at_least: Path) -> None:
    """The controller is killed and started again, and begins with this snapshot of its metadata, or a later one.

    :raises Inconclusive: it doesn't
    """
    [controller] = cluster.quorum_nodes
    controller_restarted(cluster)
    line = controller.log.first(r"Starting to load snapshot", since=_last_start(cluster.journal, controller))
    loaded = line and re.search(r"snapshot (\d{20}-\d{10})", line.text)
    if not loaded or loaded[1] < at_least.stem:
        raise Inconclusive(f"the controller was to begin with {at_least.name} or a later one: {line and line.text}")
    cluster.journal.write("snapshot.loaded", snapshot=loaded[1], at_least=at_least.stem)


def check_in_snapshot(cluster: Cluster, snapshot: Path, broker: Broker, *log_dirs: LogDir) -> None:
    """The broker's registration in a snapshot of the metadata has these log dirs cordoned, and no others.

    :raises PromiseBroken: it hasn't
    """
    should = frozenset(log_dir.directory_id() for log_dir in log_dirs)
    seen = dump_snapshot(cluster.distribution, snapshot).registered_as_cordoned.get(broker.id)
    if seen != should:
        raise PromiseBroken(
            f"{snapshot.name} has {seen and sorted(seen)} of {broker} cordoned instead of {sorted(should)}"
        )


# --- refused ----------------------------------------------------------------------------------------------------------


def check_unmade(
    cluster: Cluster,
    topic: str,
    ask: Callable[[], object],
    error: str,
    saying: str,
    *,
    there: Sequence[tuple[int, ...]] = (),
) -> None:
    """Kafka refuses what is asked of a topic, and nothing comes of it.

    :param saying: a regular expression of the message
    :param there: the replicas of each partition that the topic has all the while; none: there is no such topic
    :raises PromiseBroken: it does it, or refuses otherwise, or does it in spite of what it says
    """
    check_refused(ask, error, saying)
    check_there(cluster, topic, there)


def check_there(cluster: Cluster, topic: str, there: Sequence[tuple[int, ...]]) -> None:
    """Every broker sees just these replicas of the topic's partitions, and none is being reassigned.

    What a broker hears of a config that is set now it hears after all that the controller wrote before.

    :raises PromiseBroken: one sees something else
    """
    for broker in cluster.live_brokers():
        broker.configure({"jbod.refused": topic})
        seen = [state.replicas for state in broker.admin.describe_cluster(topics=(topic,)).partitions]
        if seen != list(there):
            raise PromiseBroken(f"{topic} was refused, and {broker} sees it on {seen} instead of {list(there)}")
    if under_way := cluster.reassignments():
        raise PromiseBroken(f"{topic} was refused, and is being reassigned: {under_way}")


def answer_of(refusal: Refused) -> str:
    """A refusal's error; with its message where this should name the cordon and doesn't.

    "The INVALID_REPLICA_ASSIGNMENT error will be returned. […] The error message will be adjusted to specify the
    reason" (KIP-1066, "Error handling"); of INELIGIBLE_REPLICA only the controller's log is to have it.
    """
    silent = refusal.error == "INVALID_REPLICA_ASSIGNMENT" and "cordoned" not in (refusal.message or "")
    return f"{refusal.error} without the reason: {refusal.message}" if silent else refusal.error


# --- topics, all the while --------------------------------------------------------------------------------------------


class Creation:
    """Topics as they come, each with the log dirs that were cordoned all the while it was created.

    :ivar errors: what ended the thread that creates them
    """

    def __init__(self, world: World) -> None:
        self.errors: Sequence[Exception] = ()
        self._world = world
        self._new: deque[tuple[Topic, frozenset[LogDir]]] = deque()

    def create(self, name: str, replicas: int) -> None:
        """One more.

        Where nobody answers, since whoever was asked is just being stopped, others are asked until it is known to be
        there: it may have been created by who was asked first.
        """
        before = self._world.cordoned
        cluster = self._world.cluster
        try:
            topic = cluster.create_topic(name, replicas=replicas)
        except NoAnswer:
            await_until(
                lambda: self._exists(name, replicas),
                timeout_s=timeouts.PROGRESS_S,
                what=f"{name} to be created, for which nobody answered",
                retry_on=(NoAnswer,),
            )
            [topic] = cluster.await_topics({name: 1})
        self._new.append((topic, before & self._world.cordoned))

    def _exists(self, name: str, replicas: int) -> bool:
        """It is there when it has been asked for once more."""
        try:
            self._world.cluster.create_topic(name, replicas=replicas)
        except Refused as refusal:
            if refusal.error != "TOPIC_ALREADY_EXISTS":
                raise
        return True

    def check_going(self) -> None:
        """Topics are created all the while.

        :raises PromiseBroken: one was refused
        """
        for error in self.errors:
            if isinstance(error, Refused):
                raise PromiseBroken(f"a topic could not be created all the while: {error}") from error
            raise error

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
            retry_on=(NoAnswer, KeyError, AwaitTimeout),  # a broker that was just started may not know it yet
            watch=self.check_going,
            failure=Inconclusive,
        )
        self._world.cluster.journal.write("topics.learnt", topics=[topic.name for topic in learnt])
        return learnt


@contextmanager
def topics_created(world: World, *, replicas: int = 2) -> Iterator[Creation]:
    """Inside the block topics are created one after another, some a second, by a thread.

    :raises PromiseBroken: one is refused; also where the block fails for another reason
    """
    creation, numbers = Creation(world), itertools.count()
    try:
        with meanwhile(lambda: creation.create(f"passing-{next(numbers)}", replicas), every_s=0.5) as creation.errors:
            yield creation
    except Exception:
        if any(isinstance(error, Refused) for error in creation.errors):
            creation.check_going()
        raise
    creation.learn()
    world.check()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A topic that was asked for, whether it was made, and when asked and answered."""

    name: str
    at: datetime
    answered: datetime
    made: bool


@contextmanager
def wide_topics_asked_for(cluster: Cluster, via: Broker) -> Iterator[Sequence[Asked]]:
    """Inside the block topics with a replica on each broker are asked for as quickly as they can be, by a thread.

    A broker that is fenced is given replicas too where no others are left, unless it is wholly cordoned.
    """
    asked, numbers = list[Asked](), itertools.count()

    def one_more() -> None:
        name, at = f"wide-{next(numbers)}", now()
        try:
            via.admin.create_topic(name, partitions=1, replicas=len(cluster.brokers))
            made = True
        except Refused as refusal:
            if refusal.error != "INVALID_REPLICATION_FACTOR":
                raise
            made = False
        asked.append(Asked(name=name, at=at, answered=now(), made=made))

    with meanwhile(one_more, every_s=0.005) as errors:
        yield asked
    if errors:
        raise errors[0]


def made_unheeded(asked: Sequence[Asked], *, down: datetime, started: datetime, known: datetime) -> list[Asked]:
    """The topics that were made after a wholly cordoned broker was started and before the controller knew its cordons.

    :param down: from then on it did not run
    :param known: from then on the controller knew
    :raises PromiseBroken: one was made while it was down, its cordons being in the metadata log, or after that
    :raises Inconclusive: none was asked for in one of the three times
    """
    while_down = [each for each in asked if down <= each.at and each.answered <= started]
    between = [each for each in asked if started < each.answered and each.at <= known]
    afterwards = [each for each in asked if known < each.at]
    if not (while_down and between and afterwards):
        counts = f"{len(while_down)} before it was started, {len(between)} meanwhile, {len(afterwards)} afterwards"
        raise Inconclusive(f"too few topics were asked for: {counts}")
    if wrong := [each.name for each in (*while_down, *afterwards) if each.made]:
        raise PromiseBroken(f"{wrong} came to a broker that the controller knew to be wholly cordoned")
    return [each for each in between if each.made]


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
