"""The sources that show where replicas are, each compared with :class:`suites.expected_state.ExpectedState`.

A source is two functions: one asks, the other compares the answer with the expected state. The second names every
difference, source first. It is pure, so tests can run it on stored answers of real brokers.

:data:`FAST_SOURCES` take some milliseconds for each broker; in ZooKeeper mode they also open one session.
:data:`TOOL_SOURCES` are the tools that an operator uses; each takes some 10 ms. Other sources, such as KRaft's metadata
log, are asked where a scenario wants them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.migration import is_migrating
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.errors import PromiseBroken
from harness.kafka import tool_answers
from harness.kafka.java_client import cordoned_flags
from harness.kafka.mbeans import BrokerMetrics
from harness.kafka.metadata import ClusterState, LogDirState
from harness.kafka.tool_answers import DescribedPartition, Directories, Key
from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Expectation
from suites.deviations import (
    CORDONS_NOT_PRINTED,
    DEAD_SHOWN_ALIVE,
    OFFLINE_REPLICAS_COUNTED_LATE,
    OFFLINE_REPLICAS_UNCOUNTED,
)
from suites.expected_state import ExpectedState
from suites.observing import expectation_of, expects, observe
from suites.replica_mbeans import compare_replica_mbeans

Source = Callable[[ExpectedState], Iterator[str]]
UNTOUCHED = "though nothing has touched it"
"""The end of a difference about a leader epoch that should not have changed."""
FORGETS_OFFLINE_LOGS = VersionRange.parse(">=2.8")
"""The builds that remove the MBeans of a log whose log dir has failed; 2.6 does not."""
LEADERSHIP_DIFFERS = re.compile(rf": leader \d+ instead of \d+$|{UNTOUCHED}$")
"""A difference that is only about the leader or the leader epoch."""


# --- processes ------------------------------------------------------------------------------------------------------


def processes(state: ExpectedState) -> Iterator[str]:
    """The process table."""
    for broker in state.cluster.brokers:
        if broker.is_running == (broker.id in state.dead - state.cluster.unreachable):
            yield f"{broker} {'runs' if broker.is_running else 'does not run'}"


# --- requests to every broker ---------------------------------------------------------------------------------------


def metadata(state: ExpectedState) -> Iterator[str]:
    """Every live broker's Metadata response."""
    for broker, seen in state.ask_each_broker(lambda broker: broker.describe_cluster()):
        yield from judge_metadata(state, broker, seen)


def judge_metadata(state: ExpectedState, broker: Broker, seen: ClusterState) -> list[str]:
    """The differences of a broker's Metadata response from what its build should show.

    Without differences, :data:`suites.deviations.DEAD_SHOWN_ALIVE` is noted if it shows.
    """
    cluster = state.cluster
    may_deviate = cluster.spec.mode is Mode.KRAFT and is_migrating(broker) and bool(state.dead or state.failed)
    no_offline = not any(each.offline_replicas for each in seen.partitions)
    deviates = may_deviate and expects(DEAD_SHOWN_ALIVE, cluster, lambda: no_offline, on=broker)
    differences = [*compare_metadata(state, broker, seen, dead_shown=deviates)]
    if may_deviate and not differences:
        shown = f"the brokers {list(seen.brokers)} and {'no' if no_offline else 'some'} offline replicas"
        observe(DEAD_SHOWN_ALIVE, cluster, deviates=deviates, seen=shown, on=broker)
    return differences


def compare_metadata(
    state: ExpectedState, broker: Broker, seen: ClusterState, *, dead_shown: bool = False
) -> Iterator[str]:
    """The live brokers, and every partition's leader, replicas, ISR and offline replicas.

    The leader epoch is compared where no event has touched the partition.

    :param dead_shown: the build is expected to show :data:`suites.deviations.DEAD_SHOWN_ALIVE`
    """
    alive = tuple(each.id for each in (state.cluster.brokers if dead_shown else state.live_brokers()))
    if seen.brokers != alive:
        yield f"{broker} sees brokers {list(seen.brokers)} instead of {list(alive)}"
    described = {(each.topic, each.partition): each for each in seen.partitions}
    for key, was in state.partitions.items():
        expected = replace(was, offline=frozenset()) if dead_shown else was
        difference = expected.disagreement(described[key]) if key in described else "no such partition"
        if difference:
            yield f"{broker} sees {name(key)}: {difference}"
        elif described[key].leader_epoch != (epoch := state.leader_epochs.get(key, described[key].leader_epoch)):
            yield (
                f"{broker} sees {name(key)}: leader epoch {described[key].leader_epoch} instead of {epoch}, {UNTOUCHED}"
            )


