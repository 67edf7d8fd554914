"""Who can be asked where everything is: each source's answer, compared with the model
(:class:`suites.expected_state.Model`).

A source is two small functions: one asks, one compares what was said with the model and names every difference, source
first. Comparing is pure, so that it can be tried on answers of real brokers with an expectation that is wrong. All
sources are compared with the one model, which is to compare them with each other.

:data:`AT_EACH_STEP` costs milliseconds a broker, and a session of ZooKeeper. :data:`AT_EACH_AGREEMENT` are those of
Kafka's own programs that an operator looks with, for some 10 ms each. Others, such as reading KRaft's metadata log, are
asked where a scenario wants them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.kafka import tool_answers
from harness.kafka.mbeans import BrokerMetrics
from harness.kafka.metadata import ClusterState, LogDirState
from harness.kafka.tool_answers import DescribedPartition, Directories, Key
from harness.kafka.versions import Mode
from suites.deviations import (
    CORDONS_NOT_PRINTED,
    OFFLINE_REPLICAS_COUNTED_LATE,
    OFFLINE_REPLICAS_UNCOUNTED,
)
from suites.expected_state import Model
from suites.observing import expects, observe

Source = Callable[[Model], Iterator[str]]
LED_ANEW = "though nothing has touched it"
"""Said of a leader epoch that is another than it was."""
LED_OTHERWISE = re.compile(rf": leader \d+ instead of \d+$|{LED_ANEW}$")
"""A difference that is all about who leads, or since when."""


# --- processes ------------------------------------------------------------------------------------------------------


def processes(world: Model) -> Iterator[str]:
    """The process table."""
    for broker in world.cluster.brokers:
        if broker.is_running == (broker.id in world.dead - world.cluster.unreachable):
            yield f"{broker} {'runs' if broker.is_running else 'does not run'}"


# --- what every broker says over the wire ---------------------------------------------------------------------------


def metadata(world: Model) -> Iterator[str]:
    """Every live broker's Metadata response."""
    for broker, seen in world.told_by_each(lambda broker: broker.describe_cluster()):
        yield from compare_metadata(world, broker, seen)


def compare_metadata(world: Model, broker: Broker, seen: ClusterState) -> Iterator[str]:
    """Members, and every partition's leader, replicas, ISR and offline replicas; the leader epoch where it may not
    have changed.
    """
    alive = tuple(each.id for each in world.live_brokers())
    if seen.brokers != alive:
        yield f"{broker} sees brokers {list(seen.brokers)} instead of {list(alive)}"
    described = {(state.topic, state.partition): state for state in seen.partitions}
    for key, expected in world.partitions.items():
        difference = expected.disagreement(described[key]) if key in described else "no such partition"
        if difference:
            yield f"{broker} sees {name(key)}: {difference}"
        elif described[key].leader_epoch != (epoch := world.leader_epochs.get(key, described[key].leader_epoch)):
            yield (
                f"{broker} sees {name(key)}: leader epoch {described[key].leader_epoch} instead of {epoch}, {LED_ANEW}"
            )


def log_dirs(world: Model) -> Iterator[str]:
    """Every live broker's DescribeLogDirs response."""
    for broker, seen in world.told_by_each(lambda broker: broker.describe_log_dirs()):
        yield from compare_log_dirs(world, broker, seen, by=str(broker))


def compare_log_dirs(world: Model, broker: Broker, seen: tuple[LogDirState, ...], *, by: str) -> Iterator[str]:
    """Every log dir is described, in the right state, with the replicas that belong there and no others of ours.

    Whether it is cordoned is not compared where it is offline: KIP-1066 is silent on that.
    """
    described = {state.path: state for state in seen}
    for log_dir in broker.log_dirs:
        state = described.get(str(log_dir.path))
        if state is None:
            yield f"{by} does not describe {log_dir}"
        elif state.offline != (log_dir in world.failed):
            yield f"{by} describes {log_dir} as {state.error or 'online'}"
        elif not state.offline:
            if state.is_cordoned is not None and state.is_cordoned != (log_dir in world.cordoned):
                yield f"{by} describes {log_dir} as {'' if state.is_cordoned else 'not '}cordoned"
            holds = {(replica.topic, replica.partition) for replica in state.replicas if not replica.is_future}
            copies = {(replica.topic, replica.partition) for replica in state.replicas if replica.is_future}
            yield from _strays(world, log_dir, holds, by=by)
            yield from _missing_copies(world, log_dir, copies, by=by)


