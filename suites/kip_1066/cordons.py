"""Cordons log dirs and waits until the cordons are in force; the scenarios of KIP-1066 share it.

A cordon is in force once the controller has it from a heartbeat. Until then a new replica may be placed on the log dir,
and the KIP does not forbid it. So a scenario waits until the controller logs the cordon. A new topic is checked only
against cordons that were in force from before the request until the topic was there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.errors import PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode, VersionRange
from harness.waiting import await_until
from suites.controllers import last_start
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck

# Fresh: the check reads a controller's log from where it became active.
cordon_scenario = functools.partial(
    scenario, kip=1066, modes=(Mode.KRAFT,), builds=VersionRange.parse(">=4.3.0"), floors=NO_FAULT, fresh=True
)
CORDONED = "cordoned.log.dirs"


def cordon(state: StateCheck, broker: Broker, *log_dirs: LogDir, value: str | None = None) -> None:
    """Cordon exactly these log dirs of a broker, and wait until all sources agree. Without log dirs, uncordon all.

    :param value: the value of ``cordoned.log.dirs``, instead of the paths
    """
    state.set_cordoned(broker, *state.cordoned.intersection(log_dirs))  # those that stay cordoned all the while
    broker.configure({CORDONED: ",".join(str(each.path) for each in log_dirs) if value is None else value})
    await_in_force(state, broker, *log_dirs)


def await_in_force(state: StateCheck, broker: Broker, *log_dirs: LogDir) -> None:
    """Wait until the controller knows the broker's cordoned log dirs and all sources agree.

    :raises PromiseBroken: the controller does not know them in time, or a source disagrees
    """
    await_known_to_controller(state.cluster, broker, *log_dirs)
    state.set_cordoned(broker, *log_dirs)
    state.check(timeouts.RECOVERY_S)  # the broker may just have been started
    state.cluster.journal.write("cordon.in_force", broker=broker.id, log_dirs=[str(each) for each in log_dirs])


def await_known_to_controller(cluster: Cluster, broker: Broker, *log_dirs: LogDir) -> None:
    """Wait until the active controller's log shows exactly these log dirs of the broker as cordoned.

    A controller logs each registration record that it replays, also as a standby. Dumping its metadata log each time
    would start a JVM. :func:`suites.observations.metadata_log` does that where a scenario asks for it.

    :raises PromiseBroken: it does not show them in time
    """
    should = {log_dir.directory_id() for log_dir in log_dirs}
    await_until(
        lambda: cordons_logged(controller_lines(cluster, broker), broker.id),
        lambda ids: ids == should,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the controller to know {[str(each) for each in log_dirs]} as the cordoned log dirs of {broker}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def controller_lines(cluster: Cluster, broker: Broker) -> Iterator[str]:
    """The active controller's log lines since it and the broker were last started.

    There are none until it has become active, since until then it replays old records. By then it has logged the latest
    state again, from its log or from a snapshot.
    """
    controller = cluster.active_controller()
    since = last_start(cluster.journal, controller)
    if controller.log.first(ACTIVE, since=since):
        for line in controller.log.lines(since=max(since, last_start(cluster.journal, broker.node))):
            yield line.text


ACTIVE = r"Becoming the active controller"
"""The log line of a controller that has replayed its log (``QuorumController``)."""


def cordons_logged(lines: Iterable[str], broker: int) -> set[str] | None:
    """The directory ids of a broker's cordoned log dirs by the controller's log; None if it has no such line yet.

    A registration replaces what was logged before. A change without ``cordonedLogDirs`` keeps it.

    :param lines: of the controller's log, the oldest first
    """
    record = re.compile(
        rf"(RegisterBroker|BrokerRegistrationChange)Record\(brokerId={broker},.*cordonedLogDirs=(null|\[[^\]]*\])",
        re.DOTALL,
    )
    cordoned: set[str] | None = None
    for found in filter(None, map(record.search, lines)):
        if found[2] != "null":
            cordoned = set(re.findall(r"[\w-]{22}", found[2]))
        elif found[1] == "RegisterBroker":
            cordoned = None
    return cordoned