def log_dirs(state: ExpectedState) -> Iterator[str]:
    """Every live broker's DescribeLogDirs response."""
    for broker, seen in state.ask_each_broker(lambda broker: broker.describe_log_dirs()):
        yield from compare_log_dirs(state, broker, seen, by=str(broker))


def compare_log_dirs(state: ExpectedState, broker: Broker, seen: tuple[LogDirState, ...], *, by: str) -> Iterator[str]:
    """Every log dir is described, in the right state, with exactly the known replicas that should be there.

    Whether an offline log dir is cordoned is not compared: KIP-1066 does not say what a broker shows then.
    """
    described = {each.path: each for each in seen}
    for log_dir in broker.log_dirs:
        shown = described.get(str(log_dir.path))
        if shown is None:
            yield f"{by} does not describe {log_dir}"
        elif shown.offline != (log_dir in state.failed):
            yield f"{by} describes {log_dir} as {shown.error or 'online'}"
        elif not shown.offline:
            if shown.is_cordoned is not None and shown.is_cordoned != (log_dir in state.cordoned):
                yield f"{by} describes {log_dir} as {'' if shown.is_cordoned else 'not '}cordoned"
            holds = {(replica.topic, replica.partition) for replica in shown.replicas if not replica.is_future}
            future = {(replica.topic, replica.partition) for replica in shown.replicas if replica.is_future}
            yield from _compare_replicas(state, log_dir, holds, by=by)
            yield from _missing_future_replicas(state, log_dir, future, by=by)


def _compare_replicas(state: ExpectedState, log_dir: LogDir, holds: set[Key], *, by: str) -> Iterator[str]:
    should = state.replicas_in(log_dir) | state.left_behind_in(log_dir)
    for key in sorted(should - holds):
        yield f"{by} has no {name(key)} in {log_dir}"
    for key in sorted((holds - should) & set(state.partitions)):
        yield f"{by} has a {name(key)} in {log_dir}"


def _missing_future_replicas(state: ExpectedState, log_dir: LogDir, future: set[Key], *, by: str) -> Iterator[str]:
    """Compares the future replicas of held moves only: other moves may end at any time."""
    for key in sorted(state.future_replicas_in(log_dir) - future):
        yield f"{by} has no future replica of {name(key)} in {log_dir}"


# --- files ----------------------------------------------------------------------------------------------------------


def folders(state: ExpectedState) -> Iterator[str]:
    """The folders on disk, in the good log dirs of live brokers."""
    for broker in state.live_brokers():
        for log_dir in broker.log_dirs:
            if log_dir not in state.failed:
                yield from compare_folders(state, log_dir, [path.name for path in log_dir.path.iterdir()])


def compare_folders(state: ExpectedState, log_dir: LogDir, seen: list[str]) -> Iterator[str]:
    """One folder for each replica that should be there, and a ``-future`` folder for each held move into the log dir.

    Folders that end in ``-delete`` or ``-future`` are not replicas.
    """
    holds = {key for key in state.partitions if name(key) in seen}
    marked = {folder.rpartition(".")[0] for folder in seen if folder.endswith("-future")}
    yield from _compare_replicas(state, log_dir, holds, by="the disk")
    yield from _missing_future_replicas(
        state, log_dir, {key for key in state.partitions if name(key) in marked}, by="the disk"
    )


# --- MBeans ---------------------------------------------------------------------------------------------------------


