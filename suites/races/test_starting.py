"""Holds a broker that starts, and one of its log dirs fails meanwhile."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

from faults.base import injected
from faults.broker import BrokerKilled
from faults.held import Held
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode, VersionRange
from harness.waiting import await_until
from suites.checks import check_logged
from suites.deviations import ENDS_AS_LOGS_LOAD, LED_ON_FAILED_LOG_DIR
from suites.leadership import await_active, await_offline, led_in_same_log_dir
from suites.observing import observe
from suites.replica_mbeans import mbeans_of
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import ends_as_known, restart_after_healing, start_after_healing, write_untracked_records

UNFENCING_ASKED = "Waiting for the broker to be unfenced"
REPLICAS_STOPPED = "Stopped serving replicas in dir {path} "
CLEANER_NOT_MADE = "AccessDeniedException: {path}/cleaner-offset-checkpoint"
COUNTS_LOGS_TO_LOAD = VersionRange.parse(">=3.3")
COUNTED_S = 4.0  # half the limit of the hold
METADATA_LOG = "__cluster_metadata-0"
"""A folder in a log dir; a broker does not count it among its logs."""
PARTITIONS = 12
"""With one replica each: each of three brokers leads two of them in each of its two log dirs."""


@scenario(
    "races/failed-as-logs-load",
    kip=112,
    plan="1. A log directory is not available when a broker starts: it fails before the broker loads its logs",
    judged=False,
    deviations=(ENDS_AS_LOGS_LOAD,),
    holds=True,
    overrides={"num.recovery.threads.per.data.dir": "1"},
)
def test_failed_as_logs_load(cluster: Cluster) -> None:
    """A log dir fails on a broker that starts, after its first access and before its logs are loaded: it is offline.

    The broker leads the partitions of its good log dir again. Before that, it shows how far it is as it loads its logs.
    """
    orders = cluster.create_topic("orders", partitions=PARTITIONS, replicas=1)
    write_untracked_records(orders, PARTITIONS)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    fault = Chmod000(orders[0].log_dir_on(victim))
    if cluster.distribution.version in COUNTS_LOGS_TO_LOAD:
        check_loading_counted(state, fault.log_dir)
    loads = Held(cluster, victim, "logs-loaded", by=victim.start)
    with ExitStack() as ends:
        ends.enter_context(injected(BrokerKilled(victim)))
        state.broker_gone(victim)
        state.check()
        with injected(loads):
            ends.enter_context(injected(fault))
        saying = CLEANER_NOT_MADE.format(path=re.escape(str(fault.log_dir.path)))
        ended = ends_as_known(cluster, victim, ENDS_AS_LOGS_LOAD, saying=saying)
        if not ended:
            state.broker_back(victim)
            state.log_dir_failed(fault.log_dir)
            state.check()
    if ended:
        state.broker_back(victim)
        start_after_healing(state, victim)
    else:
        restart_after_healing(state, victim)


def check_loading_counted(state: StateCheck, log_dir: LogDir) -> None:
    """A broker that loads its logs after a crash counts those that are left, by log dir, and none later (KIP-831).

    It is held before it recovers the first segment of a log dir, and loads the logs of the other log dir meanwhile.
    """
    broker, mbeans = log_dir.broker, mbeans_of(log_dir.broker)
    logs = [each.name for each in log_dir.path.iterdir() if each.is_dir() and each.name != METADATA_LOG]
    wanted = {str(each.path): (len(logs), 1) if each == log_dir else (0, 0) for each in broker.log_dirs}

    def left() -> dict[str, tuple[int | None, int | None]]:
        logs, segments = mbeans.left_to_recover()
        return {path: (logs.get(path), segments.get(path)) for path in {*wanted, *logs, *segments}}

    with injected(BrokerKilled(broker)):
        state.broker_gone(broker)
        state.check()
        with injected(Held(state.cluster, broker, "segment-recovered", about=str(log_dir.path), by=broker.start)):
            enough = time.monotonic() + COUNTED_S
            seen = await_until(
                left,
                lambda seen: seen == wanted or time.monotonic() > enough,
                timeout_s=timeouts.QUESTION_S,
                what=f"the MBeans of {broker} as it loads its logs",
                retry_on=(NoAnswer,),
            )
        if seen != wanted:
            raise PromiseBroken(f"{broker} has logs and segments to recover, {wanted}, and its MBeans say {seen}")
        state.broker_back(broker)
        state.check(timeouts.RECOVERY_S)
    after = left()
    if any(number for numbers in after.values() for number in numbers):
        raise PromiseBroken(f"{broker} has loaded its logs, and counts as yet to recover: {after}")
    broker.journal.write("loading.counted", left={path: list(numbers) for path, numbers in seen.items()})


@scenario(
    "races/failed-as-unfenced",
    kip=112,
    plan="1. A log directory is not available when a broker starts: it fails right before the broker is unfenced",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.7.0"),
    judged=False,
    deviations=(LED_ON_FAILED_LOG_DIR,),
    holds=True,
)
def test_failed_as_unfenced(cluster: Cluster) -> None:
    """One heartbeat of a broker that starts reports a failed log dir, and asks to be unfenced: it does not lead there.

    The partitions have one replica each. Those of the broker's good log dir have a leader again.
    """
    orders = cluster.create_topic("orders", partitions=PARTITIONS, replicas=1)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    fault = Chmod000(orders[0].log_dir_on(victim))
    failed = led_in_same_log_dir(orders)
    asks = Held(cluster, victim, "unfencing-asked", by=victim.start)
    with ExitStack() as ends:
        ends.enter_context(injected(BrokerKilled(victim)))
        state.broker_gone(victim)
        state.check()
        with ExitStack() as held:
            # This holds the first heartbeat after the broker has caught up, before it has loaded its logs.
            heartbeats = Held(
                cluster, victim, "fenced-broker-heartbeats", by=lambda: held.enter_context(injected(asks))
            )
            held.enter_context(injected(heartbeats))
            ends.enter_context(injected(fault))
            stopped = REPLICAS_STOPPED.format(path=re.escape(str(fault.log_dir.path)))
            check_logged(victim, stopped, fault.injected_at, failure=Inconclusive)
            asks.undo()
            check_logged(victim, UNFENCING_ASKED, asks.injected_at, failure=Inconclusive)
        await_active(cluster, victim)
        [other, _] = cluster.others(victim)
        for each in failed:
            await_offline(each, victim, via=other)
        leaders = {str(each): each.describe(other).leader for each in failed}
        if set(leaders.values()) not in ({None}, {victim.id}):
            raise PromiseBroken(
                f"a log dir has failed on {victim}, which only some partitions there have lost: {leaders}"
            )
        led = None not in leaders.values()
        observe(LED_ON_FAILED_LOG_DIR, cluster, deviates=led, seen=f"{leaders}, and all these replicas are offline")
        state.broker_back(victim)
        state.log_dir_failed(fault.log_dir)
        if not led:
            state.check()
    restart_after_healing(state, victim)
