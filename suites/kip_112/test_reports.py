"""Shows that a broker reports a change of its log dirs to the controller at once (KIP-858, KIP-1066).

Other scenarios cannot see whether it waits for its next heartbeat, since heartbeats follow every 0.5 s there.
"""

from __future__ import annotations

from datetime import timedelta

from faults.log_dir import Chmod000
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.kafka.request_log import Exchange, RequestLog
from harness.kafka.versions import Mode, VersionRange
from harness.waiting import await_until
from suites.controllers import controller_requests_logged
from suites.kip_1066.cordons import cordon
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing

HEARTBEATS = timedelta(seconds=8)
"""``broker.heartbeat.interval.ms`` here, 2 s by default: a broker that reports at once is far from its next one."""


@scenario(
    "kip-112/reported-at-once",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: it is reported at once (KIP-858)",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.8.0"),  # the first with log.dir.failure.timeout.ms
    judged=False,
    floors=NO_FAULT,
    brokers=1,
    overrides={
        "broker.heartbeat.interval.ms": f"{HEARTBEATS.total_seconds() * 1000:.0f}",
        "broker.session.timeout.ms": "30000",
        "log.dir.failure.timeout.ms": "6000",
    },
)
def test_reported_at_once(cluster: Cluster) -> None:
    """A broker reports a failed log dir to the controller at once, and a cordon, too: not with its next heartbeat.

    Since it has reported the log dir, it lives on after ``log.dir.failure.timeout.ms``.
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=1)
    state = StateCheck(cluster, orders)
    [broker] = cluster.brokers
    cordoned, failing = broker.log_dirs
    failing_id = failing.directory_id()
    with controller_requests_logged(cluster) as requests:
        if cluster.distribution.version.has_cordoned_log_dirs:
            await_heartbeat(requests)
            cordon(state, broker, cordoned)
            check_reported_at_once(requests, cordoned.directory_id(), "cordonedLogDirs")
            cordon(state, broker)
        await_heartbeat(requests)
        with log_dirs_failed(state, Chmod000(failing)):
            check_reported_at_once(requests, failing_id, "offlineLogDirs")
            await_heartbeat(requests)
    restart_after_healing(state, broker)


def await_heartbeat(requests: RequestLog) -> None:
    """Wait for the next heartbeat, so that the one after it is a whole interval away."""
    before = len(heartbeats(requests))
    await_until(
        lambda: len(heartbeats(requests)) > before,
        timeout_s=HEARTBEATS.total_seconds() + timeouts.REQUEST_S,
        what="the broker to send a heartbeat",
        failure=PromiseBroken,
    )


def check_reported_at_once(requests: RequestLog, directory_id: str, field: str) -> None:
    """The first heartbeat that names a log dir was sent before its turn.

    :param directory_id: of the log dir, which the controller knows already
    :param field: of BrokerHeartbeatRequest, in which it is named
    """

    def until_named() -> list[Exchange]:
        sent = heartbeats(requests)
        first = next((number for number, each in enumerate(sent) if directory_id in named(each, field)), None)
        return [] if first is None else sent[: first + 1]

    *_, before, first = await_until(
        until_named,
        timeout_s=timeouts.REQUEST_S,  # a request is logged after its response
        what=f"a heartbeat with {directory_id} in {field}",
    )
    if (waited := first.at - before.at) > 0.9 * HEARTBEATS:
        raise PromiseBroken(
            f"log dir {directory_id} is in {field} of a heartbeat that came {waited.total_seconds():.1f} s after the "
            f"one before: the broker, which sends one every {HEARTBEATS.total_seconds():.0f} s, did not report at once"
        )


def heartbeats(requests: RequestLog) -> list[Exchange]:
    """The heartbeats that the controller has answered, oldest first."""
    return requests.of("BROKER_HEARTBEAT")


def named(heartbeat: Exchange, field: str) -> list[object]:
    """The ids of the log dirs in a field of a heartbeat; the field may be null."""
    ids = heartbeat.request.get(field) or []
    assert isinstance(ids, list)
    return ids
