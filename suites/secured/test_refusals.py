"""Shows who may see, move and cordon log dirs, before and after a log dir failed.

Each request needs one right on the cluster: DESCRIBE, ALTER or ALTER_CONFIGS. Users with another right, a client, and a
user without any right are refused, and their requests change nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from faults.log_dir import Chmod000
from faults.targets import leader_of, other_dir
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.errors import PromiseBroken
from harness.kafka.admin import Admin
from harness.kafka.metadata import LogDirState
from harness.kafka.tool_answers import describe_log_dirs
from harness.kafka.versions import Mode, VersionRange
from suites.kip_1066.cordons import CORDONED, await_in_force
from suites.moves import finish_move
from suites.scenario import NO_FAULT
from suites.secured.users import (
    RIGHTS,
    Guarded,
    admin_of,
    check_only_for,
    check_tool_unauthorized,
    secured_scenario,
)
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, one_partition_per_log_dir, restart_after_healing


def describing() -> Guarded:
    """DescribeLogDirs of the asked broker; a right to ALTER includes DESCRIBE (``AclOperation``)."""
    return Guarded(name="DescribeLogDirs", allowed=("describer", "mover"), ask=Admin.describe_log_dirs)


def moving(topic: str, partition: int, to: LogDir) -> Guarded:
    """AlterReplicaLogDirs of the asked broker."""
    return Guarded(
        name="AlterReplicaLogDirs",
        allowed=("mover",),
        ask=lambda admin: admin.alter_replica_log_dir(topic, partition, str(to.path)),
    )


def reassigning(topic: str, partition: int, replicas: Sequence[int]) -> Guarded:
    """AlterPartitionReassignments, which the asked broker hands to the controller."""
    return Guarded(
        name="AlterPartitionReassignments",
        allowed=("mover",),
        ask=lambda admin: admin.alter_partition_reassignment(topic, partition, replicas),
    )


def electing(topic: str, partition: int) -> Guarded:
    """ElectLeaders, which the asked broker hands to the controller."""
    return Guarded(
        name="ElectLeaders",
        allowed=("mover",),
        ask=lambda admin: admin.elect_preferred_leader(topic, partition),
    )


def cordoning(broker: Broker, *log_dirs: LogDir) -> Guarded:
    """IncrementalAlterConfigs of a broker's cordoned log dirs."""
    value = {CORDONED: ",".join(str(each.path) for each in log_dirs)}
    return Guarded(
        name="IncrementalAlterConfigs",
        allowed=("cordoner",),
        ask=lambda admin: admin.set_broker_configs(broker.id, value),
    )


def check_described(broker: Broker, cluster: Cluster) -> None:
    """The user with DESCRIBE sees of the log dirs what the super user sees, and kafka-log-dirs fails for a client."""
    described = functools.partial(describe_log_dirs, cluster.distribution, brokers=[broker.id])
    check_tool_unauthorized("client", lambda: described(cluster.bootstrap_of(cluster.brokers, "client")))
    [by_tool] = described(cluster.bootstrap_of(cluster.brokers, "describer")).values()
    seen = _errors(admin_of(broker, cluster, "describer").describe_log_dirs())
    should = _errors(broker.describe_log_dirs())
    if not seen == _errors(by_tool) == should:
        told = f"{seen}, by kafka-log-dirs {_errors(by_tool)}"
        raise PromiseBroken(f"a user with DESCRIBE sees on {broker} {told}, and a super user {should}")


def _errors(states: tuple[LogDirState, ...]) -> dict[str, str | None]:
    return {state.path: state.error for state in states}


@secured_scenario(
    "secured/log-dirs",
    kip=113,
    plan="authorization: DescribeLogDirs needs DESCRIBE on the cluster; AlterReplicaLogDirs and reassignments, ALTER",
    builds=VersionRange.parse(">=3.2.0"),  # DescribeLogDirs answers an error (KIP-784); before, with no log dir
    judged=False,
)
def test_log_dirs(cluster: Cluster) -> None:
    """Only the user with the right sees or moves log dirs; after one failed, the others learn nothing of it.

    They may not reassign partitions or elect leaders either.
    """
    cluster.allow(*RIGHTS)
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    broker = leader_of(orders[0])
    source = orders[0].log_dir_on(broker)
    target = other_dir(source)
    move = moving(orders.name, 0, target)
    replicas = orders[0].describe().replicas
    controllers = (reassigning(orders.name, 0, replicas[:1]), electing(orders.name, 0))
    for request in (describing(), move, *controllers):
        check_only_for(broker, cluster, request)
    state.check()
    check_described(broker, cluster)
    move.ask(admin_of(broker, cluster, "mover"))
    finish_move(state, orders[0], target)
    with log_dirs_failed(state, Chmod000(target)):
        for request in (describing(), moving(orders.name, 1, source)):
            check_only_for(broker, cluster, request)
        check_described(broker, cluster)
    restart_after_healing(state, broker)
    check_only_for(broker, cluster, describing())
    state.check()


@secured_scenario(
    "secured/cordons",
    kip=1066,
    plan="authorization: a change of cordoned.log.dirs needs ALTER_CONFIGS on the cluster",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=4.3.0"),
    judged=False,
    floors=NO_FAULT,
    fresh=True,
)
def test_cordons(cluster: Cluster) -> None:
    """Only the user with ALTER_CONFIGS cordons a log dir, or lifts a cordon; after one failed, still."""
    cluster.allow(*RIGHTS)
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    broker = leader_of(orders[0])
    first, second = broker.log_dirs
    for wanted in ((first,), ()):
        request = cordoning(broker, *wanted)
        check_only_for(broker, cluster, request)
        state.check()
        request.ask(admin_of(broker, cluster, "cordoner"))
        await_in_force(state, broker, *wanted)
    with log_dirs_failed(state, Chmod000(first)):
        request = cordoning(broker, second)
        check_only_for(broker, cluster, request)
        state.check()
        request.ask(admin_of(broker, cluster, "cordoner"))
        await_in_force(state, broker, second)
    restart_after_healing(state, broker)