def _strays(world: Model, log_dir: LogDir, holds: set[Key], *, by: str) -> Iterator[str]:
    should = world.replicas_in(log_dir) | world.left_behind_in(log_dir)
    for key in sorted(should - holds):
        yield f"{by} has no {name(key)} in {log_dir}"
    for key in sorted((holds - should) & set(world.partitions)):
        yield f"{by} has a {name(key)} in {log_dir}"


def _missing_copies(world: Model, log_dir: LogDir, copies: set[Key], *, by: str) -> Iterator[str]:
    """Of the moves that are held; others may come to their end at any time."""
    for key in sorted(world.copies_in(log_dir) - copies):
        yield f"{by} has no copy of {name(key)} on its way into {log_dir}"


# --- files ----------------------------------------------------------------------------------------------------------


def folders(world: Model) -> Iterator[str]:
    """The folders on disk, in the good log dirs of live brokers."""
    for broker in world.live_brokers():
        for log_dir in broker.log_dirs:
            if log_dir not in world.failed:
                yield from compare_folders(world, log_dir, [path.name for path in log_dir.path.iterdir()])


def compare_folders(world: Model, log_dir: LogDir, seen: list[str]) -> Iterator[str]:
    """A folder of each replica that belongs there, and of no other of ours; ``-delete`` and ``-future`` are none.

    But a ``-future`` of each move into it that is held.
    """
    holds = {key for key in world.partitions if name(key) in seen}
    marked = {folder.partition(".")[0] for folder in seen if folder.endswith("-future")}
    yield from _strays(world, log_dir, holds, by="the disk")
    yield from _missing_copies(world, log_dir, {key for key in world.partitions if name(key) in marked}, by="the disk")


# --- MBeans ---------------------------------------------------------------------------------------------------------


def mbeans(world: Model) -> Iterator[str]:
    """Every live broker's MBeans, and the active controller's."""
    if not world.cluster.spec.mbeans:
        return
    elsewhere = world.cluster.describe()
    for broker in world.live_brokers():
        assert broker.mbeans is not None
        yield from judge_mbeans(world, broker, broker.mbeans.describe_broker(), elsewhere)
    yield from compare_offline_partitions(world, world.cluster.offline_partitions(), elsewhere)


def judge_mbeans(world: Model, broker: Broker, seen: BrokerMetrics, elsewhere: ClusterState) -> list[str]:
    """What differs in a broker's MBeans from what its build is known for; where nothing does, that is noted."""
    cordons = world.cluster.distribution.version.has_cordoned_log_dirs
    uncounted = expects(OFFLINE_REPLICAS_UNCOUNTED, world.cluster, lambda: seen.offline_replicas == 0)
    if differences := [*compare_mbeans(world, broker, seen, elsewhere, uncounted=uncounted, cordons=cordons)]:
        return differences
    should = offline_replicas(world, broker, elsewhere)
    told = f"OfflineReplicaCount {seen.offline_replicas} instead of {should}"
    if broker.id not in world.started_wounded:
        if any(broker.id in expected.offline for expected in world.partitions.values()):
            observe(OFFLINE_REPLICAS_UNCOUNTED, world.cluster, deviates=uncounted, seen=told)
    elif not uncounted and seen.offline_replicas < should:
        observe(OFFLINE_REPLICAS_COUNTED_LATE, world.cluster, deviates=True, seen=told)
    return []


