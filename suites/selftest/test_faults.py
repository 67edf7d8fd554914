"""Faults are proven by what the broker's own user sees, and only by a change."""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import LOG_DIR_FAULTS, Chmod000, LogDirFault, ReplicaChmod000
from faults.quorum import ControllerKilled, ControllerUnseated
from faults.segment import AbortsBackdated, AbortsForgotten, AbortsMisattributed, ByteFlipped, IndexUnreadable
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.nodes.node import ClusterContext, NodeSpec
from harness.cluster.nodes.process import ProcessNode
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.quorum.zookeeper import ControllerZnode
from harness.cluster.spec import ClusterSpec
from harness.errors import FaultNotProven, PromiseBroken
from harness.host.broker_user import broker_user
from harness.host.undo import UndoLog
from harness.kafka.admin import Admin
from harness.kafka.connection import NoAnswer
from harness.kafka.mbeans import MBeans
from harness.kafka.versions import Mode
from suites.checks import check_rebuilt
from suites.selftest.disks import interrupted_after
from suites.selftest.fakes import fake, fake_broker, fake_node, log_dir_at, topic_of
from suites.selftest.journal_lines import lines_of


@pytest.fixture
def log_dir(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogDir]:
    """A log dir on a real file system, of a broker that does not run; its undo log is real."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    undo_log = UndoLog("r")
    path = undo_log.dir / "broker-1-log-dir-1"
    path.mkdir()
    user = broker_user()
    if user.drop:
        os.chown(path, user.uid, user.gid)
        os.chown(undo_log.dir, user.uid, user.gid)
    node = fake_node(_user=user, _context=fake(ClusterContext, undo_log=undo_log))
    yield log_dir_at(path, fake_broker(node=node, undo_log=undo_log, is_alive=False))
    undo_log.close()


@pytest.mark.parametrize("fault_type", LOG_DIR_FAULTS, ids=lambda fault: fault.name)
def test_each_way_is_proven_and_taken_back(log_dir: LogDir, fault_type: type[LogDirFault]) -> None:
    before = log_dir.path.stat()
    with injected(fault_type(log_dir)):
        [event] = lines_of(log_dir.broker.journal, "fault.injected")
        assert fault_type.expected_error in event["evidence"]
    after = log_dir.path.stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("fault_type", LOG_DIR_FAULTS, ids=lambda fault: fault.name)
def test_an_injection_that_is_cut_short_at_any_line_heals(log_dir: LogDir, fault_type: type[LogDirFault]) -> None:
    before = log_dir.path.stat()
    for number in itertools.count():
        try:
            with interrupted_after(number), injected(fault_type(log_dir)):
                break
        except KeyboardInterrupt:
            after = log_dir.path.stat()
            assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert number > 3


def test_one_replicas_folder_fails_and_the_rest_of_the_log_dir_does_not(log_dir: LogDir) -> None:
    orders = topic_of("orders", partitions=2)
    for partition in orders.partitions:
        folder = log_dir.replica_dir("orders", partition.index)
        folder.mkdir()
        os.chown(folder, log_dir.path.stat().st_uid, log_dir.path.stat().st_gid)
    with injected(ReplicaChmod000(log_dir, orders[0])) as fault:
        assert fault.target == f"orders-0 in {log_dir}"
        assert fault.noticed_by == Chmod000(log_dir).noticed_by
        assert Chmod000(log_dir).write_error() is None
        assert ReplicaChmod000(log_dir, orders[1]).write_error() is None
    assert fault.write_error() is None


def test_a_fault_that_does_nothing_is_not_proven(log_dir: LogDir) -> None:
    class Nothing(Chmod000):
        takes_away = 0

    with pytest.raises(FaultNotProven, match="nothing outside Kafka shows its effect"), injected(Nothing(log_dir)):
        pytest.fail("must not get here")
    assert list(lines_of(log_dir.broker.journal, "fault.not_proven"))


def test_a_dir_that_was_broken_before_proves_nothing(log_dir: LogDir) -> None:
    log_dir.path.chmod(0)
    with pytest.raises(FaultNotProven, match="could not be written before"), injected(Chmod000(log_dir)):
        pytest.fail("must not get here")
    log_dir.path.chmod(0o755)


def test_a_broker_that_is_down_can_not_be_killed(log_dir: LogDir) -> None:
    with pytest.raises(FaultNotProven, match="did not run before"):
        BrokerKilled(log_dir.broker).inject()


def test_a_controller_whose_seat_is_not_taken_is_still_there() -> None:
    """The fault is not proven where ``/controller`` is not the harness's znode; the harness leaves it all the same."""
    left = []
    seat = fake(ControllerZnode, take_over=lambda: None, is_taken_over=lambda: False, release=lambda: left.append(True))
    with (
        pytest.raises(FaultNotProven, match="controller_unseated"),
        injected(ControllerUnseated(fake_broker(), seat)),
    ):
        pass
    assert left


