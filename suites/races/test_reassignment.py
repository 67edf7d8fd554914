"""Holds a leader's thread while a reassignment is about to end."""

from __future__ import annotations

from contextlib import suppress

from faults.base import injected
from faults.broker import BrokerPaused
from faults.held import Held
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.errors import AwaitTimeout, Inconclusive, PromiseBroken
from harness.kafka.versions import VersionRange
from harness.waiting import await_until
from suites.deviations import ENDS_ON_FAILED_LOG_DIR
from suites.leadership import await_offline, await_out_of_sync
from suites.observing import observe
from suites.scenario import scenario
from suites.steps import write_untracked_records


@scenario(
    "races/reassigned-to-failed",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: it was about to get the only replica",
    builds=VersionRange.parse(">=3.7.0"),
    judged=False,
    deviations=(ENDS_ON_FAILED_LOG_DIR,),
    holds=True,
)
def test_reassigned_to_failed(cluster: Cluster) -> None:
    """A log dir fails as its replica is to become the only one: the reassignment waits, and the leader stays."""
    orders = cluster.create_topic("orders", replicas=2)
    write_untracked_records(orders, 100)
    leader, staying = leader_of(orders[0]), follower_of(orders[0])
    here, failing = orders[0].log_dir_on(leader), orders[0].log_dir_on(staying)
    with injected(BrokerPaused(staying)) as pause:
        await_out_of_sync(orders[0], staying)
        cluster.reassign(orders[0], [staying])
        joins = Held(cluster, leader, "isr-change-sent", about="orders-0", by=pause.undo)
        with injected(joins), injected(Chmod000(failing)):
            await_offline(orders[0], staying)
            if staying.id in orders[0].describe(leader).isr:
                raise Inconclusive(f"{staying} is in the ISR of {orders[0]} before {leader} has asked for it")
            joins.undo()
            with suppress(AwaitTimeout):
                await_until(
                    lambda: here.replica_dir("orders", 0).exists(),
                    lambda stays: not stays,
                    timeout_s=timeouts.REQUEST_S,
                    what=f"{leader} to delete the replica",
                )
            state, stays = orders[0].describe(leader), here.replica_dir("orders", 0).exists()
            ended = (state.replicas, state.leader, stays) == ((staying.id,), None, False)
            if not ended and (state.leader, stays) != (leader.id, True):
                raise PromiseBroken(f"{leader} must lead {orders[0]}: {state}; it has the replica: {stays}")
            seen = f"{state}; {leader} has the replica: {stays}"
            observe(ENDS_ON_FAILED_LOG_DIR, cluster, deviates=ended, seen=seen)
