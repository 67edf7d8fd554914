"""Tries the requests that the harness sends, in the version that the build and jbod agree on, and the MBeans."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from harness.kafka import mbeans
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.record_requests import Producer
from harness.kafka.share_group import Acquired, ShareSession, heartbeat
from harness.kafka.transaction_requests import describe_transaction, write_marker
from harness.waiting import await_until
from suites.kip_1066.cordons import CORDONED
from suites.moves import MOVE_THROTTLE
from suites.probe.dependencies import DEPENDENCIES
from suites.probe.dependency import Dependency
from suites.probe.trial import PARTITIONS, RECORDS, SOON_S, TOPIC, Lacking, Trial, tries


def _asked(trial: Trial, name: str, least: int) -> str:
    """The version in which the request was just sent.

    :raises Lacking: it is older than ``least``, so it lacks fields that are read
    """
    version = trial.connection.spoke[name]
    if version < least:
        raise Lacking(f"{name} was sent in v{version}, and v{least} is needed")
    return f"v{version}"


def _request(name: str, least: int, ask: Callable[[Trial], object], id: str | None = None) -> None:
    """Register a try that sends the request and checks its version."""

    def attempt(trial: Trial) -> str:
        answer = ask(trial)
        if answer is False:
            raise Lacking(f"the answer to {name} is not what was expected on this cluster")
        return _asked(trial, name, least)

    tries(id or f"request-{name}")(attempt)


def _metadata(trial: Trial) -> bool:
    seen = [p for p in trial.admin.describe_cluster().partitions if p.topic == TOPIC]
    return len(seen) == PARTITIONS and all(p.leader == p.replicas[0] == 1 for p in seen)


def _log_dirs(trial: Trial) -> bool:
    dirs = trial.admin.describe_log_dirs()
    there = {str(log_dir.path) for log_dir in trial.broker.log_dirs}
    return {each.path for each in dirs} == there and sum(len(each.replicas) for each in dirs) >= PARTITIONS


def _delete_topic(trial: Trial) -> None:
    trial.admin.create_topics([NewTopic(name="gone", replicas=1)])
    await_until(
        lambda: any(p.topic == "gone" for p in trial.admin.describe_cluster().partitions),
        timeout_s=SOON_S,
        what="the new topic gone to be described",
    )
    trial.admin.delete_topics(["gone"])


def _create_partitions(trial: Trial) -> None:
    trial.admin.create_topics([NewTopic(name="grows", replicas=1)])
    trial.admin.create_partitions("grows", 2)


def _move(trial: Trial) -> None:
    here = trial.topic[0].log_dir_on(trial.broker)
    there = next(each for each in trial.broker.log_dirs if each != here)
    trial.admin.alter_replica_log_dir(TOPIC, 0, str(there.path))
    await_until(
        lambda: trial.broker.log_dir_of(TOPIC, 0) == there,
        timeout_s=SOON_S,
        what=f"{TOPIC}-0 to be moved into {there}",
    )


def _producer_id(trial: Trial) -> bool:
    producer = await_until(
        trial.admin.init_producer_id,
        timeout_s=SOON_S,
        what="the broker to give a producer id",
        retry_on=(Refused,),  # it first gets a block of ids
    )
    return producer.id >= 0 and producer.epoch == 0


def _refuses_marker(trial: Trial, *, epoch_bumped: bool = False) -> bool:
    """A broker refuses a marker for a partition that it does not have."""
    nobody, nowhere = Producer(id=1, epoch=0), PARTITIONS
    try:
        write_marker(trial.connection, TOPIC, nowhere, nobody, coordinator_epoch=0, epoch_bumped=epoch_bumped)
    except Refused as refused:
        return refused.error == "UNKNOWN_TOPIC_OR_PARTITION"
    return False


def _describe_transaction(trial: Trial) -> bool:
    """A broker that has no transaction log, or an empty one, describes no transaction."""
    try:
        describe_transaction(trial.connection, "unknown")
    except Refused as refused:
        return refused.error in ("NOT_COORDINATOR", "TRANSACTIONAL_ID_NOT_FOUND")
    return False


def _commit(trial: Trial) -> None:
    def commit() -> bool:
        trial.admin.commit_offset("group", TOPIC, 0, 1)
        return True

    with suppress(Refused):  # a consumer may have made it already
        trial.admin.create_topics([NewTopic(name="__consumer_offsets", replicas=1)])
    await_until(
        commit,
        timeout_s=SOON_S,
        what="the broker to take a group's offset",
        retry_on=(Refused,),  # it first loads the log
    )


def _elect(trial: Trial) -> bool:
    """The preferred leader leads already."""
    try:
        trial.admin.elect_preferred_leader(TOPIC, 0)
    except Refused as refused:
        return refused.error == "ELECTION_NOT_NEEDED"
    return False


SHARE_GROUP, MEMBER = "share-group", "member"


def _join(trial: Trial) -> bool:
    topic = trial.topic
    membership = await_until(
        lambda: heartbeat(topic.cluster.distribution, trial.connection, SHARE_GROUP, MEMBER, topic.name),
        lambda member: bool(member.assigned),
        timeout_s=SOON_S,
        what=f"the broker to assign {topic} to a member of a share group",
        retry_on=(Refused,),  # it first loads the log
    )
    assert membership.assigned is not None
    return {index for _, index in membership.assigned} == {*range(PARTITIONS)}


def _session(trial: Trial) -> ShareSession:
    topic = trial.topic
    return ShareSession(
        topic.cluster.distribution, trial.connection, SHARE_GROUP, MEMBER, topic[2].describe().topic_id, 2
    )


def _first_fetched(session: ShareSession) -> list[Acquired]:
    """What the first fetch of a session gets, once the broker has the state of the share group."""
    [acquired] = await_until(
        lambda: [session.acquire(1, exactly=True, wait_s=0.0)],
        timeout_s=SOON_S,
        what="the broker to have the state of a share group",
        retry_on=(Refused,),
    )
    return acquired


def _acquire(trial: Trial) -> bool:
    """A share group begins at the end of a partition."""
    began = _first_fetched(_session(trial))
    trial.admin.produce(TOPIC, 2, b"to share")
    session = _session(trial)
    [acquired] = [*_first_fetched(session), *session.acquire(1, exactly=True, wait_s=1.0)][:1]
    session.acknowledge({acquired.offset: "RELEASE"})
    return not began and (acquired.count, acquired.value) == (1, b"to share")


def _acknowledge(trial: Trial) -> bool:
    session = _session(trial)
    [acquired] = _first_fetched(session)
    session.acknowledge({acquired.offset: "ACCEPT"})
    return acquired.count == 2 and not session.acquire(1, exactly=True, wait_s=0.0)


@tries("request-ApiVersions")
def _api_versions(trial: Trial) -> str:
    """The connection sends it when it is opened, before anything else."""
    trial.admin.describe_cluster()
    return f"answered first; then {len(trial.connection.spoke)} other kinds of requests"


_request("CreateTopics", 1, lambda trial: len(trial.topic) == PARTITIONS)
_request("Metadata", 7, _metadata)
_request("DescribeLogDirs", 0, _log_dirs)
_request("DescribeLogDirs", 5, _log_dirs, id="request-DescribeLogDirs-v5")
_request("ListOffsets", 1, lambda trial: trial.admin.end_offset(TOPIC, 0) == RECORDS // PARTITIONS)
_request("ListOffsets", 9, lambda trial: trial.admin.tiered_offset(TOPIC, 0) is None, id="request-ListOffsets-v9")
_request("DeleteRecords", 0, lambda trial: trial.admin.delete_records(TOPIC, 3, 10) == 10)
_request("DescribeConfigs", 1, lambda trial: trial.admin.dynamic_configs(1))
_request(
    "IncrementalAlterConfigs", 0, lambda trial: trial.admin.set_topic_configs(TOPIC, {"segment.index.bytes": "100000"})
)
_request("DeleteTopics", 1, _delete_topic)
_request("CreatePartitions", 0, _create_partitions)
_request("DescribeTopicPartitions", 0, lambda trial: trial.admin.describe_eligible(TOPIC, 0).isr == {1})
_request("DescribeProducers", 0, lambda trial: trial.admin.describe_producers(TOPIC, 0) == ())
_request("Produce", 3, lambda trial: trial.admin.produce(TOPIC, 3, b"by request") == RECORDS // PARTITIONS)
_request("Fetch", 4, lambda trial: b"by request" in trial.admin.fetch(TOPIC, 3, RECORDS // PARTITIONS))
_request("OffsetForLeaderEpoch", 3, lambda trial: trial.admin.end_of_epoch(TOPIC, 0, 0) == (0, RECORDS // PARTITIONS))
_request("InitProducerId", 0, _producer_id)
_request("WriteTxnMarkers", 1, _refuses_marker)
_request("WriteTxnMarkers", 2, lambda trial: _refuses_marker(trial, epoch_bumped=True), id="request-WriteTxnMarkers-v2")
_request("DescribeTransactions", 0, _describe_transaction)
_request("OffsetCommit", 2, _commit)
_request("OffsetFetch", 7, lambda trial: trial.admin.committed_offset("group", TOPIC, 0, stable=True) == 1)
_request("AlterPartitionReassignments", 0, lambda trial: trial.admin.alter_partition_reassignment(TOPIC, 0, [1]))
_request("ElectLeaders", 0, _elect)
_request("ListPartitionReassignments", 0, lambda trial: trial.admin.describe_reassignments() == ())
_request("ShareGroupHeartbeat", 1, _join)
_request("ShareFetch", 2, _acquire)
_request("ShareAcknowledge", 1, _acknowledge)
_request("DescribeQuorum", 0, lambda trial: trial.admin.describe_quorum_leader() is not None)
_request("AlterReplicaLogDirs", 0, _move)


@tries("config-move-throttle")
def _holds_moves(trial: Trial) -> str:
    """Hold a move as :func:`suites.moves.moves_held` does."""
    partition = trial.topic[1]
    here = partition.log_dir_on(trial.broker)
    there = next(each for each in trial.broker.log_dirs if each != here)
    trial.admin.set_broker_configs(1, {MOVE_THROTTLE: "1"})
    _await_dynamic(trial, MOVE_THROTTLE, "1")
    trial.logged(r"node 1 with new configuration|brokers/1\b") if trial.is_kraft else None
    trial.admin.alter_replica_log_dir(TOPIC, 1, str(there.path))
    await_until(
        lambda: trial.broker.find_replica(TOPIC, 1, is_future=True),
        timeout_s=SOON_S,
        what=f"the move of {partition} into {there} to begin",
    )
    held = trial.broker.find_replica(TOPIC, 1, is_future=True) is not None
    trial.future = [path.name for path in there.path.glob(f"{partition}.*-future")]
    trial.admin.set_broker_configs(1, {MOVE_THROTTLE: str(1 << 40)})
    if not held:
        raise Lacking(f"{MOVE_THROTTLE}=1 does not hold a move of {partition}")
    return "held at 1 byte a second"


@tries("file-future")
def _future(trial: Trial) -> str:
    """Check the future replica's folder of the move that was just held."""
    if not trial.future:
        raise Lacking("no folder …-future was seen during the held move")
    return trial.future[0]