def mbeans(state: ExpectedState) -> Iterator[str]:
    """Every live broker's MBeans, and the active controller's."""
    if not state.cluster.spec.mbeans:
        return
    elsewhere = state.cluster.describe()
    for broker in state.live_brokers():
        assert broker.mbeans is not None
        yield from judge_mbeans(state, broker, broker.mbeans.describe_broker(), elsewhere)
        yield from compare_replica_mbeans(state, broker, broker.mbeans.describe_replicas(), elsewhere)
        if _offline_on(state, broker) and state.cluster.distribution.version in FORGETS_OFFLINE_LOGS:
            yield from compare_log_mbeans(state, broker, broker.mbeans.logs())
    if state.cluster.spec.mode is Mode.ZK:
        yield from compare_offline_partitions(state, state.cluster.offline_partitions(), elsewhere)
        return
    controller = state.cluster.mbeans[state.cluster.active_controller().spec.name]
    yield from compare_controller_counts(state, controller.controller_counts(), elsewhere)


def judge_mbeans(state: ExpectedState, broker: Broker, seen: BrokerMetrics, elsewhere: ClusterState) -> list[str]:
    """The differences of a broker's MBeans from what its build should show.

    If there are none, :data:`suites.deviations.OFFLINE_REPLICAS_COUNTED_LATE` is noted if it shows.
    :data:`suites.deviations.OFFLINE_REPLICAS_UNCOUNTED` shows in every case with a failed log dir. So it is noted only
    by the scenario that declares it.
    """
    uncounted = expects(OFFLINE_REPLICAS_UNCOUNTED, state.cluster, lambda: seen.offline_replicas == 0, on=broker)
    differences = compare_mbeans(
        state,
        broker,
        seen,
        elsewhere,
        uncounted=uncounted,
        late=expectation_of(OFFLINE_REPLICAS_COUNTED_LATE, state.cluster, on=broker) is not Expectation.NONE,
        cordons=broker.build.version.has_cordoned_log_dirs,
    )
    if found := [*differences, *compare_replica_counts(state, broker, seen, elsewhere)]:
        return found
    should = offline_replicas(state, broker, elsewhere) - len(unassigned_offline_replicas(state, broker))
    if not uncounted and broker.id in state.updated_since_start and seen.offline_replicas < should:
        shown = f"OfflineReplicaCount {seen.offline_replicas} instead of {should}"
        observe(OFFLINE_REPLICAS_COUNTED_LATE, state.cluster, deviates=True, seen=shown, on=broker)
    return []


def compare_mbeans(
    state: ExpectedState,
    broker: Broker,
    seen: BrokerMetrics,
    elsewhere: ClusterState,
    *,
    uncounted: bool,
    cordons: bool,
    late: bool = False,
) -> Iterator[str]:
    """Compares OfflineLogDirectoryCount, LogDirectoryOffline and OfflineReplicaCount (KIP-112, "Metrics").

    From 4.3 on also CordonedLogDirectoryCount and LogDirectoryCordoned.

    :param elsewhere: the cluster's metadata, for topics that are not in the expected state
    :param uncounted: the build is expected to show :data:`suites.deviations.OFFLINE_REPLICAS_UNCOUNTED`
    :param late: the build may show :data:`suites.deviations.OFFLINE_REPLICAS_COUNTED_LATE`
    :param cordons: the build must have the two MBeans of KIP-1066
    """
    by = f"the MBeans of {broker} say"
    failed = {str(log_dir.path): log_dir in state.failed for log_dir in broker.log_dirs}
    if dict(seen.log_dir_offline) != failed:
        yield f"{by} LogDirectoryOffline {_names(seen.log_dir_offline)} instead of {_names(failed)}"
    if seen.offline_log_dirs != sum(failed.values()):
        yield f"{by} OfflineLogDirectoryCount {seen.offline_log_dirs} instead of {sum(failed.values())}"
    if cordons:
        cordoned = {str(log_dir.path): log_dir in state.cordoned for log_dir in broker.log_dirs}
        if dict(seen.log_dir_cordoned) != cordoned:
            yield f"{by} LogDirectoryCordoned {_names(seen.log_dir_cordoned)} instead of {_names(cordoned)}"
        if seen.cordoned_log_dirs != sum(cordoned.values()):
            yield f"{by} CordonedLogDirectoryCount {seen.cordoned_log_dirs} instead of {sum(cordoned.values())}"
    should = 0 if uncounted else offline_replicas(state, broker, elsewhere)
    least = 0 if uncounted else least_offline_replicas(state, broker, should, late=late)
    if not least <= seen.offline_replicas <= should:
        gone = f"; {OFFLINE_REPLICAS_UNCOUNTED.gone}" if uncounted else ""
        wanted = should if least == should else f"{least} to {should}"
        yield f"{by} OfflineReplicaCount {seen.offline_replicas} instead of {wanted}{gone}"


