"""A broker that stays out of an ISR is excused only where the leader's log shows, late enough, that it does not ask."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.broker_log import BrokerLog
from harness.kafka.metadata import PartitionState
from suites.deviations import ISR_CHANGE_LOST, ISR_CHANGE_LOST_AT_TIMES
from suites.migration import rejoining
from suites.selftest.fakes import cluster_state, deviation_kinds, fake_broker, fake_cluster, partition_state

NOT_ASKED = (
    "[Partition {partition} broker={leader}] Failed to alter partition to PendingExpandIsr("
    "newInSyncReplicaId={broker}, sentLeaderAndIsr=LeaderAndIsr(leader=1, leaderEpoch=3, "
    "isrWithBrokerEpoch=List(BrokerState(brokerId=1, "
    "brokerEpoch=-1), BrokerState(brokerId=2, brokerEpoch=-1), BrokerState(brokerId=3, brokerEpoch=-1)), "
    "leaderRecoveryState=RECOVERED, partitionEpoch=5), leaderRecoveryState=RECOVERED, "
    "lastCommittedState=CommittedPartitionState(isr=Set(1, 2), leaderRecoveryState=RECOVERED)) since the controller "
    "rejected the request with OPERATION_NOT_ATTEMPTED. Partition state has been reset to the latest committed state"
)
LATE = timedelta(seconds=rejoining.STILL_S + 5)
OUT = partition_state("orders", 1, 2, 3, offline=(3,))
BACK = partition_state("orders", 1, 2, 3)
OF_ANOTHER = partition_state("orders", 2, 1, 3, index=1, offline=(3,))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)


def line(at: datetime, partition: str = "orders-0", leader: int = 1, broker: int = 3) -> str:
    text = NOT_ASKED.format(partition=partition, leader=leader, broker=broker)
    return f"[{at:%Y-%m-%d %H:%M:%S},000] INFO {text} (kafka.cluster.Partition)\n"


def cluster_with(
    folder: Path, *partitions: PartitionState, logged: str = "", version: str = "3.9.2"
) -> tuple[Cluster, Broker]:
    """A cluster with these partitions, all of whose leaders log the same, and broker 3, which is back."""
    log = BrokerLog(folder / "broker.log")
    log.path.write_text(logged)
    brokers = [
        fake_broker(id, log=log, is_running=True, describe_cluster=lambda: cluster_state(*partitions))
        for id in (1, 2, 3)
    ]
    cluster = fake_cluster(version, brokers=brokers, unreachable=set(), check_nodes=lambda: None)
    return cluster, brokers[-1]


def test_a_leader_that_does_not_ask_any_more_is_found(tmp_path: Path) -> None:
    cluster, back = cluster_with(tmp_path, OUT, logged=line(now() + LATE))
    assert rejoining.leader_stuck(cluster, back, unless=ISR_CHANGE_LOST_AT_TIMES) == cluster.brokers[0]
    assert deviation_kinds(cluster) == ["deviation.seen"]


@pytest.mark.parametrize(
    "logged",
    [
        "",
        line(now()),
        line(now() + LATE, leader=2),
        line(now() + LATE, broker=2),
        line(now() + LATE, partition="orders-01"),
        line(now() + LATE).replace("OPERATION_NOT_ATTEMPTED", "INELIGIBLE_REPLICA"),
    ],
    ids=["nothing", "at first only", "another leader", "another broker", "another partition", "another error"],
)
def test_without_its_line_the_leader_is_not_excused(tmp_path: Path, logged: str) -> None:
    cluster, back = cluster_with(tmp_path, OUT, logged=logged)
    with pytest.raises(PromiseBroken, match="broker 3 to be in the ISR of each of its partitions"):
        rejoining.leader_stuck(cluster, back, unless=ISR_CHANGE_LOST_AT_TIMES)
    assert deviation_kinds(cluster) == []


def test_one_leader_excuses_no_other(tmp_path: Path) -> None:
    cluster, back = cluster_with(tmp_path, OUT, OF_ANOTHER, logged=line(now() + LATE))
    with pytest.raises(PromiseBroken, match="orders-1 leader 2"):
        rejoining.leader_stuck(cluster, back, unless=ISR_CHANGE_LOST_AT_TIMES)


def test_of_two_leaders_none_can_restart(tmp_path: Path) -> None:
    logged = line(now() + LATE) + line(now() + LATE, partition="orders-1", leader=2)
    cluster, back = cluster_with(tmp_path, OUT, OF_ANOTHER, logged=logged)
    with pytest.raises(Inconclusive, match="none can lead instead"):
        rejoining.leader_stuck(cluster, back, unless=ISR_CHANGE_LOST_AT_TIMES)


def test_a_broker_that_joins_shows_no_deviation(tmp_path: Path) -> None:
    """Unless it must show, as with a hold."""
    cluster, back = cluster_with(tmp_path, BACK, logged=line(now() + LATE))
    assert rejoining.leader_stuck(cluster, back, unless=ISR_CHANGE_LOST_AT_TIMES) is None
    with pytest.raises(PromiseBroken, match="no longer deviates"):
        rejoining.leader_stuck(cluster, back, unless=ISR_CHANGE_LOST)
    assert deviation_kinds(cluster) == []


def test_another_build_is_not_excused(tmp_path: Path) -> None:
    cluster, back = cluster_with(tmp_path, OUT, logged=line(now() + LATE), version="4.4.0")
    with pytest.raises(PromiseBroken, match="broker 3 does not join the ISR: orders-0 leader 1"):
        rejoining.leader_stuck(cluster, back, unless=ISR_CHANGE_LOST_AT_TIMES)