def compare_mbeans(
    world: Model, broker: Broker, seen: BrokerMetrics, elsewhere: ClusterState, *, uncounted: bool, cordons: bool
) -> Iterator[str]:
    """OfflineLogDirectoryCount, LogDirectoryOffline, OfflineReplicaCount (of logs "on the bad log directories").

    And from 4.3 on CordonedLogDirectoryCount and LogDirectoryCordoned. OfflineReplicaCount of a broker that found a log
    dir bad when it started may be less (:data:`suites.deviations.OFFLINE_REPLICAS_COUNTED_LATE`).

    :param elsewhere: the cluster by the wire, for topics that the model doesn't know
    :param uncounted: :data:`suites.deviations.OFFLINE_REPLICAS_UNCOUNTED` is expected of the build
    :param cordons: the build must have the two of KIP-1066
    """
    by = f"the MBeans of {broker} say"
    failed = {str(log_dir.path): log_dir in world.failed for log_dir in broker.log_dirs}
    if dict(seen.log_dir_offline) != failed:
        yield f"{by} LogDirectoryOffline {_names(seen.log_dir_offline)} instead of {_names(failed)}"
    if seen.offline_log_dirs != sum(failed.values()):
        yield f"{by} OfflineLogDirectoryCount {seen.offline_log_dirs} instead of {sum(failed.values())}"
    if cordons:
        cordoned = {str(log_dir.path): log_dir in world.cordoned for log_dir in broker.log_dirs}
        if dict(seen.log_dir_cordoned) != cordoned:
            yield f"{by} LogDirectoryCordoned {_names(seen.log_dir_cordoned)} instead of {_names(cordoned)}"
        if seen.cordoned_log_dirs != sum(cordoned.values()):
            yield f"{by} CordonedLogDirectoryCount {seen.cordoned_log_dirs} instead of {sum(cordoned.values())}"
    should = 0 if uncounted else offline_replicas(world, broker, elsewhere)
    least = 0 if broker.id in world.started_wounded else should
    if not least <= seen.offline_replicas <= should:
        mended = f"; {OFFLINE_REPLICAS_UNCOUNTED.gone}" if uncounted else ""
        yield f"{by} OfflineReplicaCount {seen.offline_replicas} instead of {should}{mended}"


def offline_replicas(world: Model, broker: Broker, elsewhere: ClusterState) -> int:
    """How many replicas the broker has on its failed log dirs, also of topics that the model doesn't know, and those
    that a reassignment or the deletion of their topic left there.
    """
    replicas = [key for key, expected in world.partitions.items() if broker.id in expected.offline]
    strangers = [state for state in world.strangers(elsewhere) if broker.id in state.offline_replicas]
    failed = [log_dir for log_dir in broker.log_dirs if log_dir in world.failed]
    left = [key for log_dir in failed for key in world.left_behind_in(log_dir) | world.undeleted_in(log_dir)]
    return len(replicas) + len(strangers) + len(left)


def _names(offline: Mapping[str, bool]) -> dict[str, int]:
    return {Path(path).name: int(value) for path, value in sorted(offline.items())}


def compare_offline_partitions(world: Model, seen: int, elsewhere: ClusterState) -> Iterator[str]:
    """OfflinePartitionsCount: the partitions that nobody leads, of topics that the model doesn't know too."""
    leaderless = [key for key, expected in world.partitions.items() if expected.leader is None]
    strangers = [state for state in world.strangers(elsewhere) if state.leader is None]
    should = len(leaderless) + len(strangers)
    if seen != should:
        yield f"the controller's MBean says OfflinePartitionsCount {seen} instead of {should}"


# --- Kafka's own programs -------------------------------------------------------------------------------------------


def topics_tool(world: Model) -> Iterator[str]:
    """``kafka-topics --describe``."""
    seen = tool_answers.describe_topics(world.cluster.distribution, world.bootstrap())
    yield from compare_topics(world, seen, by="kafka-topics --describe shows")