def compare_replica_counts(
    state: ExpectedState, broker: Broker, seen: BrokerMetrics, elsewhere: ClusterState
) -> Iterator[str]:
    """Compares LeaderCount, UnderReplicatedPartitions and PartitionCount.

    A partition of an unknown topic that is being reassigned need not count as under-replicated. PartitionCount is not
    compared where a broker has a replica that it should not have, or may count one in a failed log dir.

    :param elsewhere: the cluster's metadata, for topics that are not in the expected state
    """
    by, id = f"the MBeans of {broker} say", broker.id
    unknown = state.unknown_partitions(elsewhere)
    led = {key: expected for key, expected in state.partitions.items() if expected.leader == id}
    led_elsewhere = [each for each in unknown if each.leader == id]
    if seen.leaders != (should := len(led) + len(led_elsewhere)):
        yield f"{by} LeaderCount {seen.leaders} instead of {should}"
    least = sum(len(each.isr or ()) < len(each.replicas) for each in led.values())
    most = least + sum(each.under_replicated for each in led_elsewhere)
    if not least <= seen.under_replicated <= most:
        wanted = least if least == most else f"{least} to {most}"
        yield f"{by} UnderReplicatedPartitions {seen.under_replicated} instead of {wanted}"
    if any(log_dir in state.failed or state.left_behind_in(log_dir) for log_dir in broker.log_dirs):
        return
    assignments = [each.replicas for each in state.partitions.values()] + [each.replicas for each in unknown]
    should = sum(id in replicas for replicas in assignments)
    if seen.partitions != should:
        yield f"{by} PartitionCount {seen.partitions} instead of {should}"


def compare_log_mbeans(state: ExpectedState, broker: Broker, seen: Collection[Key]) -> Iterator[str]:
    """The logs of offline replicas have no MBeans: their sizes and offsets would be shown as if they were good.

    :param seen: the replicas whose logs have MBeans
    """
    if stale := sorted(_offline_on(state, broker) & set(seen)):
        yield f"{broker} has MBeans of the logs of offline replicas: {', '.join(map(name, stale))}"


def _offline_on(state: ExpectedState, broker: Broker) -> set[Key]:
    return {key for key, expected in state.partitions.items() if broker.id in expected.offline}


def offline_replicas(state: ExpectedState, broker: Broker, elsewhere: ClusterState) -> int:
    """How many replicas the broker has on its failed log dirs.

    This counts replicas of unknown topics, and those that a reassignment or a topic deletion left there.
    """
    unknown = [each for each in state.unknown_partitions(elsewhere) if broker.id in each.offline_replicas]
    return len(_offline_on(state, broker)) + len(unknown) + len(unassigned_offline_replicas(state, broker))


def unassigned_offline_replicas(state: ExpectedState, broker: Broker) -> list[Key]:
    """The replicas that a reassignment or a topic deletion left on the broker's failed log dirs."""
    failed = [log_dir for log_dir in broker.log_dirs if log_dir in state.failed]
    return [key for log_dir in failed for key in state.left_behind_in(log_dir) | state.undeleted_in(log_dir)]


