"""A broker is there for its clients and cut off from the others: no disk fails, and what was acked must be kept.

Only where brokers have networks of their own (``--backend docker``). A leader that can't be told that it no longer
leads may take records, but must not ack one that the others don't have.
"""

from __future__ import annotations

from faults.base import injected
from faults.network import NETWORK_FAULTS, Cut
from faults.targets import leader_of
from harness import timeouts
from harness.cluster import Cluster
from harness.doors.wire import NoAnswer
from harness.errors import PromiseBroken
from harness.journal import now
from harness.runs.measure import Floors
from harness.waiting import await_until
from harness.workload import CaseWorkload
from suites.checks import check_delivery
from suites.scenario import each_fault, scenario


@scenario(
    "network/leader-cut-off",
    kip=112,
    plan="not of the KIP: a leader that nobody but clients can reach",
    floors=Floors(during=0),  # clients may go on asking the old leader; how long is measured
)
@each_fault("cut", NETWORK_FAULTS)
def test_leader_cut_off(cluster: Cluster, workload: CaseWorkload, cut: type[Cut]) -> None:
    """The leader is cut off from brokers and controller, both ways or one: another leads, and nothing acked is lost."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    victim = leader_of(orders[0])
    witness, _ = others = cluster.others(victim)
    with workload.running(orders) as pair:
        with injected(cut(victim, [*cluster.quorum_nodes, *(broker.node for broker in others)])):
            await_until(
                lambda: witness.admin.describe_cluster(topics=(orders.name,)).partitions[0].leader,
                lambda leader: leader not in (None, victim.id),
                timeout_s=timeouts.BROKER_FAILURE_S,
                what=f"another leader than {victim}, which is cut off",
                retry_on=(NoAnswer,),
                failure=PromiseBroken,
            )
        cluster.await_healthy(failure=PromiseBroken)
        pair.await_progress(after=now())
    check_delivery(workload)