def compare_topics(world: Model, seen: Mapping[Key, DescribedPartition], *, by: str) -> Iterator[str]:
    """Every partition's leader, replicas and ISR; of offline replicas neither kafka-topics nor ZooKeeper has a word."""
    for key, expected in world.partitions.items():
        state = seen.get(key)
        difference = "no such partition" if state is None else expected.disagreement(state)
        if difference:
            yield f"{by} {name(key)}: {difference}"


def under_replicated_tool(world: Model) -> Iterator[str]:
    """``kafka-topics --describe --under-replicated-partitions``."""
    option = "--under-replicated-partitions"
    seen = tool_answers.describe_topics(world.cluster.distribution, world.bootstrap(), option)
    yield from compare_under_replicated(world, set(seen))


def compare_under_replicated(world: Model, seen: set[Key]) -> Iterator[str]:
    """Those with a smaller ISR than assignment; where nobody leads, nobody promises an ISR."""
    sure = {key: expected.isr for key, expected in world.partitions.items() if expected.isr is not None}
    should = {key for key, isr in sure.items() if len(isr) < len(world.partitions[key].replicas)}
    yield from _listed("kafka-topics --under-replicated-partitions", seen & set(sure), should)


def unavailable_tool(world: Model) -> Iterator[str]:
    """``kafka-topics --describe --unavailable-partitions``."""
    option = "--unavailable-partitions"
    seen = tool_answers.describe_topics(world.cluster.distribution, world.bootstrap(), option)
    yield from compare_unavailable(world, set(seen))


def compare_unavailable(world: Model, seen: set[Key]) -> Iterator[str]:
    """Those that nobody leads."""
    should = {key for key, expected in world.partitions.items() if expected.leader is None}
    yield from _listed("kafka-topics --unavailable-partitions", seen & set(world.partitions), should)


def _listed(by: str, seen: set[Key], should: set[Key]) -> Iterator[str]:
    if seen != should:
        yield f"{by} lists {[*map(name, sorted(seen))]} instead of {[*map(name, sorted(should))]}"


def log_dirs_tool(world: Model) -> Iterator[str]:
    """``kafka-log-dirs --describe`` of the live brokers."""
    brokers = world.live_brokers()
    ids = [broker.id for broker in brokers]
    seen = tool_answers.describe_log_dirs(world.cluster.distribution, world.bootstrap(), ids)
    for broker in brokers:
        yield from compare_log_dirs(world, broker, seen.get(broker.id, ()), by=f"kafka-log-dirs of {broker}")
    if world.cluster.distribution.version.has_cordoned_log_dirs:
        yield from judge_printed_cordons(world.cluster, seen)


def judge_printed_cordons(cluster: Cluster, seen: Mapping[int, tuple[LogDirState, ...]]) -> list[str]:
    """What differs in whether kafka-log-dirs says of log dirs if they are cordoned from what the build is known for;
    where nothing does, that is noted.
    """
    printed = any(state.is_cordoned is not None for states in seen.values() for state in states)
    unprinted = expects(CORDONS_NOT_PRINTED, cluster, lambda: not printed)
    differences = [*compare_printed_cordons(seen, printed=not unprinted)]
    if not differences:
        told = "no word of cordons for any log dir" if unprinted else "whether each log dir is cordoned"
        observe(CORDONS_NOT_PRINTED, cluster, deviates=unprinted, seen=told)
    return differences


def compare_printed_cordons(seen: Mapping[int, tuple[LogDirState, ...]], *, printed: bool) -> Iterator[str]:
    """Whether kafka-log-dirs says of each log dir if it is cordoned; that it says so rightly is checked elsewhere.

    :param printed: False: :data:`suites.deviations.CORDONS_NOT_PRINTED` is expected of the build
    """
    said = [state.is_cordoned is not None for states in seen.values() for state in states]
    if printed and not all(said):
        yield f"kafka-log-dirs doesn't say of {said.count(False)} of {len(said)} log dirs whether they are cordoned"
    if not printed and any(said):
        yield CORDONS_NOT_PRINTED.gone


