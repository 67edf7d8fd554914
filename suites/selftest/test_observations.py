"""Each source agrees with a right expected state, and names the difference from a wrong one.

The sources' answers come from a real cluster (4.3.1, KRaft) after broker 3's first log dir failed; a few partitions
are left out. The tests change the expected state, not the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.kafka.mbeans import BrokerMetrics, ReplicaMetrics
from harness.kafka.metadata import LogDirState
from harness.kafka.metadata_records import read_records
from harness.kafka.tool_answers import read_broker_configs, read_directories, read_log_dirs, read_topics
from suites import observations
from suites.replica_mbeans import compare_replica_mbeans
from suites.selftest.fakes import (
    cluster_state,
    fake_broker,
    fake_cluster,
    log_dir_at,
    log_dir_state,
    partition_of,
    partition_state,
    replica_in_dir,
)
from suites.state_check import StateCheck

ANSWERS = Path(__file__).with_name("answers")
IDS = {  # directory.id of the good log dirs
    (1, 1): "CDcygthCQruRvucVxVzhUw",
    (1, 2): "79Jhl1IwTF-VSw_ricrjNw",
    (2, 1): "Gg8qJ8BCRoqJmwFScXMcPg",
    (2, 2): "WS6228hhSkCvXYtlRPjaIQ",
    (3, 2): "eKdAf3zzQmSENcN4FdLmCg",
}


BROKERS = {id: fake_broker(id) for id in (1, 2, 3)}
DIRS = {(id, n): log_dir_at(Path(f"/data/broker-{id}-log-dir-{n}"), BROKERS[id]) for id in BROKERS for n in (1, 2)}
for id, broker in BROKERS.items():
    broker.log_dirs = (DIRS[id, 1], DIRS[id, 2])


SEEN = cluster_state(
    partition_state("orders", 3, 1, 2, offline=(3,)),
    partition_state("lone", 3, offline=(3,)),
    partition_state("lone", 1, index=1),
    partition_state("lone", 3, index=3),
    partition_state("elsewhere", 3, offline=(3,)),
)
METRICS = BrokerMetrics(
    offline_log_dirs=1,
    log_dir_offline={"/data/broker-3-log-dir-1": True, "/data/broker-3-log-dir-2": False},
    offline_replicas=3,
    partitions=4,
    leaders=1,
    under_replicated=0,
)


def healthy_state() -> StateCheck:
    """The expected state before the fault."""
    state = StateCheck(fake_cluster(brokers=list(BROKERS.values()), unreachable=set()))
    state.add_partition(partition_state("orders", 3, 1, 2), {3: DIRS[3, 1], 1: DIRS[1, 1], 2: DIRS[2, 1]})
    state.add_partition(partition_state("lone", 3), {3: DIRS[3, 1]})
    state.add_partition(partition_state("lone", 1, index=1), {1: DIRS[1, 2]})
    state.add_partition(partition_state("lone", 3, index=3), {3: DIRS[3, 2]})
    return state


def right_state() -> StateCheck:
    """The expected state after the fault, with which all answers agree."""
    state = healthy_state()
    state.log_dir_failed(DIRS[3, 1])
    return state


def other_dir_failed() -> StateCheck:
    state = healthy_state()
    state.log_dir_failed(DIRS[3, 2])
    return state


def one_dead() -> StateCheck:
    state = right_state()
    state.broker_gone(BROKERS[2])
    return state


def replica_elsewhere() -> StateCheck:
    """One replica on a good log dir is expected in the other log dir of its broker."""
    state = right_state()
    state.add_partition(partition_state("lone", 1, index=1), {1: DIRS[1, 1]})
    return state


def future_replica_there() -> StateCheck:
    """A future replica of lone-1 is expected in the first log dir of broker 1, where no source shows one."""
    state = right_state()
    state.move_held(partition_of("lone", 1), DIRS[1, 1])
    return state


def once_in_another_epoch() -> StateCheck:
    """A partition on a good log dir is expected in another leader epoch than the brokers see."""
    state = healthy_state()
    state.add_partition(replace(partition_state("lone", 1, index=1), leader_epoch=4), {1: DIRS[1, 2]})
    state.log_dir_failed(DIRS[3, 1])
    return state


def answer(name: str) -> list[str]:
    return (ANSWERS / f"{name}.txt").read_text().splitlines()


def metadata(state: StateCheck) -> Iterable[str]:
    return observations.compare_metadata(state, BROKERS[1], SEEN)


def log_dirs_tool(state: StateCheck) -> Iterable[str]:
    seen = read_log_dirs(answer("kafka-log-dirs"))
    for id, broker in BROKERS.items():
        yield from observations.compare_log_dirs(state, broker, seen[id], by=f"kafka-log-dirs of {broker}")


def folders(state: StateCheck) -> Iterable[str]:
    on_disk = ["cleaner-offset-checkpoint", "lone-1", "lone-3.0f3b-delete", "orders-0-future", "meta.properties"]
    return observations.compare_folders(state, DIRS[1, 2], on_disk)


def folders_of_the_other(state: StateCheck) -> Iterable[str]:
    return observations.compare_folders(state, DIRS[1, 1], ["orders-0", "orders-1.0f3b-future", "lone-1.0f3b-delete"])


def mbeans(state: StateCheck) -> Iterable[str]:
    return observations.compare_mbeans(state, BROKERS[3], METRICS, SEEN, uncounted=False, cordons=False)


def replica_counts(state: StateCheck) -> Iterable[str]:
    return observations.compare_replica_counts(state, BROKERS[3], METRICS, SEEN)


def offline_partitions(state: StateCheck) -> Iterable[str]:
    return observations.compare_offline_partitions(state, 2, SEEN)


def log_mbeans(state: StateCheck) -> Iterable[str]:
    return observations.compare_log_mbeans(state, BROKERS[3], {("lone", 3), ("elsewhere", 0)})


def controller_counts(state: StateCheck) -> Iterable[str]:
    seen = {
        "OfflinePartitionsCount": 2,
        "ActiveBrokerCount": 3,
        "FencedBrokerCount": 0,
        "GlobalTopicCount": 3,
        "GlobalPartitionCount": 5,
        "PreferredReplicaImbalanceCount": 3,
    }
    return observations.compare_controller_counts(state, seen, SEEN)


def topics_tool(state: StateCheck) -> Iterable[str]:
    return observations.compare_topics(state, read_topics(answer("kafka-topics")), by="kafka-topics --describe shows")


def under_replicated_tool(state: StateCheck) -> Iterable[str]:
    return observations.compare_under_replicated(state, set(read_topics(answer("kafka-topics-under-replicated"))))


def unavailable_tool(state: StateCheck) -> Iterable[str]:
    return observations.compare_unavailable(state, set(read_topics(answer("kafka-topics-unavailable"))))


def registrations(state: StateCheck) -> Iterable[str]:
    good = {DIRS[where]: id for where, id in IDS.items() if DIRS[where] not in state.failed}
    return observations.compare_registrations(state, good, read_directories(read_records(answer("kafka-dump-log"))))


def test_a_registration_has_a_rack_or_none_and_the_last_one_counts() -> None:
    seen = read_directories(read_records(answer("kafka-dump-log")))
    assert seen.racks == {1: None, 2: None, 3: None}
    assert all(len(epochs) == 1 for epochs in seen.epochs.values())
    again = next(line for line in answer("kafka-dump-log") if '"brokerId":2' in line and "REGISTER_BROKER" in line)
    assert read_directories(read_records([again, again.replace('"rack":null', '"rack":"b"')])).racks == {2: "b"}


ALL = (
    metadata,
    log_dirs_tool,
    folders,
    mbeans,
    replica_counts,
    offline_partitions,
    controller_counts,
    log_mbeans,
    topics_tool,
    under_replicated_tool,
    unavailable_tool,
    registrations,
)


@pytest.mark.parametrize("source", ALL)
def test_a_source_is_quiet_where_the_model_is_right(source: Callable[[StateCheck], Iterable[str]]) -> None:
    assert list(source(right_state())) == []


@pytest.mark.parametrize(
    ("source", "wrong", "says"),
    [
        (
            metadata,
            healthy_state,
            "broker 1 sees orders-0: leader 1 instead of 3, offline_replicas {3} instead of set()",
        ),
        (
            metadata,
            once_in_another_epoch,
            "broker 1 sees lone-1: leader epoch 0 instead of 4, though nothing has touched it",
        ),
        (log_dirs_tool, healthy_state, "kafka-log-dirs of broker 3 describes broker-3-log-dir-1 of broker 3 as KAFKA_"),
        (
            log_dirs_tool,
            other_dir_failed,
            "kafka-log-dirs of broker 3 describes broker-3-log-dir-2 of broker 3 as online",
        ),
        (
            log_dirs_tool,
            replica_elsewhere,
            "kafka-log-dirs of broker 1 has no lone-1 in broker-1-log-dir-1 of broker 1",
        ),
        (log_dirs_tool, replica_elsewhere, "kafka-log-dirs of broker 1 has a lone-1 in broker-1-log-dir-2 of broker 1"),
        (folders, replica_elsewhere, "the disk has a lone-1 in broker-1-log-dir-2 of broker 1"),
        (
            log_dirs_tool,
            future_replica_there,
            "kafka-log-dirs of broker 1 has no future replica of lone-1 in broker-1-log-dir-1 of broker 1",
        ),
        (folders_of_the_other, future_replica_there, "the disk has no future replica of lone-1 in broker-1-log-dir-1"),
        (mbeans, healthy_state, "the MBeans of broker 3 say OfflineLogDirectoryCount 1 instead of 0"),
        (mbeans, other_dir_failed, "the MBeans of broker 3 say LogDirectoryOffline {'broker-3-log-dir-1': 1, "),
        (mbeans, other_dir_failed, "the MBeans of broker 3 say OfflineReplicaCount 3 instead of 2"),
        (replica_counts, healthy_state, "the MBeans of broker 3 say LeaderCount 1 instead of 3"),
        (offline_partitions, healthy_state, "the controller's MBean says OfflinePartitionsCount 2 instead of 1"),
        (
            controller_counts,
            healthy_state,
            "the controller's MBean says PreferredReplicaImbalanceCount 3 instead of 1",
        ),
        (controller_counts, one_dead, "the controller's MBean says ActiveBrokerCount 3 instead of 2"),
        (controller_counts, one_dead, "the controller's MBean says FencedBrokerCount 0 instead of 1"),
        (log_mbeans, other_dir_failed, "broker 3 has MBeans of the logs of offline replicas: lone-3"),
        (topics_tool, healthy_state, "kafka-topics --describe shows lone-0: leader None instead of 3"),
        (topics_tool, other_dir_failed, "kafka-topics --describe shows lone-3: leader 3 instead of None"),
        (
            under_replicated_tool,
            healthy_state,
            "kafka-topics --under-replicated-partitions lists ['lone-0', 'orders-0']",
        ),
        (
            unavailable_tool,
            other_dir_failed,
            "kafka-topics --unavailable-partitions lists ['lone-0'] instead of ['lone-3']",
        ),
        (
            registrations,
            other_dir_failed,
            "the metadata log registers broker 3 with ['eKdAf3zzQmSENcN4FdLmCg'] instead",
        ),
        (registrations, replica_elsewhere, "the metadata log assigns lone-1 on broker 1 to 79Jhl1IwTF-VSw_ricrjNw"),
    ],
)
def test_a_wrong_expectation_is_named_with_its_source(
    source: Callable[[StateCheck], Iterable[str]], wrong: Callable[[], StateCheck], says: str
) -> None:
    found = list(source(wrong()))
    assert any(difference.startswith(says) for difference in found), found


def test_a_migrating_broker_must_show_all_brokers_and_no_offline_replica_where_it_is_known_to() -> None:
    state = one_dead()
    states = [replace(each, offline_replicas=()) for each in SEEN.partitions]
    unaware = replace(SEEN, brokers=(1, 2, 3), partitions=tuple(states))
    shown = list(observations.compare_metadata(state, BROKERS[1], unaware, dead_shown=True))
    assert not any("offline_replicas" in each or "brokers" in each for each in shown)
    [*wrong] = observations.compare_metadata(state, BROKERS[1], SEEN, dead_shown=True)
    assert any("offline_replicas {3} instead of set()" in each for each in wrong)
    [*promised] = observations.compare_metadata(state, BROKERS[1], unaware)
    assert "broker 1 sees brokers [1, 2, 3] instead of [1, 3]" in promised


def test_a_future_replica_there_is_seen_on_disk() -> None:
    seen = ["orders-0", "lone-1.0f3b-future"]
    assert list(observations.compare_folders(future_replica_there(), DIRS[1, 1], seen)) == []


def test_a_future_replica_of_a_topic_with_dots_in_its_name_is_seen_on_disk() -> None:
    state = right_state()
    state.add_partition(partition_state("a.b-c", 1), {1: DIRS[1, 2]})
    state.move_held(partition_of("a.b-c"), DIRS[1, 1])
    assert list(observations.compare_folders(state, DIRS[1, 1], ["orders-0", "a.b-c-0.0f3b-future"])) == []


def test_a_build_that_does_not_count_offline_replicas_must_not_count_them() -> None:
    none = replace(METRICS, offline_replicas=0)
    assert list(observations.compare_mbeans(right_state(), BROKERS[3], none, SEEN, uncounted=True, cordons=False)) == []
    [mended] = observations.compare_mbeans(right_state(), BROKERS[3], METRICS, SEEN, uncounted=True, cordons=False)
    assert "no longer deviates" in mended


ON_BROKER_1 = frozenset({("orders", 0), ("lone", 1)})
FETCHED = frozenset({("orders", 0, "ReplicaFetcherThread-0-3")})


@pytest.mark.parametrize(
    ("id", "state", "seen", "says"),
    [
        (1, right_state, ReplicaMetrics(partitions=ON_BROKER_1), []),
        (1, right_state, ReplicaMetrics(), []),  # a build without these MBeans
        (
            1,
            right_state,
            ReplicaMetrics(partitions=frozenset({("lone", 1)})),
            ["broker 1 has no Partition MBeans of o"],
        ),
        (
            1,
            right_state,
            ReplicaMetrics(partitions=ON_BROKER_1 | {("gone", 0)}),
            ["broker 1 has Partition MBeans of replicas that are offline or gone: gone-0"],
        ),
        (3, right_state, ReplicaMetrics(partitions=frozenset({("lone", 3)})), []),
        (
            3,
            right_state,
            ReplicaMetrics(partitions=frozenset({("lone", 3), ("orders", 0), ("elsewhere", 0)})),
            ["broker 3 has Partition MBeans of replicas that are offline or gone: elsewhere-0, orders-0"],
        ),
        (2, healthy_state, ReplicaMetrics(fetched=FETCHED), []),
        (
            2,
            right_state,
            ReplicaMetrics(fetched=FETCHED),
            ["broker 2 has orders-0 in ReplicaFetcherThread-0-3, though"],
        ),
        (
            1,
            right_state,
            ReplicaMetrics(fetched=frozenset({("lone", 0, "ReplicaFetcherThread-0-3")})),
            ["broker 1 has "],
        ),
        (1, right_state, ReplicaMetrics(fetched=frozenset({("lone", 1, "ReplicaAlterLogDirsThread-0")})), []),
        (
            1,
            right_state,
            ReplicaMetrics(dead_fetchers=1),
            ["the MBeans of broker 1 say DeadThreadCount 1 instead of 0"],
        ),
        (1, right_state, ReplicaMetrics(failed_partitions=2), ["the MBeans of broker 1 say FailedPartitionsCount 2 "]),
        (3, right_state, ReplicaMetrics(failed_partitions=2), []),
        (1, right_state, ReplicaMetrics(dead_fetchers=None, failed_partitions=None), []),
    ],
)
def test_the_mbeans_of_replicas_and_fetchers_are_those_of_what_is_there(
    id: int, state: Callable[[], StateCheck], seen: ReplicaMetrics, says: list[str]
) -> None:
    found = list(compare_replica_mbeans(state(), BROKERS[id], seen, SEEN))
    assert [each.startswith(start) for each, start in zip(found, says, strict=True)] == [True] * len(says), found


def test_a_broker_that_started_with_a_bad_log_dir_may_have_mbeans_of_its_offline_replicas() -> None:
    state = right_state()
    state.broker_gone(BROKERS[3])
    state.broker_back(BROKERS[3])
    seen = ReplicaMetrics(partitions=frozenset({("lone", 3), ("orders", 0)}))
    assert list(compare_replica_mbeans(state, BROKERS[3], seen, SEEN)) == []


def test_replicas_are_counted_on_the_broker_that_leads_them() -> None:
    """An under-replicated partition counts where it is led; where a log dir has failed, PartitionCount may differ."""
    seen = replace(METRICS, leaders=2, under_replicated=1, partitions=2)
    compare = observations.compare_replica_counts
    assert list(compare(right_state(), BROKERS[1], seen, SEEN)) == []
    assert list(compare(right_state(), BROKERS[1], replace(seen, under_replicated=0, partitions=3), SEEN)) == [
        "the MBeans of broker 1 say UnderReplicatedPartitions 0 instead of 1",
        "the MBeans of broker 1 say PartitionCount 3 instead of 2",
    ]
    assert list(compare(right_state(), BROKERS[3], replace(METRICS, partitions=9), SEEN)) == []


@pytest.mark.parametrize(
    ("counted", "late", "wrong"), [(0, True, False), (3, True, False), (4, True, True), (0, False, True)]
)
def test_a_broker_that_started_with_a_bad_dir_may_count_too_few(counted: int, late: bool, wrong: bool) -> None:
    """On some builds, its OfflineReplicaCount may be lower than the number of its offline replicas, never higher."""
    state = healthy_state()
    state.broker_gone(BROKERS[3])
    state.log_dir_failed(DIRS[3, 1])
    state.broker_back(BROKERS[3])
    assert observations.offline_replicas(state, BROKERS[3], SEEN) == 3
    seen = replace(METRICS, offline_replicas=counted)
    found = [*observations.compare_mbeans(state, BROKERS[3], seen, SEEN, uncounted=False, cordons=False, late=late)]
    assert any("OfflineReplicaCount" in difference for difference in found) == wrong


# --- cordons (KIP-1066) -----------------------------------------------------------------------------------------------

CONFIGS = """\
All configs for broker 1 are:
  compression.type=producer sensitive=false synonyms={DEFAULT_CONFIG:compression.type=producer}
  cordoned.log.dirs= sensitive=false synonyms={DEFAULT_CONFIG:cordoned.log.dirs=}
