"""Shows that a controller knows the voters (KIP-853) after it had to truncate its metadata log."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from datetime import datetime

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode, VersionRange
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_noticed, promised
from suites.controllers import check_follows, last_start, quorum_of, standbys_of
from suites.deviations import TRUNCATION_HIDES_VOTERS
from suites.quorum.voters import add_voter, check_none_active, check_succeeded, check_voters, replica_of, replicas_of
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import restart_after_healing

TAIL = 200
"""Records that only one controller has: more than the others write until they have added a voter."""
TRIES = 16
"""How often controllers stand for election in vain before none is expected to win."""
TRUNCATED = r"Truncated to offset \d+ from Fetch response from leader"
STANDS = r"Completed transition to (?:Prospective|Candidate)State"
"""The log lines of a controller that follows another log, and of one that stands for election."""


@scenario(
    "quorum/voter-added-after-truncation",
    kip=853,
    plan="a controller learns of a new voter where its own log was truncated",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9"),  # older builds cannot add controllers
    deviations=(TRUNCATION_HIDES_VOTERS,),
    controllers=3,
    dynamic_quorum=True,
)
def test_voter_added_after_truncation(cluster: Cluster, workload: CaseWorkload) -> None:
    """A voter is added where a controller truncated its log: two of four elect no controller, as a log dir fails.

    The active controller writes records that no other one gets. The others elect another one and add a fourth voter.
    Then the first one comes back, truncates its log, and gets the record of the four voters.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    first = replicas_of(cluster, cluster.quorum_nodes)
    truncates = cluster.active_controller()
    with workload.running(orders) as pair:
        fourth = cluster.add_controller()
        check_voters(cluster, first, replica_of(cluster, fourth))
        others = [controller for controller in standbys_of(cluster) if controller != fourth]
        write_alone(cluster, truncates, others)
        add_voter(cluster, fourth)
        check_voters(cluster, first | {replica_of(cluster, fourth)})
        truncates.start()
        check_follows(cluster, truncates)
        await_truncated(cluster, truncates)
        active = cluster.active_controller()
        with ExitStack() as failed:
            since = now()
            active.kill()
            fourth.kill()
            wrong = f"two of four voters elected {truncates.spec.name}$"
            with promised(cluster, unless=TRUNCATION_HIDES_VOTERS, seen=wrong):
                check_none_elected(cluster, since)
            fault = failed.enter_context(injected(Chmod000(orders[0].log_dir_on(victim))))
            check_noticed(fault)
            for controller in (active, fourth):
                controller.start()
            state.log_dir_failed(fault.log_dir)
            state.check()
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


def write_alone(cluster: Cluster, active: Node, others: list[Node]) -> None:
    """Kill the standbys, let the active controller write records that it cannot commit, kill it, start the standbys."""
    for controller in others:
        controller.kill()
    configs = {f"jbod.tail.{n}": "x" for n in range(TAIL)}
    with suppress(NoAnswer, Refused):
        quorum_of(cluster).controller_admin(active).set_broker_configs(cluster.brokers[0].id, configs)
    check_none_active(cluster)
    active.kill()
    for controller in others:
        controller.start()
    check_succeeded(cluster, active)


def await_truncated(cluster: Cluster, controller: Node) -> None:
    """Wait until a controller has truncated its log since its start.

    :raises Inconclusive: it has not, so it had no records that the others lack
    """
    since = last_start(cluster.journal, controller)
    await_until(
        lambda: controller.log.first(TRUNCATED, since=since),
        timeout_s=timeouts.REQUEST_S,
        what=f"{controller.spec.name} to log /{TRUNCATED}/",
        failure=Inconclusive,
    )


def check_none_elected(cluster: Cluster, since: datetime) -> None:
    """No controller is elected, though they stand for election.

    :param since: before the voters were killed
    """
    alive = [controller for controller in cluster.quorum_nodes if controller.is_alive()]

    def elected() -> tuple[list[str], int]:
        tries = sum(bool(re.search(STANDS, line.text)) for each in alive for line in each.log.lines(since=since))
        names = [each.spec.name for each in alive]
        return [name for name in names if cluster.mbeans[name].offline_partitions() is not None], tries

    names, _ = await_until(
        elected,
        lambda seen: bool(seen[0]) or seen[1] >= TRIES,
        timeout_s=timeouts.CONTROLLER_FAILURE_S,
        what=f"{TRIES} elections",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    if names:
        raise PromiseBroken(f"two of four voters elected {', '.join(names)}")