@tries("config-cordoned")
def _cordons(trial: Trial) -> str:
    path = str(trial.broker.log_dirs[2].path)
    trial.admin.set_broker_configs(1, {CORDONED: path})
    _await_dynamic(trial, CORDONED, path)
    return path


def _await_dynamic(trial: Trial, name: str, value: str) -> None:
    await_until(
        lambda: trial.admin.dynamic_configs(1).own.get(name),
        lambda got: got == value,
        timeout_s=SOON_S,
        what=f"{name} to be described as {value}",
    )


# --- MBeans ---------------------------------------------------------------------------------------------------------


_OF_CONTROLLER = (
    *(mbeans.ACTIVE, mbeans.OFFLINE_PARTITIONS, mbeans.RAFT, mbeans.UNCLEAN_ELECTIONS),
    *mbeans.OF_CONTROLLER,
)


def _mbean(dependency: Dependency) -> None:
    """Register a try that looks for the MBean on the broker, or on the controller."""
    name = dependency.what

    def attempt(trial: Trial) -> str:
        node = trial.controller if name in _OF_CONTROLLER else trial.broker.node
        if not trial.cluster.mbeans[node.spec.name].has(name):
            raise Lacking(f"{node.spec.name} has no MBean {name}")
        return f"on {node.spec.name}"

    tries(dependency.id)(attempt)


for _dependency in DEPENDENCIES:
    if _dependency.kind == "mbean" and _dependency.tried:
        _mbean(_dependency)
