"""Holds a leader's thread while a reassignment is about to end."""

from __future__ import annotations

from contextlib import suppress

from faults.base import injected
from faults.broker import BrokerPaused
from faults.held import Held
from faults.log_dir import Chmod000
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.errors import AwaitTimeout, Inconclusive, PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.versions import VersionRange
from harness.waiting import await_until
from suites.deviations import ENDS_ON_FAILED_LOG_DIR
from suites.leadership import await_offline, await_out_of_sync
from suites.observing import observe
from suites.reassignments import await_no_reassignment
from suites.scenario import scenario
from suites.steps import write_untracked_records

PAUSED_IN_SESSION = {
    "replica.lag.time.max.ms": "1000",
    "broker.session.timeout.ms": "9000",
    "zookeeper.session.timeout.ms": "9000",
}
"""A paused follower leaves the ISR before its session ends.

If its session ended, a ZooKeeper controller would raise the leader epoch as the broker returns. It would then refuse
the change of the ISR that the leader was about to request.
"""


@scenario(
    "races/reassigned-to-failed",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: it was about to get the only replica",
    builds=VersionRange.parse(">=3.7.0"),
    judged=False,
    deviations=(ENDS_ON_FAILED_LOG_DIR,),
    holds=True,
    overrides=PAUSED_IN_SESSION,
)
def test_reassigned_to_failed(cluster: Cluster) -> None:
    """A log dir fails as its replica is to become the only one: the reassignment waits, and the leader stays."""
    # A controller that is paused would neither take the follower from the ISR nor accept a reassignment.
    leader, staying = [each for each in cluster.brokers if each != cluster.controller_broker()][:2]
    [orders] = cluster.create_topics(NewTopic(name="orders", assignment={0: [leader.id, staying.id]}))
    write_untracked_records(orders, 100)
    here, failing = orders[0].log_dir_on(leader), orders[0].log_dir_on(staying)
    with injected(BrokerPaused(staying)) as pause:
        write_untracked_records(orders, 1, to=leader)  # a follower that has all records stays in the ISR
        await_out_of_sync(orders[0], staying)
        cluster.reassign(orders[0], [staying])
        joins = Held(cluster, leader, "isr-change-sent", about="orders-0", by=pause.undo)
        with injected(joins), injected(Chmod000(failing)):
            await_offline(orders[0], staying, via=leader)
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
            if not ended:
                cluster.cancel_reassignment(orders[0])
                await_no_reassignment(cluster)
