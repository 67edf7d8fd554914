"""A broker that lost its session is the machine's fault only if the machine stalled before that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from harness.cluster.cluster import Cluster
from harness.cluster.session_loss import LostSession, lost_session
from harness.crowding import Deadline, Stall, _Sample, _Sampler, stall_before
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.broker_log import BrokerLog
from harness.waiting import await_until
from suites.selftest.fakes import fake_cluster, fake_node

IDLE = Stall(per_core=0.4, longest_s=0.26, waited_for_disk=0.1)
FENCING = "[{:%Y-%m-%d %H:%M:%S},000] INFO Fencing broker 2 at epoch 7 because its session has timed out. (x.Y)\n"


@pytest.mark.parametrize(
    ("stall", "error", "says"),
    [
        (IDLE, PromiseBroken, r"^lost, though this machine was not busy \(0\.4 threads per core .*\); wrong leader$"),
        (Stall(per_core=2.5, longest_s=0.26, waited_for_disk=0.1), Inconclusive, "too slow .2.5 threads per core"),
        (Stall(per_core=0.4, longest_s=3.0, waited_for_disk=0.1), Inconclusive, "a sleep of 0.25 s took up to 3.00 s"),
        (Stall(per_core=0.4, longest_s=0.26, waited_for_disk=0.7), Inconclusive, "waited for a disk 70% of the time"),
        (None, Inconclusive, "^this machine is too slow: lost; wrong leader$"),
    ],
    ids=["idle", "crowded", "suspended", "disk", "not measured"],
)
def test_who_is_to_blame(
    stall: Stall | None, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cluster.session_loss.stall_before", lambda *_: stall)
    with pytest.raises(error, match=says):
        raise LostSession(text="lost", at=now()).blamed("wrong leader")


@pytest.mark.parametrize(
    ("disturb", "error"),
    [
        (lambda cluster: None, PromiseBroken),
        (lambda cluster: cluster.journal.write("node.paused", node="controller-100"), Inconclusive),
        (lambda cluster: strike(cluster), Inconclusive),
        (lambda cluster: kill(cluster), PromiseBroken),
        (lambda cluster: cluster.journal.write("node.paused", node="broker-1"), PromiseBroken),
    ],
    ids=["alone", "controller paused", "controller struck", "controller killed", "broker paused"],
)
def test_a_disturbed_controller_counts_no_heartbeats(
    disturb: Callable[[Cluster], object], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next controller after a killed one counts them."""
    monkeypatch.setattr("harness.cluster.session_loss.stall_before", lambda *_: IDLE)
    log = BrokerLog(tmp_path / "controller.log")
    log.path.write_text(FENCING.format(now()))
    cluster = fake_cluster(brokers=[], quorum_nodes=[fake_node("controller-100", log=log)])
    disturb(cluster)
    lost = lost_session(cluster, but=(), since=now() - timedelta(seconds=2))
    assert lost is not None
    with pytest.raises(error, match="broker 2 lost its session: Fencing broker 2"):
        raise lost.blamed("wrong leader")
    assert lost_session(cluster, but=(2,), since=now() - timedelta(seconds=2)) is None


def strike(cluster: Cluster) -> None:
    """A fault of the controller begins."""
    cluster.journal.write(
        "fault.injecting", fault="f", target="t", broker=1, noticed_by=None, node="controller-100", explains=[]
    )


def kill(cluster: Cluster) -> None:
    """A fault kills the controller."""
    strike(cluster)
    cluster.journal.write("node.killed", node="controller-100")


def test_only_the_seconds_before_the_loss_count() -> None:
    sampler = _Sampler()
    for at, per_core, slept_s, waited_us in [
        (10.0, 9.0, 5.0, 0),
        (20.0, 1.0, 0.25, 1_000_000),
        (20.25, 3.0, 0.25, 1_100_000),
        (22.0, 2.0, 1.75, 2_000_000),
        (30.0, 9.0, 7.0, 9_000_000),
    ]:
        sampler._samples.append(_Sample(at=at, per_core=per_core, slept_s=slept_s, waited_us=waited_us))
    assert sampler.stall(15.0, 22.5) == Stall(per_core=2.0, longest_s=1.75, waited_for_disk=0.5)
    assert sampler.stall(23.5, 31.0) is None  # one sample has no share of time


def test_this_machine_is_measured() -> None:
    """A sleep takes at least as long as asked for."""
    Deadline(0.0)  # the measurement begins
    stall = await_until(lambda: stall_before(now(), 5.0), timeout_s=30.0, what="two samples")
    assert stall is not None
    assert stall.longest_s >= 0.25
    assert stall.waited_for_disk >= 0.0