def least_offline_replicas(state: ExpectedState, broker: Broker, should: int, *, late: bool) -> int:
    """How many offline replicas the broker must count.

    A broker that was started with a failed log dir does not know what is in there, so it need not count replicas that
    are not assigned to it any more. With ``late`` it must count a replica only once the partition has changed. Replicas
    of unknown topics need not be counted, since it is not known whether their partitions have changed.
    """
    updated = state.updated_since_start.get(broker.id)
    if updated is None:
        return should
    if late:
        return sum(broker.id in expected.offline and key in updated for key, expected in state.partitions.items())
    return should - len(unassigned_offline_replicas(state, broker))


def _names(offline: Mapping[str, bool]) -> dict[str, int]:
    return {Path(path).name: int(value) for path, value in sorted(offline.items())}


def compare_offline_partitions(state: ExpectedState, seen: int, elsewhere: ClusterState) -> Iterator[str]:
    """OfflinePartitionsCount: the partitions without a leader, also of unknown topics."""
    leaderless = [key for key, expected in state.partitions.items() if expected.leader is None]
    unknown = [each for each in state.unknown_partitions(elsewhere) if each.leader is None]
    should = len(leaderless) + len(unknown)
    if seen != should:
        yield f"the controller's MBean says OfflinePartitionsCount {seen} instead of {should}"


def compare_controller_counts(state: ExpectedState, seen: Mapping[str, int], elsewhere: ClusterState) -> Iterator[str]:
    """KRaft: the controller's counts of brokers, topics and partitions, also of unknown topics.

    :param seen: by the names of the MBeans
    :param elsewhere: the cluster's metadata, for topics that are not in the expected state
    """
    yield from compare_offline_partitions(state, seen["OfflinePartitionsCount"], elsewhere)
    unknown = state.unknown_partitions(elsewhere)
    leaders = [(each.leader, each.replicas) for each in state.partitions.values()]
    leaders += [(each.leader, each.replicas) for each in unknown]
    alive = len(state.live_brokers())
    should = {
        "ActiveBrokerCount": alive,
        "FencedBrokerCount": len(state.cluster.brokers) - alive,
        "GlobalTopicCount": len({topic for topic, _ in state.partitions} | {each.topic for each in unknown}),
        "GlobalPartitionCount": len(leaders),
        "PreferredReplicaImbalanceCount": sum(leader != replicas[0] for leader, replicas in leaders),
    }
    for name, count in should.items():
        if seen[name] != count:
            yield f"the controller's MBean says {name} {seen[name]} instead of {count}"


# --- Kafka's own tools ----------------------------------------------------------------------------------------------


def topics_tool(state: ExpectedState) -> Iterator[str]:
    """``kafka-topics --describe``."""
    seen = tool_answers.describe_topics(state.cluster.distribution, state.bootstrap())
    yield from compare_topics(state, seen, by="kafka-topics --describe shows")


def compare_topics(state: ExpectedState, seen: Mapping[Key, DescribedPartition], *, by: str) -> Iterator[str]:
    """Every partition's leader, replicas and ISR. Neither kafka-topics nor ZooKeeper shows offline replicas."""
    for key, expected in state.partitions.items():
        shown = seen.get(key)
        difference = "no such partition" if shown is None else expected.disagreement(shown)
        if difference:
            yield f"{by} {name(key)}: {difference}"


def under_replicated_tool(state: ExpectedState) -> Iterator[str]:
    """``kafka-topics --describe --under-replicated-partitions``."""
    option = "--under-replicated-partitions"
    seen = tool_answers.describe_topics(state.cluster.distribution, state.bootstrap(), option)
    yield from compare_under_replicated(state, set(seen))


def compare_under_replicated(state: ExpectedState, seen: set[Key]) -> Iterator[str]:
    """The partitions whose ISR is smaller than the assignment; those without a leader are not compared."""
    sure = {key: expected.isr for key, expected in state.partitions.items() if expected.isr is not None}
    should = {key for key, isr in sure.items() if len(isr) < len(state.partitions[key].replicas)}
    yield from _listed("kafka-topics --under-replicated-partitions", seen & set(sure), should)


def unavailable_tool(state: ExpectedState) -> Iterator[str]:
    """``kafka-topics --describe --unavailable-partitions``."""
    option = "--unavailable-partitions"
    seen = tool_answers.describe_topics(state.cluster.distribution, state.bootstrap(), option)
    yield from compare_unavailable(state, set(seen))