All configs for broker 2 are:
  cordoned.log.dirs=* sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:cordoned.log.dirs=*}
All configs for broker 3 are:
  cordoned.log.dirs=/data/broker-3-log-dir-1, /data/broker-3-log-dir-2 sensitive=false synonyms={STATIC_BROKER_CONFIG:x}
  ssl.protocol=TLSv1.3 sensitive=false synonyms={DEFAULT_CONFIG:ssl.protocol=TLSv1.3}
Default configs for brokers in the cluster are:
  min.insync.replicas=1 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:min.insync.replicas=1}
"""
REGISTERED = """\
{"type":"REGISTER_BROKER_RECORD","version":4,"data":{"brokerId":3,"brokerEpoch":16,\
"rack":null,"logDirs":["a","b"]}}
{"type":"BROKER_REGISTRATION_CHANGE_RECORD","version":3,"data":{"brokerId":3,"cordonedLogDirs":[]}}
{"type":"BROKER_REGISTRATION_CHANGE_RECORD","version":0,"data":{"brokerId":3,"brokerEpoch":16,"fenced":-1}}
{"type":"BROKER_REGISTRATION_CHANGE_RECORD","version":3,"data":{"brokerId":3,"cordonedLogDirs":["a"]}}
{"type":"BROKER_REGISTRATION_CHANGE_RECORD","version":1,"data":{"brokerId":3,"fenced":1}}
"""


def cordoned(*where: tuple[int, int]) -> StateCheck:
    """The expected state without a fault, with these log dirs cordoned."""
    state = healthy_state()
    for id, broker in BROKERS.items():
        state.set_cordoned(broker, *(DIRS[each] for each in where if each[0] == id))
    return state


def described(is_cordoned: bool | None) -> tuple[LogDirState, ...]:
    """Broker 2's log dirs: the first has a replica, the second has this flag; None: the answer has no such field."""
    first = log_dir_state(DIRS[2, 1].path, replica_in_dir("orders", size=1))
    return (
        replace(first, is_cordoned=None if is_cordoned is None else False),
        replace(log_dir_state(DIRS[2, 2].path), is_cordoned=is_cordoned),
    )