def configs_tool(world: Model) -> Iterator[str]:
    """``kafka-configs --describe --all``; where cordons are by configuration and all brokers run."""
    yield from compare_configs(
        world, tool_answers.describe_broker_configs(world.cluster.distribution, world.bootstrap())
    )


def compare_configs(world: Model, seen: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    """Each live broker's ``cordoned.log.dirs`` names those that are, with ``*`` for all."""
    for broker in world.live_brokers():
        value = seen.get(broker.id, {}).get("cordoned.log.dirs")
        everything = {str(log_dir.path) for log_dir in broker.log_dirs}
        should = {str(log_dir.path) for log_dir in broker.log_dirs if log_dir in world.cordoned}
        named = everything if value == "*" else {each.strip() for each in (value or "").split(",")} - {""}
        if value is None or named != should:
            yield f"kafka-configs shows cordoned.log.dirs={value} of {broker} instead of {sorted(should)}"


def znodes(world: Model) -> Iterator[str]:
    """ZooKeeper: the partitions' znodes, where the controller keeps them."""
    quorum = world.cluster.quorum
    if isinstance(quorum, ZooKeeperQuorum):
        yield from compare_topics(world, quorum.partitions(), by="ZooKeeper has")


def metadata_log(world: Model) -> Iterator[str]:
    """KRaft: the brokers' registrations and the partitions' directories in the active controller's metadata log."""
    if isinstance(world.cluster.quorum, KRaftQuorum):
        seen = directories(world.cluster)
        good = [d for broker in world.live_brokers() for d in broker.log_dirs if d not in world.failed]
        yield from compare_registrations(world, {log_dir: log_dir.directory_id() for log_dir in good}, seen)


def directories(cluster: Cluster) -> Directories:
    """KRaft: what the active controller's metadata log says of brokers, and of the log dirs of replicas."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    metadata_log = cluster.quorum.metadata_log(cluster.active_controller())
    return tool_answers.dump_directories(cluster.distribution, metadata_log)


def compare_registrations(world: Model, ids: Mapping[LogDir, str], seen: Directories) -> Iterator[str]:
    """A live broker is registered with its good log dirs, and each replica in one of them is assigned to it.

    :param ids: the ``directory.id`` of each good log dir of a live broker
    """
    for broker in world.live_brokers():
        should = {id for log_dir, id in ids.items() if log_dir.broker.id == broker.id}
        online = seen.online.get(broker.id, frozenset())
        if online != should:
            yield f"the metadata log registers {broker} with {sorted(online)} instead of {sorted(should)}"
        cordoned = {id for log_dir, id in ids.items() if log_dir.broker.id == broker.id and log_dir in world.cordoned}
        said = seen.cordoned.get(broker.id, frozenset()) & should
        if said != cordoned:
            yield f"the metadata log has {sorted(said)} of {broker} cordoned instead of {sorted(cordoned)}"
    for log_dir, id in ids.items():
        for key in sorted(world.replicas_in(log_dir)):
            assigned = seen.assigned.get(key, {}).get(log_dir.broker.id)
            if assigned != id:
                yield f"the metadata log assigns {name(key)} on {log_dir.broker} to {assigned} instead of {id}"


def name(key: Key) -> str:
    """``orders-0``, as Kafka writes a partition and its folder."""
    return f"{key[0]}-{key[1]}"


AT_EACH_STEP: tuple[Source, ...] = (processes, metadata, log_dirs, folders, mbeans, znodes)
TOPICS_TOOLS: tuple[Source, ...] = (topics_tool, under_replicated_tool, unavailable_tool)
AT_EACH_AGREEMENT: tuple[Source, ...] = (*TOPICS_TOOLS, log_dirs_tool)
"""Asked at each step too, as soon as all of those agree."""
OF_ONE_MODE: Mapping[Source, Mode] = {znodes: Mode.ZK, metadata_log: Mode.KRAFT}
"""Those that have nothing to say in the other mode."""