def compare_unavailable(state: ExpectedState, seen: set[Key]) -> Iterator[str]:
    """The partitions without a leader."""
    should = {key for key, expected in state.partitions.items() if expected.leader is None}
    yield from _listed("kafka-topics --unavailable-partitions", seen & set(state.partitions), should)


def _listed(by: str, seen: set[Key], should: set[Key]) -> Iterator[str]:
    if seen != should:
        yield f"{by} lists {[*map(name, sorted(seen))]} instead of {[*map(name, sorted(should))]}"


def log_dirs_tool(state: ExpectedState) -> Iterator[str]:
    """``kafka-log-dirs --describe`` of the live brokers."""
    brokers = state.live_brokers()
    ids = [broker.id for broker in brokers]
    seen = tool_answers.describe_log_dirs(state.cluster.distribution, state.bootstrap(), ids)
    for broker in brokers:
        yield from compare_log_dirs(state, broker, seen.get(broker.id, ()), by=f"kafka-log-dirs of {broker}")
    if state.cluster.distribution.version.has_cordoned_log_dirs:  # noted where the deviation is declared
        yield from compare_printed_cordons(seen, printed=not expects_unprinted_cordons(state.cluster, seen))


def check_cordons_printed(cluster: Cluster) -> None:
    """kafka-log-dirs shows for each log dir whether it is cordoned."""
    ids = [broker.id for broker in cluster.brokers]
    seen = tool_answers.describe_log_dirs(cluster.distribution, cluster.bootstrap, ids)
    if differences := judge_printed_cordons(cluster, seen):
        raise PromiseBroken("; ".join(differences))


def expects_unprinted_cordons(cluster: Cluster, seen: Mapping[int, tuple[LogDirState, ...]]) -> bool:
    """Whether kafka-log-dirs of this build should show no cordons."""
    printed = any(each.is_cordoned is not None for states in seen.values() for each in states)
    return expects(CORDONS_NOT_PRINTED, cluster, lambda: not printed)


def judge_printed_cordons(cluster: Cluster, seen: Mapping[int, tuple[LogDirState, ...]]) -> list[str]:
    """The differences in whether kafka-log-dirs shows cordons, from what the build should show.

    Without differences, the deviation is noted.
    """
    unprinted = expects_unprinted_cordons(cluster, seen)
    differences = [*compare_printed_cordons(seen, printed=not unprinted)]
    if not differences:
        shown = "no log dir's cordon" if unprinted else "whether each log dir is cordoned"
        observe(CORDONS_NOT_PRINTED, cluster, deviates=unprinted, seen=shown)
    return differences


def compare_printed_cordons(seen: Mapping[int, tuple[LogDirState, ...]], *, printed: bool) -> Iterator[str]:
    """kafka-log-dirs shows for each log dir whether it is cordoned. :func:`compare_log_dirs` compares the values.

    :param printed: False: the build is expected to show :data:`suites.deviations.CORDONS_NOT_PRINTED`
    """
    said = [each.is_cordoned is not None for states in seen.values() for each in states]
    if printed and not all(said):
        yield f"kafka-log-dirs does not show whether {said.count(False)} of {len(said)} log dirs are cordoned"
    if not printed and any(said):
        yield CORDONS_NOT_PRINTED.gone


def configs_tool(state: ExpectedState) -> Iterator[str]:
    """``kafka-configs --describe --all``; to be asked only where all brokers run."""
    yield from compare_configs(
        state, tool_answers.describe_broker_configs(state.cluster.distribution, state.bootstrap())
    )


