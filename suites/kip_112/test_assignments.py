"""Shows what a KRaft broker's report of a replica's log dir does (KIP-858).

The log dir has failed, or no controller answers until the broker gives up its request.
"""

from __future__ import annotations

import time

from faults.base import injected
from faults.held import Held
from faults.log_dir import Chmod000
from faults.quorum import ControllerKilled
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.kafka.versions import Mode, VersionRange
from harness.waiting import await_until
from suites.broker_epochs import report_replica_in
from suites.deviations import FAILED_REPLICA_IN_ISR_AT_TIMES
from suites.leadership import await_state
from suites.moves import await_moved
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import (
    log_dirs_failed,
    one_partition_per_log_dir,
    restart_after_healing,
    write_untracked_records,
)

KNOWN_S = 1.0
"""The broker corrects the report since it knows the controller's decision, and a hold may not last long."""

GIVES_UP_S = 60.0
"""How long a broker sends a report to controllers that do not answer (``BrokerServer``, ``retryTimeoutMs``)."""
REPORT_FAILED = r"assignments failed; global error"
"""The log line of a broker that then queues the report again (3.9 and later)."""


@scenario(
    "kip-112/assigned-to-failed",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: a replica was assigned to it at the same time",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    holds=True,
    deviations=(FAILED_REPLICA_IN_ISR_AT_TIMES,),
)
def test_assigned_to_failed(cluster: Cluster) -> None:
    """The controller hears that the leader's replica is in a log dir that has failed: another broker leads.

    A broker reports this if a log dir fails as a move into it ends. Here the harness does. So the broker corrects it,
    and is in the ISR again. Its correction is held meanwhile, as it would elect another leader, too.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    leader = leader_of(orders[0])
    failed = other_dir(orders[0].log_dir_on(leader))
    with log_dirs_failed(state, Chmod000(failed), check_at_end=False):
        corrected = Held(cluster, leader, "assignments-sent", by=lambda: report_replica_in(failed, orders[0]))
        with injected(corrected):
            await_state(
                orders[0],
                lambda seen: seen.leader not in (None, leader.id),
                f"another broker than {leader} to lead {orders[0]}, which it reported in {failed}",
                KNOWN_S,
                via=leader,
            )
        await_state(
            orders[0],
            lambda seen: leader.id in seen.isr and leader.id not in seen.offline_replicas,
            f"{leader} to be in the ISR of {orders[0]} again, since its replica is in a good log dir",
            timeouts.RECOVERY_S,
        )
    restart_after_healing(state, leader)


@scenario(
    "kip-112/reported-again",
    kip=113,
    plan="2. Complete replica data movement: there is no controller until the broker gives up its report (KIP-858)",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    floors=NO_FAULT,
)
def test_reported_again(cluster: Cluster) -> None:
    """Replicas of a leader and of a follower move while there is no controller for over a minute: the moves then end.

    A broker must report the new log dir before the replica moves into it. It gives up the request after a minute.
    """
    orders = one_partition_per_log_dir(cluster)
    write_untracked_records(orders, 100)
    mover = leader_of(orders[0])
    moves = {partition: other_dir(partition.log_dir_on(mover)) for partition in orders.partitions}
    with injected(ControllerKilled(cluster, mover)):
        for partition, log_dir in moves.items():
            partition.move_to(log_dir)
        await_report_failed(mover)
    for partition, log_dir in moves.items():
        await_moved(partition, log_dir)


def await_report_failed(broker: Broker) -> None:
    """Wait until a broker has given up a report: its log has a line about it, or the time for it is over."""
    since = time.monotonic()
    await_until(
        lambda: broker.log.first(REPORT_FAILED) or time.monotonic() - since > GIVES_UP_S + timeouts.REQUEST_S,
        timeout_s=GIVES_UP_S + timeouts.RECOVERY_S,
        what=f"{broker} to give up its report",
        watch=broker.node.check_alive,
    )
