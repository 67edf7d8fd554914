"""Shows that share groups keep their promises while log dirs fail, a broker dies and replicas move (KIP-932).

Three members work through a partition all the time: they accept, release and reject records, leave some until their
locks run out, and one of them crashes. The leader of the partition keeps locks and delivery counts in its memory. What
was acknowledged is in ``__share_group_state``, whose leader is the share coordinator. So each next leader, and each
next coordinator, must know of every record that has ended.
"""

from __future__ import annotations

import functools

from faults.broker import BrokerKilled
from faults.log_dir import Chmod000
from faults.targets import other_dir
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.kafka.versions import Mode, VersionRange
from harness.runner.case import Case
from suites.deviations import LATE_ACKNOWLEDGEMENT_CONFIRMED
from suites.followers_behind import injected_ahead
from suites.moves import finish_move
from suites.scenario import NO_FAULT, scenario
from suites.share.members import SETTINGS
from suites.share.work import at_work
from suites.steps import log_dirs_failed, restart_after_healing

PLAN = "2) Log directory failure discovered on leader during runtime, under a share group (KIP-932)"
HAS_SHARE_GROUPS = VersionRange.parse(">=4.2")
"""The builds with share groups by default (``share.version`` 1)."""

# Three log dirs: the topic, the coordinator's log, and that of the group are in one each. Fresh: a deleted topic leaves
# its state in the coordinator's memory for a while.
share_scenario = functools.partial(
    scenario,
    kip=112,
    modes=(Mode.KRAFT,),
    builds=HAS_SHARE_GROUPS,
    judged=False,
    fresh=True,
    log_dirs=3,
    overrides=SETTINGS,
    deviations=(LATE_ACKNOWLEDGEMENT_CONFIRMED,),
)


@share_scenario("share/topic-log-dir", plan=f"{PLAN}: of the topic")
def test_topic_log_dir(cluster: Cluster, case: Case) -> None:
    """The log dir of the topic's leader fails: the next leader knows which records have ended, and delivers the others.

    It delivers those that were locked, too: it knows of no locks.
    """
    with at_work(cluster, case, also=("taken_over",)) as work:
        work.members[0].crash()
        with log_dirs_failed(work.state, Chmod000(work.jobs[0].log_dir_on(work.leader)), ahead=work.jobs):
            work.go_on()
        restart_after_healing(work.state, work.leader)


@share_scenario("share/state-log-dir", plan=f"{PLAN}: of the share coordinator's log")
def test_state_log_dir(cluster: Cluster, case: Case) -> None:
    """The log dir of the share coordinator's log fails on its leader: no confirmed acknowledgement is lost.

    The leader of the topic has the state in its memory until it is restarted. Then the next one reads it from the
    coordinator's log.
    """
    with at_work(cluster, case, also=("taken_over",)) as work:
        work.members[0].crash()
        with log_dirs_failed(work.state, Chmod000(work.states[0].log_dir_on(work.leader)), ahead=work.states):
            work.go_on()
        restart_after_healing(work.state, work.leader)


@share_scenario("share/both-log-dirs", plan=f"{PLAN}: of the share coordinator's log, and then of the topic")
def test_both_log_dirs(cluster: Cluster, case: Case) -> None:
    """The coordinator's log dir fails, and then the topic's: the next leader asks the next coordinator."""
    with at_work(cluster, case, also=("taken_over",)) as work:
        of_states, of_jobs = (topic[0].log_dir_on(work.leader) for topic in (work.states, work.jobs))
        with log_dirs_failed(work.state, Chmod000(of_states), ahead=work.states, check_at_end=False):
            work.members[0].crash()
            with log_dirs_failed(work.state, Chmod000(of_jobs), ahead=work.jobs):
                work.go_on()
        restart_after_healing(work.state, work.leader)


@share_scenario(
    "share/leader-killed", plan="a broker dies that leads the topic of a share group and is its coordinator"
)
def test_leader_killed(cluster: Cluster, case: Case) -> None:
    """One broker leads the topic and the coordinator's log, and dies: the next leaders know what has ended."""
    with at_work(cluster, case, also=("taken_over",)) as work:
        work.members[0].crash()
        with injected_ahead(work.states, BrokerKilled(work.leader)):
            work.state.broker_gone(work.leader)
            work.state.check()
            work.go_on()
        work.state.broker_back(work.leader)
        work.state.check(timeouts.RECOVERY_S)


@share_scenario(
    "share/moved",
    plan="KIP-113, 2. How to move replica between log directories: of a share group's topic and its coordinator's log",
    floors=NO_FAULT,
)
def test_moved(cluster: Cluster, case: Case) -> None:
    """The replicas that lead the topic and the coordinator's log move to other log dirs: members notice nothing."""
    with at_work(cluster, case) as work:
        for topic in (work.jobs, work.states):
            work.members[0].crash()
            there = other_dir(topic[0].log_dir_on(work.leader))
            topic[0].move_to(there)
            finish_move(work.state, topic[0], there)
            work.state.check()
            work.go_on()
