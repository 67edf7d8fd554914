"""Shows that only a broker may tell the controller what a broker knows of its log dirs (KIP-858).

A broker reports failed log dirs with its heartbeat, and the log dirs of its replicas with AssignReplicasToDirs. Both
need CLUSTER_ACTION on the cluster. The harness sends them with the id and epoch of a broker, as another user.
"""

from __future__ import annotations

import uuid
from functools import partial

from faults.log_dir import Chmod000
from faults.targets import leader_of, other_dir
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.security import User
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.controller_requests import alter_partition, assign_replica, heartbeat, register_broker
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from suites.broker_epochs import directory_of, latest_process
from suites.checks import check_delivery
from suites.controllers import quorum_of
from suites.secured.users import UNAUTHORIZED, secured_scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, one_partition_per_log_dir, restart_after_healing


def check_no_broker(cluster: Cluster, user: User, log_dir: LogDir, topic: str) -> None:
    """The controller accepts no report of a log dir, of a replica, of an ISR and of a new process from this user."""
    quorum, broker = quorum_of(cluster), log_dir.broker
    security = cluster.security.controller_client(user)
    controller = quorum.controller_connection(cluster.active_controller(), security)
    process = latest_process(broker, cluster)
    state = next(each for each in broker.describe_cluster().partitions if each.topic == topic and each.partition == 0)
    topic_id, directory = uuid.UUID(state.topic_id), directory_of(log_dir)
    epochs = {"leader_epoch": state.leader_epoch, "partition_epoch": 0}
    requests = {
        "a failed log dir": partial(heartbeat, controller, process, metadata_offset=process.epoch, offline=[directory]),
        "a replica's log dir": partial(assign_replica, controller, process, directory, topic_id, 0),
        "a new process": partial(register_broker, controller, broker.id, quorum.cluster_id, [directory]),
        "an ISR": partial(alter_partition, controller, process, topic_id, 0, [process], **epochs),
    }
    answers = {what: ask() for what, ask in requests.items()}
    controller.close()
    if wrong := {what: answer for what, answer in answers.items() if answer != UNAUTHORIZED}:
        raise PromiseBroken(f"{user} reported as {broker}, and the controller answered {wrong}, not {UNAUTHORIZED}")
    cluster.journal.write("user.refused_as_broker", user=user, broker=broker.id, requests=list(answers))


@secured_scenario(
    "secured/broker-reports",
    kip=112,
    plan="authorization: only brokers report failed log dirs and replicas' log dirs to the controller",
    modes=(Mode.KRAFT,),
)
def test_broker_reports(cluster: Cluster, workload: CaseWorkload) -> None:
    """Only a broker may report a log dir as failed, before and after one failed; the controller takes its report."""
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    broker = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(broker)
    others: tuple[User, ...] = ("client", "stranger", "mover")
    with workload.running(orders) as pair:
        for user in others:
            check_no_broker(cluster, user, log_dir, orders.name)
        state.check()
        with log_dirs_failed(state, Chmod000(log_dir)):
            for user in others:
                check_no_broker(cluster, user, other_dir(log_dir), orders.name)
            pair.await_progress(after=now())
        restart_after_healing(state, broker)
    check_delivery(workload)
