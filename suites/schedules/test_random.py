"""Shows that the KIPs' promises hold under random schedules of faults and operations (KIP-112, KIP-113).

Each case plays one schedule. It comes from a ``--schedule`` file. Without files, ``--schedules`` many are drawn, from
``--seed`` and the seeds after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from faults.network import Cut
from harness.cluster.cluster import Cluster
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Expectation
from harness.runner.run import run_of
from harness.workload.readers import Group
from suites.checks import check_delivery, check_group_commits
from suites.deviations import GOOD_LOG_DIR_OFFLINE, GOOD_LOG_DIR_OFFLINE_AT_TIMES, OFFLINE_REPLICAS_COUNTED_LATE
from suites.log_cleaning import COMPACTED, SMALL_SEGMENTS, check_logs_small, write_outdated_records
from suites.observations import metadata_log
from suites.observing import expectation_of
from suites.on_disk import (
    check_logs_unchanged,
    check_no_leftovers,
    check_no_replica_twice,
    check_topic_gone,
    leaders_logs,
)
from suites.scenario import scenario
from suites.schedules.play import Player
from suites.schedules.schedule import Schedule, schedules_of_run
from suites.state_check import StateCheck
from suites.steps import write_untracked_records


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each schedule of the run, with its number as id."""
    get = metafunc.config.getoption
    run = run_of(metafunc.config)
    networks = not {ability.name for ability in run.lacks} & {*Cut.needs}
    schedules = schedules_of_run(
        get("--schedule"), get("--schedules"), run.seed, networks=networks, holds=get("--holds")
    )
    metafunc.parametrize("schedule", schedules, ids=[str(number) for number in range(len(schedules))])


@scenario(
    "schedules/random",
    kip=112,
    plan="all of it, composed at random",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
    fresh=True,  # see suites/readers
    kraft={"controllers": 3},
)
def test_random(cluster: Cluster, workload: CaseWorkload, case: Case, schedule: Schedule) -> None:
    """Log dirs, brokers, controllers and coordinators fail on top of one another: the KIPs hold after each step."""
    case.record(schedule=schedule.to_json(), steps=len(schedule.steps), steps_done=0)
    orders = cluster.create_topic("orders", partitions=3, replicas=3, configs=_segments_of(cluster))
    offsets = cluster.create_topic("__consumer_offsets", configs={"cleanup.policy": "compact"})
    spread = cluster.create_topic("spread", partitions=3, replicas=2)
    accounts = cluster.create_topic("accounts", replicas=3, configs=COMPACTED)
    write_untracked_records(spread, 300, size=1000)
    write_outdated_records(accounts)
    kept = leaders_logs(spread.partitions)
    state = StateCheck(cluster, orders, offsets, spread, accounts)
    with workload.running(orders, readers=(Group(),), record_bytes=1000) as pair:
        player = Player(cluster, state, orders, offsets, accounts, spread, pair)
        try:
            with player.playing():
                player.play(schedule)
        finally:
            tried = replace(schedule, steps=schedule.steps[: player.begun])
            case.record(schedule=tried.to_json(), steps=player.begun, steps_done=player.done)
        state.check(also=[metadata_log])
        check_no_leftovers(cluster, {topic for topic, _ in state.partitions})
        for name in player.deleted:
            check_topic_gone(cluster, name)
        write_outdated_records(accounts)
        check_logs_small(accounts)
    for topic in (orders, spread):
        check_no_replica_twice(topic)
    check_logs_unchanged(kept)
    check_delivery(workload)
    check_group_commits(cluster.journal)
    schedule.check_done(player.done)  # last, so that a broken promise is reported first


def _segments_of(cluster: Cluster) -> Mapping[str, str]:
    """Small segments, so that they roll; the default where a roll during a move may take a log dir offline."""
    known = (expectation_of(each, cluster) for each in (GOOD_LOG_DIR_OFFLINE, GOOD_LOG_DIR_OFFLINE_AT_TIMES))
    return SMALL_SEGMENTS if all(each is Expectation.NONE for each in known) else {}
