"""What Kafka must do by itself is a promise, unless this machine or the harness kept it from doing so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.own_part import FailedOwnPart, OwnPart, RefusedOwnPart
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.topic import Partition, Topic
from harness.crowding import Crowding, Deadline
from harness.errors import (
    EXIT_INVALID,
    AwaitTimeout,
    EnvironmentLacks,
    Inconclusive,
    JbodError,
    NotServed,
    PromiseBroken,
    ToolFailed,
    ToolTooLate,
)
from harness.host.undo import UndoLog
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.answers import Refused
from harness.kafka.broker_log import BrokerLog
from harness.kafka.connection import NoAnswer
from harness.kafka.mbeans import MBeans
from harness.kafka.security import Bootstrap
from harness.runner.case_outcome import CaseLog, conclude
from harness.runner.case_workload import CaseWorkload
from harness.workload.workload import Workload
from suites.selftest.fakes import (
    cluster_state,
    fake,
    fake_broker,
    fake_cluster,
    fake_node,
    log_dir_state,
    partition_state,
    replica_in_dir,
    topic_of,
)

WHOLE = partition_state("refunds", 1)
FENCED = "[2126-11-27 10:00:00,000] INFO Fencing broker 1 at epoch 7 because its session has timed out. (x.Y)"

Change = Callable[[Cluster, pytest.MonkeyPatch], None]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """One broker, which never tells its controller the log dir of its replica: AssignReplicasToDirs is not sent."""
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    monkeypatch.setattr(timeouts, "BOOT_S", 0.01)
    monkeypatch.setattr(Deadline, "crowding", Crowding())
    (tmp_path / "controller.log").touch()
    node = fake_node(
        log=BrokerLog(tmp_path / "broker.log"),
        check_alive=lambda: None,
        is_alive=lambda: True,
        is_paused=lambda: False,
    )
    controller = fake_node(
        "controller-100",
        log=BrokerLog(tmp_path / "controller.log"),
        check_alive=lambda: None,
        is_alive=lambda: True,
        is_paused=lambda: False,
    )
    admin = fake(Admin, create_topics=lambda _: None, describe_cluster=lambda topics=(): cluster_state(WHOLE))
    broker = fake_broker(
        node=node,
        log=node.log,
        admin=admin,
        is_running=True,
        describe_cluster=lambda: cluster_state(WHOLE, brokers=(2,)),
        describe_log_dirs=lambda: (log_dir_state("/1", replica_in_dir("refunds")),),
        mbeans=fake(MBeans, unassigned=lambda: 1),
    )
    return fake_cluster(
        brokers=[broker],
        quorum_nodes=[controller],
        quorum=fake(KRaftQuorum, controller=lambda _: None),
        unreachable=set(),
        topics={},
        undo_log=fake(UndoLog, dir=tmp_path),
        _controller_or_any=lambda: broker,
    )


WAITS: dict[str, tuple[Callable[[Cluster], object], str]] = {
    "topic": (
        lambda cluster: cluster.create_topics(NewTopic(name="refunds")),
        r"^Kafka must elect a leader for each partition, create its replicas, and assign them to log dirs: waited 0\.0 "
        r"s for refunds to be led and replicated in full; last seen: \['broker 1 has not yet reported the log dirs of "
        r"1 replicas to the controller'\]$",
    ),
    "internal topics": (lambda cluster: cluster.await_replicas_created(), "^Kafka must elect .* of 1 replicas"),
    "members": (
        lambda cluster: cluster.await_members(),
        r"^Kafka must let every broker register, and have an active controller: .*broker 1 sees brokers \[2\].*"
        r"no controller is active.*broker-1 logged last",
    ),
    "health": (
        lambda cluster: cluster.await_healthy(0.01),
        r"^Kafka must bring back all brokers and replicas: .*last seen: \['broker 1 sees brokers \[2\]'\]$",
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_part_that_kafka_does_not_do_makes_the_case_invalid(cluster: Cluster, wait: str) -> None:
    """The reason names the promise, what was awaited, and what was seen last."""
    awaits, reason = WAITS[wait]
    with pytest.raises(PromiseBroken, match=reason) as raised:
        awaits(cluster)
    log = CaseLog(troubles=[raised.value])
    assert conclude(log, None, must_be_judged=True, test_file=Path(__file__)) == ("invalid", str(raised.value).strip())


def test_metadata_without_an_answer_is_kafkas_fault(cluster: Cluster) -> None:
    def hangs() -> None:
        raise NoAnswer("broker 1 gave no answer to Metadata")

    cluster.brokers = [fake_broker(**{**vars(type(cluster.brokers[0])), "describe_cluster": hangs})]
    with pytest.raises(PromiseBroken, match="last seen: NoAnswer: broker 1 gave no answer to Metadata"):
        cluster.await_members()


def full_disk(_: Cluster, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=10, f_frsize=4096, f_files=9, f_favail=9))


def stopped(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster.quorum_nodes[0], "is_alive", lambda: False)


def suspended(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster.quorum_nodes[0], "is_paused", lambda: True)


def fenced(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
    cluster.quorum_nodes[0].log.path.write_text(FENCED)


def crowded(_: Cluster, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deadline, "crowding", Crowding(per_core=9.0))


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (full_disk, EnvironmentLacks, "^the disk of .* is full: 0 MB are left; Kafka must elect"),
        (stopped, AwaitTimeout, "^controller-100 does not run; Kafka must elect"),
        (suspended, AwaitTimeout, "^controller-100 is suspended; Kafka must elect"),
        (fenced, Inconclusive, "^this machine is too slow: broker 1 lost its session: .*; Kafka must elect"),
    ],
)
def test_a_machine_or_harness_that_keeps_kafka_from_it_is_no_broken_promise(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, change: Change, error: type[JbodError], reason: str
) -> None:
    change(cluster, monkeypatch)
    with pytest.raises(error, match=reason):
        cluster.create_topics(NewTopic(name="refunds"))


def test_a_value_that_stays_wrong_on_a_crowded_machine_is_a_broken_promise(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait took longer there, and Kafka has answered. A request without an answer shows nothing."""
    crowded(cluster, monkeypatch)
    with pytest.raises(PromiseBroken, match=r"on a crowded machine \(9\.0 threads per core .*last seen: .* 1 replicas"):
        cluster.create_topics(NewTopic(name="refunds"))