def test_another_dirs_log_line_is_not_taken_for_this_ones(log_dir: LogDir) -> None:
    pattern = Chmod000(log_dir).noticed_by
    assert pattern is not None
    assert re.search(pattern, f"Stopping serving logs in dir {log_dir.path} (kafka.log.LogManager)")
    assert not re.search(pattern, f"Stopping serving logs in dir {log_dir.path}0 (kafka.log.LogManager)")


@pytest.mark.parametrize("fault_type", LOG_DIR_FAULTS, ids=lambda fault: fault.name)
def test_undo_twice_is_undo_once(log_dir: LogDir, fault_type: type[LogDirFault]) -> None:
    """A second undo changes nothing, whatever the log dir's permissions are by then."""
    fault = fault_type(log_dir)
    fault.inject()
    fault.undo()
    log_dir.path.chmod(0o700)
    fault.undo()
    assert log_dir.path.stat().st_mode & 0o777 == 0o700


# --- controllers ------------------------------------------------------------------------------------------------------


class ControllerNode(ProcessNode):
    """A controller of :class:`Controllers`; its exit code is that of SIGKILL."""

    def __init__(self, cluster: Controllers, id: int) -> None:
        properties = {"node.id": str(id), "process.roles": "controller"}
        self.spec = NodeSpec(name=f"controller-{id}", main_class="kafka.Kafka", properties=properties)
        self.cluster, self.id, self.alive = cluster, id, True

    def is_alive(self) -> bool:
        return self.alive

    def exit_code(self) -> int | None:
        return -9

    def kill(self) -> None:
        self.alive = False
        self.cluster.killed(self.id)

    def start(self) -> None:
        self.alive = True


