"""Tries the log lines that checks and measures look for; the last tries break the cluster for good."""

from __future__ import annotations

import re

from faults.base import injected
from faults.log_dir import LOG_DIR_STOPPED, Chmod000
from faults.quorum import ControllerUnseated
from harness.cluster.broker import config_change_pattern
from harness.cluster.cluster import topic_created_pattern
from harness.cluster.nodes.node import Node
from harness.cluster.quorum.kraft import node_id
from harness.cluster.quorum.zookeeper import ControllerZnode, ZooKeeperQuorum
from harness.cluster.session_loss import FENCED
from harness.journal import now
from harness.kafka.request_log import requests_logged
from harness.measure.fault_costs import TOLD_OF_LOG_DIR
from harness.waiting import await_until
from suites.held_moves import METADATA_APPLIED, swap_pattern
from suites.kip_112.test_no_fault import LOGGED
from suites.kip_1066.cordons import ACTIVE, cordons_logged
from suites.probe.trial import SOON_S, TOPIC, Lacking, Trial, tries
from suites.steps import ALL_DIRS_FAILED, NO_DIR_USABLE


def logged_at_start(node: Node, *, saying: str) -> str:
    """The first line in the node's log that matches, which it must have logged as the cluster started."""
    line = node.log.first(saying)
    if line is None:
        raise Lacking(f"{node.spec.name} does not log /{saying}/ as it starts")
    return line.text[:200]


@tries("log-topics-made")
def _made(trial: Trial) -> str:
    return trial.logged(topic_created_pattern(TOPIC), node=trial.controller)


@tries("log-configured")
def _configured(trial: Trial) -> str:
    since = now()
    trial.admin.set_broker_configs(1, {"jbod.configured": "probe"})
    return trial.logged(config_change_pattern(1), since=since)


@tries("log-replica-made")
def _replica_made(trial: Trial) -> str:
    return trial.logged(rf"Created log for partition {TOPIC}-0 in")


@tries("log-moved")
def _moved(trial: Trial) -> str:
    trial.logged(swap_pattern(f"{TOPIC}-0"))
    return trial.logged(re.escape(LOGGED["moves ended"]))


@tries("log-metadata-applied")
def _metadata_applied(trial: Trial) -> str:
    return logged_at_start(trial.broker.node, saying=METADATA_APPLIED)


@tries("log-rolled")
def _rolled(trial: Trial) -> str:
    return trial.logged(re.escape(LOGGED["segments rolled"]))


@tries("log-active")
def _active(trial: Trial) -> str:
    return logged_at_start(trial.controller, saying=ACTIVE)


@tries("log-cordons")
def _cordons(trial: Trial) -> str:
    cordoned = cordons_logged((line.text for line in trial.controller.log.lines()), 1)
    if cordoned is None:
        raise Lacking(f"{trial.controller.spec.name} logs no cordoned log dirs when it registers broker 1")
    return f"{len(cordoned)} cordoned log dirs in the newest line"


@tries("log-requests")
def _requests(trial: Trial) -> str:
    with requests_logged(trial.admin, 1, trial.broker.log) as requests:
        trial.admin.describe_log_dirs()
        [asked, *_] = await_until(
            lambda: requests.of("DESCRIBE_LOG_DIRS"), timeout_s=SOON_S, what="the broker to log DescribeLogDirs"
        )
    return f"{asked.name} v{asked.version}"


@tries("log-resigned")
def _resigned(trial: Trial) -> str:
    assert isinstance(trial.cluster.quorum, ZooKeeperQuorum)
    znode = ControllerZnode(trial.cluster.quorum.connect)
    fault = ControllerUnseated(trial.broker, znode)
    try:
        with injected(fault):
            return trial.logged(str(fault.noticed_by), since=fault.injected_at)
    finally:
        znode.release()


@tries("log-disconnected")
def _disconnected(trial: Trial) -> str:
    """Kill the controller and start it again.

    The next try lets a log dir fail, not a broker. On 3.9, a broker that dies before its first heartbeat to a new
    controller is never fenced.
    """
    since = now()
    trial.controller.kill()
    try:
        return trial.logged(rf"Node {node_id(trial.controller)} disconnected", since=since)
    finally:
        trial.controller.start()
        trial.logged(ACTIVE, since=since, node=trial.controller)


@tries("log-dir-stopped")
def _log_dir_stopped(trial: Trial) -> str:
    """Let the first log dir fail for good."""
    trial.since["failed"] = now()
    log_dir = trial.broker.log_dirs[0]
    Chmod000(log_dir).inject()
    return trial.logged(LOG_DIR_STOPPED.format(path=re.escape(str(log_dir.path))), since=trial.since["failed"])


@tries("log-told-of-log-dir")
def _told_of_log_dir(trial: Trial) -> str:
    return trial.logged(TOLD_OF_LOG_DIR.format(broker=1), since=trial.since["failed"], node=trial.controller)


@tries("log-all-dirs-failed")
def _all_dirs_failed(trial: Trial) -> str:
    trial.since["ended"] = now()
    trial.broker.node.expect_end()
    for log_dir in trial.broker.log_dirs[1:]:
        Chmod000(log_dir).inject()
    return trial.logged(ALL_DIRS_FAILED, since=trial.since["ended"])


@tries("log-fenced")
def _fenced(trial: Trial) -> str:
    return trial.logged(FENCED, since=trial.since["ended"], node=trial.controller)


@tries("log-no-dir-usable")
def _no_dir_usable(trial: Trial) -> str:
    await_until(lambda: not trial.broker.is_alive, timeout_s=SOON_S, what="the broker to have ended")
    trial.broker.start()
    trial.broker.node.expect_end()
    return trial.logged(NO_DIR_USABLE, since=trial.broker.started_at)
