"""Live controls: clusters on which something really goes wrong, so that the verdict must be red.

They are how the judge is kept honest on real brokers; ``suites/selftest`` runs them and fails where one comes out
green. Nothing else selects them.
"""

from __future__ import annotations

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused
from faults.targets import leader_of
from harness.cluster import Cluster
from harness.journal import now
from harness.workload import CaseWorkload
from suites.checks import check_delivery
from suites.scenario import scenario

ACKED_BY_THE_LEADER_ALONE = {"acks": "1", "enable.idempotence": False}


@scenario(
    "control/loss-by-unclean-election",
    kip=112,
    plan="control: must be invalid, kind lost",
    overrides={"unclean.leader.election.enable": "true"},
)
def test_loss_by_unclean_election(cluster: Cluster, workload: CaseWorkload) -> None:
    """acks=1, followers paused, leader killed: what the leader alone had acked is lost, and the judge must say so."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    leader = leader_of(orders[0])
    with workload.running(orders, producer_config=ACKED_BY_THE_LEADER_ALONE) as pair:
        with injected(*map(BrokerPaused, orders[0].followers())):
            pair.await_acked(after=now())
            leader.kill()
        with injected(BrokerKilled(leader)):
            pair.await_progress(after=now())
    check_delivery(workload)