@pytest.mark.parametrize(
    ("says", "of", "differs"),
    [
        (True, (2, 2), None),
        (None, (2, 2), None),  # before 4.3
        (False, (1, 1), None),
        (False, (2, 2), "describes broker-2-log-dir-2 of broker 2 as not cordoned"),
        (True, (1, 1), "describes broker-2-log-dir-2 of broker 2 as cordoned"),
    ],
)
def test_a_described_cordon_is_compared(says: bool | None, of: tuple[int, int], differs: str | None) -> None:
    found = list(observations.compare_log_dirs(cordoned(of), BROKERS[2], described(says), by="broker 2"))
    assert found == ([] if differs is None else [f"broker 2 {differs}"])


@pytest.mark.parametrize(
    ("is_cordoned", "printed", "says"),
    [
        (True, True, []),
        (None, False, []),
        (None, True, ["kafka-log-dirs does not show whether 2 of 2 log dirs are cordoned"]),
        (True, False, ["no longer deviates: kafka-log-dirs does not print it; DescribeLogDirs v5 has it"]),
    ],
)
def test_kafka_log_dirs_must_print_cordons_or_is_known_not_to(
    is_cordoned: bool | None, printed: bool, says: list[str]
) -> None:
    assert list(observations.compare_printed_cordons({2: described(is_cordoned)}, printed=printed)) == says


