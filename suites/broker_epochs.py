"""Sends KRaft's controller requests that real brokers send in races only (KIP-631, KIP-841, KIP-858, KIP-903).

A leader that has yet to hear of a follower's restart names the follower's old epoch. A process that was believed to be
dead sends heartbeats. A broker reports a replica in a log dir that has failed meanwhile.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from contextlib import closing
from itertools import count

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.session_loss import lost_session
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import Connection
from harness.kafka.controller_requests import BrokerEpoch, alter_partition, assign_replica, heartbeat, register_broker
from harness.kafka.follower_requests import fetch_as_process
from suites.controllers import quorum_of
from suites.observations import directories

_NEW = 99
"""The id of a broker that no cluster has."""


def directory_of(log_dir: LogDir) -> uuid.UUID:
    """The ``directory.id`` of a log dir."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(log_dir.directory_id() + "=="))


def latest_process(broker: Broker, cluster: Cluster) -> BrokerEpoch:
    """The process of a broker that the controller registered last."""
    [*_, latest] = directories(cluster).epochs[broker.id]
    return BrokerEpoch(id=broker.id, epoch=latest)


def report_replica_in(log_dir: LogDir, partition: Partition) -> None:
    """Report to the controller that the broker's replica of a partition is in this log dir.

    :raises PromiseBroken: the controller refuses the report
    """
    cluster = partition.cluster
    error = assign_replica(
        _controller(cluster),
        latest_process(log_dir.broker, cluster),
        directory_of(log_dir),
        uuid.UUID(partition.describe().topic_id),
        partition.index,
    )
    if error is not None:
        raise PromiseBroken(f"the controller refused a report that {partition} is in {log_dir}: {error}")
    cluster.journal.write("replica.reported", partition=str(partition), log_dir=str(log_dir))


def check_not_in_isr(partition: Partition, broker: Broker, *, process: int = -1, via: Broker | None = None) -> None:
    """The controller refuses an ISR with this broker.

    It is fenced, it is shutting down, or the leader means an earlier process of it.

    :param process: the index of the process that the leader means, among all that were registered
    :param via: a broker that knows the leader
    """
    cluster, state = partition.cluster, partition.describe(via)
    assert state.leader is not None
    epochs = directories(cluster).epochs
    members = dict.fromkeys((*state.isr, broker.id))
    isr = [BrokerEpoch(id=id, epoch=epochs[id][process if id == broker.id else -1]) for id in members]
    leader = BrokerEpoch(id=state.leader, epoch=epochs[state.leader][-1])

    def answer(partition_epoch: int) -> str | None:
        return alter_partition(
            _controller(cluster),
            leader,
            uuid.UUID(state.topic_id),
            partition.index,
            isr,
            leader_epoch=state.leader_epoch,
            partition_epoch=partition_epoch,
        )

    answers = (answer(epoch) for epoch in count())  # no request shows the partition's epoch; it rises by one
    error = next(each for each in answers if each != "INVALID_UPDATE_VERSION")
    _check(cluster, f"an ISR of {partition} with {', '.join(map(str, isr))}", error, "INELIGIBLE_REPLICA")


def check_one_process(cluster: Cluster, broker: Broker) -> None:
    """The controller registers no second process with the id of a live broker, and ignores the process before it.

    The broker must have been restarted.

    :raises Inconclusive: the broker has lost its session since then, on a busy machine
    """
    controller = _controller(cluster)
    error = register_broker(controller, broker.id, quorum_of(cluster).cluster_id, [uuid.uuid4(), uuid.uuid4()])
    second = f"the registration of a second process with the id of {broker}"
    wanted = "DUPLICATE_BROKER_REGISTRATION"
    if error != wanted and (lost := lost_session(cluster, but=(), since=broker.started_at)):
        raise lost.blamed(f"the controller answered {error} to {second}, instead of {wanted}")
    _check(cluster, second, error, wanted)
    [*_, earlier, latest] = directories(cluster).epochs[broker.id]
    error = heartbeat(controller, BrokerEpoch(id=broker.id, epoch=earlier), metadata_offset=latest)
    _check(cluster, f"a heartbeat of {broker} with its earlier epoch", error, "STALE_BROKER_EPOCH")


def check_ids_free(cluster: Cluster, log_dirs: Sequence[uuid.UUID]) -> None:
    """The controller registers a new broker with log dirs that another broker no longer has, as if it had their disks.

    :param log_dirs: the ids of log dirs that were taken out, or those of a broker that was unregistered
    """
    error = register_broker(_controller(cluster), _NEW, quorum_of(cluster).cluster_id, log_dirs)
    if error is not None:
        raise PromiseBroken(f"the controller refused a new broker with log dirs that were taken out: {error}")
    cluster.journal.write("directories.taken_over", broker=_NEW, log_dirs=[str(each) for each in log_dirs])


