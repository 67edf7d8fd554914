"""What the suite of KIP-1066 does in the same words: cordon, and wait until it is in force.

A cordon is in force when the controller has heard of it, with a heartbeat; until then a new replica may come to the log
dir, and nobody promises otherwise. So a cordon is awaited in the controller's metadata log, and a topic is held only
against the cordons that were in force from before it was asked for until it was there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.nodes.node import Node
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.errors import PromiseBroken
from harness.journal import Journal
from harness.kafka.admin import Admin
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode, VersionRange
from harness.measure.floors import Floors
from harness.waiting import await_until
from suites.scenario import scenario
from suites.state_check import StateCheck

NO_FAULT = Floors(faults=0)
# What a controller knows of cordons is read from its log, from where it became active.
cordon_scenario = functools.partial(
    scenario, kip=1066, modes=(Mode.KRAFT,), builds=VersionRange.parse(">=4.3.0"), floors=NO_FAULT, fresh=True
)
CORDONED = "cordoned.log.dirs"


def quorum_of(cluster: Cluster) -> KRaftQuorum:
    """The cluster's quorum, which is KRaft's."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    return cluster.quorum


def controllers_admin(cluster: Cluster) -> Admin:
    """The active controller's own door (KIP-919); another one would refuse what changes something."""
    return quorum_of(cluster).door(cluster.active_controller())


def cordon(state: StateCheck, broker: Broker, *log_dirs: LogDir, value: str | None = None) -> None:
    """Have these of a broker's log dirs cordoned, and no others, and all sources say so; none: uncordon.

    :param value: how the configuration has it, instead of their paths
    """
    state.set_cordoned(broker, *state.cordoned.intersection(log_dirs))  # those that are so all the while
    broker.configure({CORDONED: ",".join(str(each.path) for each in log_dirs) if value is None else value})
    await_in_force(state, broker, *log_dirs)


def await_in_force(state: StateCheck, broker: Broker, *log_dirs: LogDir) -> None:
    """The controller has heard which of the broker's log dirs are cordoned; so have, now, the model and all sources.

    :raises PromiseBroken: it doesn't hear
    """
    await_known_to_controller(state.cluster, broker, *log_dirs)
    state.set_cordoned(broker, *log_dirs)
    state.check(timeouts.RECOVERY_S)  # the broker may just have been started
    state.cluster.journal.write("cordon.in_force", broker=broker.id, log_dirs=[str(each) for each in log_dirs])


def await_known_to_controller(cluster: Cluster, broker: Broker, *log_dirs: LogDir) -> None:
    """The active controller says in its log that these, and no others, are the broker's cordoned log dirs.

    In its log, where it tells each record of a registration that it has replayed, also those that it replayed as a
    standby: to dump its metadata log each time would start a JVM for what takes a tenth of a second. The dump is a
    source like others.

    :raises PromiseBroken: it never does
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
    """What the active controller says in its log since it and the broker were last started.

    Nothing before it has become active: until then it replays what once was so. What was so when it ended it has then
    said again, be it from its log or from a snapshot.
    """
    controller = cluster.active_controller()
    since = last_start(cluster.journal, controller)
    if controller.log.first(ACTIVE, since=since):
        for line in controller.log.lines(since=max(since, last_start(cluster.journal, broker.node))):
            yield line.text


ACTIVE = r"Becoming the active controller"
"""What a controller says when it has replayed what there was (``QuorumController``)."""


def last_start(journal: Journal, node: Node) -> datetime:
    """When a node was started last."""
    starts = (event["at"] for event in journal.of_kind("node.started") if event["node"] == node.spec.name)
    return datetime.fromisoformat(list(starts)[-1])


def cordons_logged(lines: Iterable[str], broker: int) -> set[str] | None:
    """The ids of a broker's cordoned log dirs by the controller's log, oldest line first; None: it hasn't said yet.

    A registration begins anew; of a change the log dirs that it says nothing of stay as they were.
    """
    record = re.compile(
        rf"(RegisterBroker|BrokerRegistrationChange)Record\(brokerId={broker},.*cordonedLogDirs=(null|\[[^\]]*\])",
        re.DOTALL,
    )
    told: set[str] | None = None
    for found in filter(None, map(record.search, lines)):
        if found[2] != "null":
            told = set(re.findall(r"[\w-]{22}", found[2]))
        elif found[1] == "RegisterBroker":
            told = None
    return told