def test_kafka_log_dirs_is_read_with_and_without_a_word_on_cordons() -> None:
    line = '{"brokers":[{"broker":1,"logDirs":[{"logDir":"/a","error":null,"partitions":[]%s}]}],"version":1}'
    for more, is_cordoned in (("", None), (',"isCordoned":true', True), (',"cordoned":false', False)):
        [state] = read_log_dirs([line % more])[1]
        assert state.is_cordoned is is_cordoned


def test_cordons_are_among_the_mbeans_from_4_3_on() -> None:
    paths = [str(log_dir.path) for log_dir in BROKERS[3].log_dirs]
    seen = BrokerMetrics(
        offline_log_dirs=0,
        log_dir_offline=dict.fromkeys(paths, False),
        offline_replicas=0,
        partitions=3,
        leaders=3,
        under_replicated=0,
        cordoned_log_dirs=1,
        log_dir_cordoned={paths[0]: True, paths[1]: False},
    )
    nowhere = replace(SEEN, partitions=())
    assert (
        list(observations.compare_mbeans(cordoned((3, 1)), BROKERS[3], seen, nowhere, uncounted=False, cordons=True))
        == []
    )
    assert list(
        observations.compare_mbeans(cordoned((3, 2), (3, 1)), BROKERS[3], seen, nowhere, uncounted=False, cordons=True)
    ) == [
        "the MBeans of broker 3 say LogDirectoryCordoned {'broker-3-log-dir-1': 1, 'broker-3-log-dir-2': 0} instead of "
        "{'broker-3-log-dir-1': 1, 'broker-3-log-dir-2': 1}",
        "the MBeans of broker 3 say CordonedLogDirectoryCount 1 instead of 2",
    ]
    missing = replace(seen, cordoned_log_dirs=None, log_dir_cordoned={})
    assert list(
        observations.compare_mbeans(cordoned(), BROKERS[3], missing, nowhere, uncounted=False, cordons=True)
    ) == [
        "the MBeans of broker 3 say LogDirectoryCordoned {} instead of "
        "{'broker-3-log-dir-1': 0, 'broker-3-log-dir-2': 0}",
        "the MBeans of broker 3 say CordonedLogDirectoryCount None instead of 0",
    ]
    assert (
        list(observations.compare_mbeans(cordoned(), BROKERS[3], missing, nowhere, uncounted=False, cordons=False))
        == []
    )


