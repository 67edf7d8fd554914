"""A cluster is reused only if nothing of the case before is left in it, and each log line is in one case's folder."""

from __future__ import annotations

import itertools
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError

from harness.cluster.cluster import Cluster, boot
from harness.cluster.nodes.jvm import rotate_open_file
from harness.cluster.nodes.node import Endpoint
from harness.cluster.nodes.process import ProcessBackend
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Topic
from harness.errors import EnvironmentLacks
from harness.journal import Journal
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.runner.case import Case, CaseId
from harness.runner.cluster_reuse import AT_MOST, ClusterPool, leftovers, try_to_empty
from harness.waiting import await_until
from suites.selftest.fakes import fake
from suites.selftest.journal_lines import lines_of
from suites.steps import write_untracked_records

COUNT = "i=0; while :; do echo $i; i=$((i + 1)); done"
ALONE = dict.fromkeys(("offsets.topic.replication.factor", "transaction.state.log.replication.factor"), "1")


# --- which cluster a case gets ---------------------------------------------------------------------------------------


class Served(Cluster):
    """A cluster without brokers that has served a case.

    :ivar refuses: the error when another case should get its logs; empty: none
    :ivar left: what is left in it
    :ivar stopped: how often it was stopped
    """

    def __init__(self, spec: ClusterSpec, *, refuses: str = "") -> None:
        self.spec = spec
        self.refuses = refuses
        self.left: list[str] = []
        self.stopped = 0

    def stop_watching(self) -> None:
        pass

    def drift(self) -> list[str]:
        return ["it was changed"]

    def attach_case(self, journal: Journal, record_dir: Path) -> None:
        if self.refuses:
            raise OSError(self.refuses)

    def stop(self) -> None:
        self.stopped += 1


def case(name: str, recorded: dict[str, object] | None = None) -> Case:
    """A case with a journal in memory.

    :param recorded: gets the fields that the case adds to run.json
    """
    id = CaseId(id=name, kip=0, plan="", mode="zk", seed=1, nodeid=name)
    record = ({} if recorded is None else recorded).update
    return fake(Case, id=id, run_dir=Path(name), journal=Journal(None), record=record)


@pytest.fixture
def empties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.runner.cluster_reuse.try_to_empty", lambda _cluster, _case: True)
    monkeypatch.setattr("harness.runner.cluster_reuse.leftovers", lambda cluster: cluster.left)


def pool_with(cluster: Served, *served: str) -> ClusterPool:
    """A pool that holds the cluster, which has served these cases."""
    pool = ClusterPool(print)
    pool.wanted = cluster.spec
    for name in served:
        assert pool.leave(cluster, case(name))
    return pool


@pytest.mark.usefixtures("empties")
def test_the_next_case_takes_it_and_names_the_cases_that_it_has_served() -> None:
    cluster = Served(ClusterSpec(mode=Mode.ZK))
    recorded: dict[str, object] = {}
    pool = pool_with(cluster, "first", "second")
    assert pool.take(ClusterSpec(mode=Mode.ZK), case("third", recorded)) is cluster
    assert recorded == {"served": ["first", "second"]}
    assert pool.leave(cluster, case("third", recorded))
    pool.take(cluster.spec, case("fourth", recorded))
    assert recorded == {"served": ["first", "second", "third"]}
    assert not cluster.stopped


@pytest.mark.usefixtures("empties")
@pytest.mark.parametrize("wanted", [None, ClusterSpec(mode=Mode.ZK, brokers=4)])
def test_no_cluster_is_left_that_no_case_wants(wanted: ClusterSpec | None) -> None:
    cluster = Served(ClusterSpec(mode=Mode.ZK))
    pool = ClusterPool(print)
    pool.wanted = wanted
    assert not pool.leave(cluster, case("first"))


@pytest.mark.usefixtures("empties")
@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (ClusterSpec(mode=Mode.ZK, brokers=4), ClusterSpec(mode=Mode.ZK, brokers=4)),
        (ClusterSpec(mode=Mode.ZK), None),  # the next case wants a fresh cluster
    ],
)
def test_one_that_does_not_fit_is_stopped(spec: ClusterSpec, wanted: ClusterSpec | None) -> None:
    cluster = Served(ClusterSpec(mode=Mode.ZK))
    pool = pool_with(cluster, "first")
    pool.wanted = wanted
    assert pool.take(spec, case("second")) is None
    assert cluster.stopped == 1
    pool.stop()
    assert cluster.stopped == 1


@pytest.mark.usefixtures("empties")
def test_one_whose_logs_can_not_be_handed_on_is_stopped() -> None:
    cluster = Served(ClusterSpec(mode=Mode.ZK), refuses="Invalid cross-device link")
    second = case("second")
    assert pool_with(cluster, "first").take(cluster.spec, second) is None
    assert cluster.stopped == 1
    [event] = lines_of(second.journal, "cluster.not_handed_on")
    assert "cross-device" in event["why"]