def check_stale_refused(partition: Partition, broker: Broker) -> None:
    """The controller refuses requests that are out of date, and a log dir that another broker has.

    The partition has changed its leader at least once, and this broker, which was restarted, follows. So each change of
    the ISR here names an old partition epoch, too; the controller looks at that last.

    :raises Inconclusive: a broker has lost its session since the restart, on a busy machine
    """
    cluster, state = partition.cluster, partition.describe()
    if state.leader in (None, broker.id) or state.leader_epoch < 1:
        raise Inconclusive(f"{broker} does not follow a later leader of {partition}: {state}")
    topic_id, epochs = uuid.UUID(state.topic_id), directories(cluster).epochs
    leader, follower = (BrokerEpoch(id=id, epoch=epochs[id][-1]) for id in (state.leader, broker.id))
    earlier = BrokerEpoch(id=broker.id, epoch=epochs[broker.id][-2])
    isr = [BrokerEpoch(id=id, epoch=epochs[id][-1]) for id in state.isr]

    def alter(asking: BrokerEpoch, leader_epoch: int) -> str | None:
        return alter_partition(
            _controller(cluster), asking, topic_id, partition.index, isr, leader_epoch=leader_epoch, partition_epoch=0
        )

    log_dir = partition.log_dir_on(broker)
    answers = {
        f"an ISR of {partition} from {earlier}, its earlier epoch": (
            alter(earlier, state.leader_epoch),
            "STALE_BROKER_EPOCH",
        ),
        f"an ISR of {partition} with an earlier leader epoch": (
            alter(leader, state.leader_epoch - 1),
            "FENCED_LEADER_EPOCH",
        ),
        f"an ISR of {partition} from a follower": (alter(follower, state.leader_epoch), "INVALID_REQUEST"),
        f"an ISR of {partition} with an earlier partition epoch": (
            alter(leader, state.leader_epoch),
            "INVALID_UPDATE_VERSION",
        ),
        f"the log dir of {partition} from {earlier}, its earlier epoch": (
            assign_replica(_controller(cluster), earlier, directory_of(log_dir), topic_id, partition.index),
            "STALE_BROKER_EPOCH",
        ),
        f"the registration of a new broker with {log_dir}": (
            register_broker(
                _controller(cluster), _NEW, quorum_of(cluster).cluster_id, [uuid.uuid4(), directory_of(log_dir)]
            ),
            "INVALID_REGISTRATION",
        ),
    }
    for what, (error, wanted) in answers.items():
        if error != wanted and (lost := lost_session(cluster, but=(), since=broker.started_at)):
            raise lost.blamed(f"the controller answered {error} to {what}, instead of {wanted}")
        _check(cluster, what, error, wanted)


def check_stale_fetch_refused(partition: Partition, broker: Broker) -> None:
    """A leader refuses a fetch of a follower's earlier process, which would raise the high watermark (KIP-903).

    The follower must have been restarted. Its present process may fetch from any offset.

    :raises Inconclusive: a broker has lost its session since the restart, on a busy machine
    """
    cluster, leader, topic_id = partition.cluster, partition.leader(), uuid.UUID(partition.describe().topic_id)
    [*_, earlier, latest] = directories(cluster).epochs[broker.id]

    def answer(epoch: int) -> str | None:
        follower = BrokerEpoch(id=broker.id, epoch=epoch)
        with closing(leader.new_connection()) as connection:
            try:
                fetch_as_process(connection, partition.topic, topic_id, partition.index, 0, follower=follower)
            except Refused as refused:
                return refused.error
        return None

    answers = [answer(earlier), answer(latest)]
    wanted = ["NOT_LEADER_OR_FOLLOWER", None]
    if answers != wanted:
        seen = f"{leader} answered {answers} to fetches of the earlier and the present process of {broker}"
        if lost := lost_session(cluster, but=(), since=broker.started_at):
            raise lost.blamed(f"{seen}, instead of {wanted}")
        raise PromiseBroken(f"{seen}, instead of {wanted}")
    cluster.journal.write("leader.refused", what=f"a fetch of {broker} with its earlier epoch", error=answers[0])


def _controller(cluster: Cluster) -> Connection:
    return quorum_of(cluster).controller_connection(cluster.active_controller())


def _check(cluster: Cluster, what: str, error: str | None, wanted: str) -> None:
    if error != wanted:
        raise PromiseBroken(f"the controller answered {error or 'without an error'} to {what}, instead of {wanted}")
    cluster.journal.write("controller.refused", what=what, error=error)