class Controllers(Cluster):
    """A cluster's controllers, from 100 on; 100 is the active one at first.

    :ivar active: the controllers whose MBeans say that they are active
    :ivar named: the controller that the brokers name
    :ivar follows: the leader that each controller's MBeans name
    :ivar heir: the controller that becomes active when the active one is killed; None: none does
    :ivar told: whether the brokers then name the heir
    """

    def __init__(self, count: int) -> None:
        self.spec = ClusterSpec(mode=Mode.KRAFT, controllers=count)
        self.active = {100}
        self.named: int | None = 100
        self.follows: dict[int, int | None] = dict.fromkeys(range(101, 100 + count), 100)
        self.heir: int | None = 101
        self.told = True
        nodes = [ControllerNode(self, 100 + n) for n in range(count)]
        self.quorum_nodes = [*nodes]
        self.mbeans = {node.spec.name: self._mbeans(node.id) for node in nodes}
        self.quorum = fake(KRaftQuorum, controller=lambda admin: self.named)

    def live_brokers(self) -> list[Broker]:
        return []

    def killed(self, id: int) -> None:
        if id in self.active:
            self.active = set() if self.heir is None else {self.heir}
            self.named = self.heir if self.told else id

    def _mbeans(self, id: int) -> MBeans:
        return fake(
            MBeans,
            offline_partitions=lambda: 0 if id in self.active else None,
            followed=lambda: self.follows[id],
        )


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker that names a controller; a fault waits 0.2 s for another controller."""
    monkeypatch.setattr(timeouts, "CONTROLLER_FAILURE_S", 0.2)
    return fake_broker(admin=fake(Admin))


def test_another_controller_takes_over(witness: Broker) -> None:
    cluster = Controllers(3)
    with injected(ControllerKilled(cluster, witness)) as fault:
        [event] = lines_of(witness.journal, "fault.injected")
        assert fault.target == "controller-100"
        assert event["evidence"] == "exit code -9; controller-101 is the active controller"
        [event] = lines_of(witness.journal, "controller.taken_over")
        assert (event["before"], event["after"]) == ("controller-100", "controller-101")
    assert all(node.is_alive() for node in cluster.quorum_nodes)
    assert cluster.active == {101}


def test_an_only_controller_leaves_none(witness: Broker) -> None:
    cluster = Controllers(1)
    cluster.heir = None
    with injected(ControllerKilled(cluster, witness)), pytest.raises(NoAnswer, match="not 0"):
        cluster.active_controller()
    assert not list(lines_of(witness.journal, "controller.taken_over"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"named": 101}, "controller-100 to be the active controller .* names 101 as the active controller"),
        (
            {"follows": {101: 100, 102: None}},
            "controller-100 to be the active controller .*controller-102 follows None",
        ),
        ({"follows": {101: 102, 102: None}}, "controller-101 follows 102"),
        ({"heir": None}, "another controller to take over from controller-100"),
        ({"told": False}, "another controller to take over from controller-100"),
    ],
    ids=["a-standby", "one-is-not-up", "another-epoch", "nobody-takes-over", "no-broker-has-heard"],
)
def test_a_controller_that_is_not_followed_by_another_proves_nothing(
    witness: Broker, changes: Mapping[str, object], says: str
) -> None:
    cluster = Controllers(3)
    vars(cluster).update(changes)
    with pytest.raises(FaultNotProven, match=says), injected(ControllerKilled(cluster, witness)):
        pytest.fail("must not get here")
    assert not list(lines_of(witness.journal, "fault.injected"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"controllers": 2}, "a quorum has 1 or 3 controllers, not 2"),
        ({"controllers": 5}, "not 5"),
        ({"mode": Mode.ZK, "controllers": 3}, "ZooKeeper mode has no dedicated controllers"),
        ({"mode": Mode.ZK, "combined": True}, "ZooKeeper mode has no dedicated controllers"),
        ({"controllers": 3, "combined": True}, "combined nodes are the controllers"),
        ({"controllers": 3, "mbeans": False}, "several controllers need MBeans, which show which one is active"),
    ],
)
def test_controllers_that_there_can_not_be(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ClusterSpec(**{"mode": Mode.KRAFT, **fields})


def test_an_only_controller_without_mbeans_is_the_one() -> None:
    cluster = Controllers(1)
    cluster.spec = ClusterSpec(mode=Mode.KRAFT, mbeans=False)
    cluster.active = set()
    assert cluster.active_controller() is cluster.quorum_nodes[0]


def test_two_that_say_that_they_are_active_are_none() -> None:
    cluster = Controllers(3)
    cluster.active = {100, 102}
    with pytest.raises(NoAnswer, match=r"not 2: \['controller-100', 'controller-102'\]"):
        cluster.active_controller()


# --- segments ---------------------------------------------------------------------------------------------------------

ABORTED = struct.Struct(">hqqqq")  # version, producer id, first, last and last stable offset


@pytest.mark.parametrize("entries", [1, 3])
def test_aborts_are_laid_to_another_producer_and_given_back(log_dir: LogDir, entries: int) -> None:
    folder = log_dir.replica_dir("t", 0)
    folder.mkdir()
    index = folder / f"{0:020d}.txnindex"
    before = b"".join(ABORTED.pack(0, 7, n * 10, n * 10 + 5, n * 10) for n in range(entries))
    index.write_bytes(before)
    with injected(AbortsMisattributed(log_dir, "t", 0)):
        aborts = list(ABORTED.iter_unpack(index.read_bytes()))
        assert aborts == [(0, 6, n * 10, n * 10 + 5, n * 10) for n in range(entries)]
    assert index.read_bytes() == before


def test_aborts_begin_earlier_and_are_given_back(log_dir: LogDir) -> None:
    folder = log_dir.replica_dir("t", 0)
    folder.mkdir()
    index = folder / f"{0:020d}.txnindex"
    before = b"".join(ABORTED.pack(0, 7, first, first + 50, first) for first in (51, 102, 459, 561))
    index.write_bytes(before)
    with injected(AbortsBackdated(log_dir, "t", 0)):
        assert [first for _, _, first, _, _ in ABORTED.iter_unpack(index.read_bytes())] == [51, 38, 395, 561]
    assert index.read_bytes() == before


def test_aborts_end_before_the_log_and_are_given_back(log_dir: LogDir) -> None:
    folder = log_dir.replica_dir("t", 0)
    folder.mkdir()
    index = folder / f"{0:020d}.txnindex"
    before = b"".join(ABORTED.pack(0, 7, n * 10, n * 10 + 5, n * 10) for n in range(3))
    index.write_bytes(before)
    with injected(AbortsForgotten(log_dir, "t", 0)):
        aborts = list(ABORTED.iter_unpack(index.read_bytes()))
        assert aborts == [(0, 7, n * 10, n * 10 + 5 - (1 << 63), n * 10) for n in range(3)]
    assert index.read_bytes() == before


def test_without_an_abort_there_is_none_to_lay_to_another(log_dir: LogDir) -> None:
    with pytest.raises(FaultNotProven), injected(AbortsMisattributed(log_dir, "t", 0)):
        pass


@pytest.mark.parametrize("anew", [b"", b"cut", b"before jbod r p0 60 0123456789"])
def test_what_kafka_wrote_anew_is_not_flipped_back(log_dir: LogDir, anew: bytes) -> None:
    """Kafka may truncate the records or fetch them again; the check fails only while the flipped bit is there."""
    folder = log_dir.replica_dir("t", 0)
    folder.mkdir()
    segment = folder / f"{0:020d}.log"
    segment.write_bytes(b"before jbod r p0 60 0123456789")
    with injected(ByteFlipped(log_dir, "t", 0, text=b"jbod r p0 60 ")) as flip:
        with pytest.raises(PromiseBroken, match=r"loaded t-0/.* with the flipped bit"):
            check_rebuilt(flip)
        segment.write_bytes(anew)
        check_rebuilt(flip)
    assert segment.read_bytes() == anew


def index_of(log_dir: LogDir) -> Path:
    """The offset index of a replica's first segment, which the broker's own user owns."""
    folder, user = log_dir.replica_dir("t", 0), broker_user()
    folder.mkdir()
    index = folder / f"{0:020d}.index"
    index.write_bytes(b"\0" * 8)
    if user.drop:
        os.chown(folder, user.uid, user.gid)
        os.chown(index, user.uid, user.gid)
    return index


def test_an_index_cannot_be_read_and_all_else_can(log_dir: LogDir) -> None:
    index = index_of(log_dir)
    before = index.stat().st_mode
    with injected(IndexUnreadable(log_dir, "t", 0)) as fault:
        assert index.stat().st_mode & 0o777 == 0
        assert fault.write_error() is None
    assert index.stat().st_mode == before
    fault.undo()


def test_an_index_that_was_unreadable_before_proves_nothing(log_dir: LogDir) -> None:
    index = index_of(log_dir)
    index.chmod(0)
    with pytest.raises(FaultNotProven, match="could not be read before"), injected(IndexUnreadable(log_dir, "t", 0)):
        pass
    index.unlink()
    with pytest.raises(FaultNotProven, match="could not be read before"), injected(IndexUnreadable(log_dir, "t", 0)):
        pass