@pytest.mark.usefixtures("empties")
def test_a_mistake_of_the_harness_is_seen_and_leaves_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that no broker or disk can cause is raised, and the cluster is stopped."""
    cluster = Served(ClusterSpec(mode=Mode.ZK))
    monkeypatch.setattr(Served, "attach_case", raise_mistake)
    with pytest.raises(AttributeError, match="a mistake"):
        pool_with(cluster, "first").take(cluster.spec, case("second"))
    assert cluster.stopped == 1


def test_so_it_is_when_a_cluster_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that no broker or disk can cause is raised, also while a cluster is emptied."""
    monkeypatch.setattr(Served, "drift", raise_mistake)
    with pytest.raises(AttributeError, match="a mistake"):
        try_to_empty(Served(ClusterSpec(mode=Mode.ZK)), case("first"))


def raise_mistake(*_: object) -> None:
    raise AttributeError("a mistake")


@pytest.mark.parametrize("error", [ConnectionLoss(), KazooTimeoutError("Connection time-out")])
def test_a_zookeeper_that_does_not_answer_is_no_mistake(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_self: KazooClient, _timeout_s: float) -> None:
        raise error

    monkeypatch.setattr(KazooClient, "start", start)
    backend = fake(ProcessBackend, endpoint=lambda *_: Endpoint(address="127.0.0.1:1", port=1))
    with pytest.raises(NoAnswer, match=type(error).__name__):
        ZooKeeperQuorum(work_dir=Path(), backend=backend, main_class="x").leftovers()


@pytest.mark.usefixtures("empties")
def test_one_to_which_something_happened_meanwhile_is_stopped() -> None:
    cluster = Served(ClusterSpec(mode=Mode.ZK))
    pool, second = pool_with(cluster, "first"), case("second")
    cluster.left = ["broker-1 does not run"]
    assert pool.take(cluster.spec, second) is None
    assert cluster.stopped == 1
    assert [event["why"] for event in lines_of(second.journal, "cluster.not_handed_on")] == cluster.left


@pytest.mark.usefixtures("empties")
def test_none_serves_for_ever() -> None:
    cluster = Served(ClusterSpec(mode=Mode.ZK))
    pool = pool_with(cluster, *map(str, range(AT_MOST - 1)))
    assert pool.take(cluster.spec, case("the last")) is not None
    assert not pool.leave(cluster, case("the last"))


def test_what_can_not_be_undone_of_one_is_reported_and_is_no_fault_of_the_next_case(
    monkeypatch: pytest.MonkeyPatch, empties: None
) -> None:
    cluster, said = Served(ClusterSpec(mode=Mode.ZK)), list[str]()

    def stop() -> None:
        raise EnvironmentLacks("a mount is busy")

    monkeypatch.setattr(cluster, "stop", stop)
    pool = ClusterPool(said.append)
    pool.wanted = cluster.spec
    assert pool.leave(cluster, case("first"))
    pool.stop()
    assert "a mount is busy" in said[0]


def test_a_cluster_that_was_changed_is_not_even_emptied() -> None:
    first = case("first")
    assert not try_to_empty(Served(ClusterSpec(mode=Mode.ZK)), first)
    [event] = lines_of(first.journal, "cluster.not_handed_on")
    assert event["why"] == "it was changed"


def test_nor_is_one_that_has_shown_a_deviation_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = case("first")
    first.journal.write("deviation.seen", kip=112, does="a figure is 0", lasts=False)
    first.journal.write("deviation.seen", kip=113, does="cleaning stops", lasts=True)
    monkeypatch.setattr(Served, "drift", lambda _self: [])
    assert not try_to_empty(Served(ClusterSpec(mode=Mode.ZK)), first)
    [event] = lines_of(first.journal, "cluster.not_handed_on")
    assert event["why"] == "the case showed 'cleaning stops'"


def test_a_log_that_can_not_be_moved_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("all of it")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.truncate", full)
    with pytest.raises(OSError, match="No space"):
        rotate_open_file(old, new)
    assert (old.read_text(), old.stat().st_nlink, sorted(tmp_path.iterdir())) == ("all of it", 1, [old])


def test_a_log_goes_on_elsewhere_without_a_line_lost_or_doubled(tmp_path: Path) -> None:
    """A process that opened only the first file writes on while the file is moved; each move pauses the process."""
    files = [tmp_path / str(number) for number in range(20)]
    with files[0].open("ab") as log, subprocess.Popen(["sh", "-c", COUNT], stdout=log) as writer:
        state = psutil.Process(writer.pid)
        for old, new in itertools.pairwise(files):
            await_until(old.stat, lambda stat: stat.st_size > 1000, timeout_s=10, what="some lines")
            writer.send_signal(signal.SIGSTOP)
            await_until(lambda: state.status() == psutil.STATUS_STOPPED, timeout_s=10, what="it to stop")
            rotate_open_file(old, new)
            writer.send_signal(signal.SIGCONT)
        writer.kill()
    told = "".join(file.read_text() for file in files)
    lines = told[: told.rindex("\n")].splitlines()
    assert lines == [str(number) for number in range(len(lines))]