def test_a_broker_that_the_case_had_disturbed_may_lose_its_session(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced(cluster, monkeypatch)
    cluster.journal.write("node.killed", node="broker-1")
    with pytest.raises(PromiseBroken):
        cluster.await_healthy(0.01)


def test_the_witness_of_a_controllers_end_was_not_disturbed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of a controller names a broker, which only shows that another controller has taken over."""
    fenced(cluster, monkeypatch)
    cluster.journal.write(
        "fault.injecting", fault="ControllerKilled", target="controller-100", broker=1, node="controller-100"
    )
    with pytest.raises(Inconclusive, match="broker 1 lost its session"):
        cluster.await_healthy(0.01)


def refusing(cluster: Cluster, error: str = "INVALID_REPLICATION_FACTOR") -> Refused:
    """Let the broker refuse each request for a topic."""
    refusal = Refused("create topic refunds", error, "Unable to replicate")

    def refuse(_: object) -> None:
        raise refusal

    cluster.brokers[0].admin = fake(Admin, create_topics=refuse)
    return refusal


def test_a_refused_topic_is_a_refusal_and_a_broken_promise(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario may expect the refusal. If it does not, the case is invalid; a crowded machine is no excuse."""
    refusing(cluster)
    crowded(cluster, monkeypatch)
    with pytest.raises(Refused) as raised:
        cluster.create_topics(NewTopic(name="refunds"))
    assert (raised.value.error, raised.value.message) == ("INVALID_REPLICATION_FACTOR", "Unable to replicate")
    assert raised.value.exit_code == EXIT_INVALID
    assert conclude(CaseLog(troubles=[raised.value]), None, must_be_judged=True, test_file=Path(__file__)) == (
        "invalid",
        "Kafka must create topics: create topic refunds: INVALID_REPLICATION_FACTOR (Unable to replicate)",
    )


def test_a_topic_refused_after_a_lost_session_shows_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(cluster)
    fenced(cluster, monkeypatch)
    with pytest.raises(Inconclusive, match="lost its session") as raised:
        cluster.create_topics(NewTopic(name="refunds"))
    outcome, _ = conclude(CaseLog(troubles=[raised.value]), None, must_be_judged=True, test_file=Path(__file__))
    assert outcome == "unknown"


@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_topic_that_is_not_created_in_time_shows_nothing_on_a_crowded_machine(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_crowded: bool
) -> None:
    refusing(cluster, "REQUEST_TIMED_OUT")
    monkeypatch.setattr(Deadline, "crowding", Crowding(per_core=9.0 if is_crowded else 1.0))
    expected = Inconclusive if is_crowded else PromiseBroken
    with pytest.raises(expected, match=r"Kafka must create topics: .* refunds: REQUEST_TIMED_OUT"):
        cluster.create_topics(NewTopic(name="refunds"))


@pytest.mark.parametrize("is_crowded", [False, True])
def test_clients_that_are_not_served(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_crowded: bool) -> None:
    """No coordinator, no leader, no ack: a client that runs and is not served is Kafka's fault."""

    def not_served(*_: object, **__: object) -> None:
        raise NotServed("waited 60.0 s for the first offsets; last seen: COORDINATOR_NOT_AVAILABLE")

    if is_crowded:
        crowded(cluster, monkeypatch)
    workload = fake(CaseWorkload, _cluster=cluster, _pipeline=fake(Workload, running=not_served))
    expected = Inconclusive if is_crowded else PromiseBroken
    with (
        pytest.raises(expected, match=r"Kafka must serve .*: waited .*COORDINATOR") as raised,
        workload._served(OwnPart(cluster, "serve clients"), Bootstrap(addresses="localhost:1"), topic_of("orders")),
    ):
        pass
    outcome, _ = conclude(CaseLog(troubles=[raised.value]), None, must_be_judged=True, test_file=Path(__file__))
    assert outcome == ("unknown" if is_crowded else "invalid")


def test_a_part_that_does_not_need_a_stopped_broker_is_owed_without_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(cluster, monkeypatch)
    assert isinstance(OwnPart(cluster, "serve", needs_all=False).undone("no ack"), PromiseBroken)


@pytest.mark.parametrize("ask", ["reassign", "cancel", "move", "delete records", "configure"])
def test_a_refused_step_is_a_broken_promise_although_a_broker_was_stopped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    """What operators ask for must be served under faults, too; a scenario may expect the refusal."""

    def refuse(*_: object, **__: object) -> None:
        raise Refused("the request", "UNKNOWN_SERVER_ERROR")

    stopped(cluster, monkeypatch)
    monkeypatch.setattr(cluster, "live_brokers", lambda: cluster.brokers)
    [broker] = cluster.brokers
    broker.admin = fake(
        Admin,
        alter_partition_reassignment=refuse,
        alter_replica_log_dir=refuse,
        delete_records=refuse,
        set_topic_configs=refuse,
    )
    refunds = Topic(cluster, "refunds", 1)
    monkeypatch.setattr(Partition, "leader", lambda _: broker)
    asks: dict[str, Callable[[], object]] = {
        "reassign": lambda: Cluster.reassign(cluster, refunds[0], [broker]),
        "cancel": lambda: Cluster.cancel_reassignment(cluster, refunds[0]),
        "move": lambda: refunds[0].move_to(LogDir(broker, Path("/1"))),
        "delete records": lambda: refunds[0].delete_records(1),
        "configure": lambda: refunds.configure({"retention.ms": "1"}),
    }
    with pytest.raises(RefusedOwnPart, match=r"^Kafka must .*: the request: UNKNOWN_SERVER_ERROR$") as raised:
        asks[ask]()
    assert isinstance(raised.value, PromiseBroken)


@pytest.mark.parametrize(
    ("failure", "is_crowded", "expected"),
    [
        (ToolFailed("kafka-reassign-partitions ended with exit code 1"), False, FailedOwnPart),
        (ToolFailed("kafka-reassign-partitions ended with exit code 1"), True, FailedOwnPart),
        (ToolTooLate("kafka-reassign-partitions did not end"), False, FailedOwnPart),
        (ToolTooLate("kafka-reassign-partitions did not end"), True, Inconclusive),
    ],
    ids=str,
)
def test_a_tool_that_fails_is_a_broken_promise(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    failure: ToolFailed,
    is_crowded: bool,
    expected: type[JbodError],
) -> None:
    """On a crowded machine it may be too late, but it has no other excuse."""
    if is_crowded:
        crowded(cluster, monkeypatch)
    with (
        pytest.raises(expected, match=f"Kafka must reassign: {failure}"),
        OwnPart(cluster, "reassign", needs_all=False).served(),
    ):
        raise failure