def test_the_last_word_of_the_metadata_log_on_cordons_counts_and_the_first_is_kept() -> None:
    seen = read_directories(read_records(f"| offset: 0 payload: {each}" for each in REGISTERED.splitlines()))
    assert seen.cordoned == {3: {"a"}}
    assert seen.registered_as_cordoned == {3: None}
    ids = {DIRS[3, 1]: "a", DIRS[3, 2]: "b"}

    def of_broker_3(state: StateCheck) -> list[str]:
        return [each for each in observations.compare_registrations(state, ids, seen) if "cordoned" in each]

    assert of_broker_3(cordoned((3, 1))) == []
    assert of_broker_3(cordoned()) == ["the metadata log has ['a'] of broker 3 cordoned instead of []"]


def test_the_java_client_has_the_cordons_of_every_log_dir() -> None:
    seen = {id: {f"/data/broker-{id}-log-dir-{n}": (id, n) == (3, 1) for n in (1, 2)} for id in BROKERS}
    assert list(observations.compare_java_client(cordoned((3, 1)), seen)) == []
    [wrong] = observations.compare_java_client(cordoned(), seen)
    assert wrong.startswith("the Java client has isCordoned {'broker-3-log-dir-1': 1,")
    assert len(list(observations.compare_java_client(cordoned((3, 1)), {}))) == 3


def test_kafka_configs_shows_cordons_by_name_and_by_star() -> None:
    seen = read_broker_configs(CONFIGS.splitlines())
    assert seen[3]["ssl.protocol"] == "TLSv1.3"
    assert list(observations.compare_configs(cordoned((2, 1), (2, 2), (3, 1), (3, 2)), seen)) == []
    found = list(observations.compare_configs(cordoned((1, 1), (2, 1), (3, 1), (3, 2)), seen))
    assert [line.partition(" instead of ")[0] for line in found] == [
        "kafka-configs shows cordoned.log.dirs= of broker 1",
        "kafka-configs shows cordoned.log.dirs=* of broker 2",
    ]