# --- real clusters ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(Mode), ids=str)
def used(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A small cluster that has served a case."""
    cluster = boot(
        ClusterSpec(mode=request.param, brokers=1, overrides=ALONE),
        Builds.choose(BuildOptions(mode=str(request.param))).of(request.param),
        run_id=f"selftest-{secrets.token_hex(3)}",
        record_dir=tmp_path_factory.mktemp("first"),
        journal=Journal(None),
    )
    yield cluster
    cluster.stop()


@pytest.mark.cluster
def test_a_used_cluster_is_emptied_and_serves_another_case(used: Cluster, tmp_path: Path) -> None:
    [broker] = used.brokers
    first, second = (case(str(tmp_path / name)) for name in ("first", "second"))
    used.attach_case(first.journal, first.run_dir)
    assert [event["node"] for event in lines_of(first.journal, "node.goes_on")][-1] == "broker-1"
    orders = used.create_topic("orders", partitions=4, replicas=1)
    write_untracked_records(orders, 100)
    broker.configure({"log.cleaner.threads": "2"})
    broker.admin.set_broker_configs(None, {"log.retention.ms": "3600000"})
    await_until(used.configs_changed, lambda found: "log.retention.ms" in str(found), timeout_s=10, what="it to hear")
    before = broker.log.path
    told = before.read_text()
    assert try_to_empty(used, first), first.journal.events[-1]
    assert first.journal.events[-1].kind == "cluster.handed_on"
    assert not list(lines_of(first.journal, "topic.deleted"))
    assert list(leftovers(used)) == []
    used.attach_case(second.journal, second.run_dir)
    assert before.read_text().startswith(told)
    told = before.read_text()
    assert broker.log.path.is_relative_to(second.run_dir)
    assert "orders" not in told[-200:] + broker.log.path.read_text()
    assert "orders" in (first.run_dir / "emptied" / "1" / "broker.log").read_text()
    assert (broker.log.path.parent / "server.properties").exists()
    again = used.create_topic("orders", partitions=4, replicas=1)
    assert "orders" in broker.log.path.read_text()
    assert [event["topic"] for event in lines_of(second.journal, "topic.created")] == ["orders"]
    assert [partition.describe().leader_epoch for partition in again.partitions] == [0] * 4
    broker.restart()
    used.await_healthy()
    assert before.read_text() == told
    assert try_to_empty(used, second), second.journal.events[-1]


@contextmanager
def strange_file(cluster: Cluster) -> Iterator[None]:
    file = cluster.brokers[0].log_dirs[1].path / "left-behind"
    file.touch()
    yield
    file.unlink()


@contextmanager
def other_settings(cluster: Cluster) -> Iterator[None]:
    node = cluster.brokers[0].node
    was = node.spec.properties["num.io.threads"]
    node.configure({"num.io.threads": "5"})
    yield
    node.configure({"num.io.threads": was})


@contextmanager
def something_to_undo(cluster: Cluster) -> Iterator[None]:
    token = cluster.undo_log.will("chmod", path="/nowhere", mode=0o755)
    yield
    cluster.undo_log.undo(token)


@contextmanager
def hung(cluster: Cluster) -> Iterator[None]:
    cluster.brokers[0].pause()
    yield
    cluster.brokers[0].resume()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (strange_file, "left-behind"),
        (other_settings, "broker-1 does not run with its original settings"),
        (something_to_undo, "undo log differs from cluster start by 1"),
        (hung, "broker-1 does not run"),
    ],
)
def test_a_cluster_with_something_left_is_not_handed_on(
    used: Cluster, tmp_path: Path, plant: Callable[[Cluster], AbstractContextManager[None]], named: str
) -> None:
    with plant(used):
        first = case(str(tmp_path / "first"))
        assert not try_to_empty(used, first)
    assert named in str(first.journal.events[-1].details()["why"])
    second = case(str(tmp_path / "second"))
    assert try_to_empty(used, second), second.journal.events[-1]


@pytest.mark.cluster
def test_what_remains_is_named(used: Cluster, tmp_path: Path) -> None:
    [broker] = used.brokers
    orders: Topic = used.create_topic("orders", partitions=1, replicas=1)
    broker.configure({"log.cleaner.threads": "2"})
    found = "; ".join(leftovers(used))
    assert "knows orders-0" in found
    assert "log.cleaner.threads" in found
    assert f"holds {orders[0]}" in found
    assert ("ZooKeeper has /brokers/topics/orders" in found) == (used.spec.mode is Mode.ZK)
    first = case(str(tmp_path))
    assert try_to_empty(used, first), first.journal.events[-1]