def compare_configs(state: ExpectedState, seen: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    """Each live broker's ``cordoned.log.dirs`` names its cordoned log dirs; ``*`` stands for all."""
    for broker in state.live_brokers():
        value = seen.get(broker.id, {}).get("cordoned.log.dirs")
        everything = {str(log_dir.path) for log_dir in broker.log_dirs}
        should = {str(log_dir.path) for log_dir in broker.log_dirs if log_dir in state.cordoned}
        named = everything if value == "*" else {each.strip() for each in (value or "").split(",")} - {""}
        if value is None or named != should:
            yield f"kafka-configs shows cordoned.log.dirs={value} of {broker} instead of {sorted(should)}"


def java_client(state: ExpectedState) -> Iterator[str]:
    """Kafka's Java client: ``LogDirDescription.isCordoned()`` of the live brokers' log dirs (KIP-1066)."""
    ids = [broker.id for broker in state.live_brokers()]
    yield from compare_java_client(state, cordoned_flags(state.cluster.distribution, state.bootstrap(), ids))


def compare_java_client(state: ExpectedState, seen: Mapping[int, Mapping[str, bool]]) -> Iterator[str]:
    """Each log dir of a live broker is cordoned or not, as it should be."""
    for broker in state.live_brokers():
        should = {str(log_dir.path): log_dir in state.cordoned for log_dir in broker.log_dirs}
        if seen.get(broker.id, {}) != should:
            yield f"the Java client has isCordoned {_names(seen.get(broker.id, {}))} instead of {_names(should)}"


def znodes(state: ExpectedState) -> Iterator[str]:
    """ZooKeeper: the partitions' znodes."""
    quorum = state.cluster.quorum
    if isinstance(quorum, ZooKeeperQuorum):
        yield from compare_topics(state, quorum.partitions(), by="ZooKeeper has")


def metadata_log(state: ExpectedState) -> Iterator[str]:
    """KRaft: the brokers' registrations and the partitions' directories in the active controller's metadata log."""
    if isinstance(state.cluster.quorum, KRaftQuorum):
        seen = directories(state.cluster)
        good = [d for broker in state.live_brokers() for d in broker.log_dirs if d not in state.failed]
        yield from compare_registrations(state, {log_dir: log_dir.directory_id() for log_dir in good}, seen)


def directories(cluster: Cluster) -> Directories:
    """KRaft: the brokers' registrations and the replicas' log dirs in the active controller's metadata log."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    metadata_log = cluster.quorum.metadata_log(cluster.active_controller())
    return tool_answers.dump_directories(cluster.distribution, metadata_log)


def compare_registrations(state: ExpectedState, ids: Mapping[LogDir, str], seen: Directories) -> Iterator[str]:
    """Each live broker is registered with its good log dirs, and each replica is assigned to the log dir it is in.

    :param ids: the ``directory.id`` of each good log dir of a live broker
    """
    for broker in state.live_brokers():
        should = {id for log_dir, id in ids.items() if log_dir.broker.id == broker.id}
        online = seen.online.get(broker.id, frozenset())
        if online != should:
            yield f"the metadata log registers {broker} with {sorted(online)} instead of {sorted(should)}"
        cordoned = {id for log_dir, id in ids.items() if log_dir.broker.id == broker.id and log_dir in state.cordoned}
        said = seen.cordoned.get(broker.id, frozenset()) & should
        if said != cordoned:
            yield f"the metadata log has {sorted(said)} of {broker} cordoned instead of {sorted(cordoned)}"
    for log_dir, id in ids.items():
        for key in sorted(state.replicas_in(log_dir)):
            assigned = seen.assigned.get(key, {}).get(log_dir.broker.id)
            if assigned != id:
                yield f"the metadata log assigns {name(key)} on {log_dir.broker} to {assigned} instead of {id}"


def name(key: Key) -> str:
    """The partition as Kafka writes it, and as its folder is named: ``orders-0``."""
    return f"{key[0]}-{key[1]}"


FAST_SOURCES: tuple[Source, ...] = (processes, metadata, log_dirs, folders, mbeans, znodes)
TOPICS_TOOLS: tuple[Source, ...] = (topics_tool, under_replicated_tool, unavailable_tool)
TOOL_SOURCES: tuple[Source, ...] = (*TOPICS_TOOLS, log_dirs_tool)
"""Asked at each step, once all fast sources agree."""
SINGLE_MODE_SOURCES: Mapping[Source, Mode] = {znodes: Mode.ZK, metadata_log: Mode.KRAFT}
"""The sources that exist in one metadata mode only."""
