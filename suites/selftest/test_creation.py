"""A topic that is not created breaks a promise, also under a fault. A created topic must be known to all brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.topic import Topic
from harness.crowding import Crowding, Deadline
from harness.errors import JbodError, PromiseBroken
from harness.host.undo import UndoLog
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.answers import Refused
from harness.kafka.broker_log import BrokerLog
from harness.kafka.mbeans import MBeans
from harness.kafka.metadata import LogDirState, PartitionState
from harness.kafka.versions import Mode
from suites.selftest.fakes import (
    cluster_state,
    fake,
    fake_broker,
    fake_cluster,
    fake_node,
    log_dir_state,
    partition_state,
    replica_in_dir,
)
from suites.selftest.journal_lines import lines_of

STUCK = partition_state("refunds", 1, 2, offline=(2,))


def one_brokers_cluster(refusal: Refused | None = None, *, ended: bool = False, nodes: Sequence[Node] = ()) -> Cluster:
    """A cluster whose only broker sees the topic refunds with an offline replica.

    :param refusal: the answer to each request for a topic
    :param ended: the broker has ended by itself
    :param nodes: the nodes whose logs may say that a topic was made
    """

    def create_topics(_topics: object) -> None:
        if refusal:
            raise refusal

    def check_nodes() -> None:
        if ended:
            raise PromiseBroken("it should go on")

    admin = fake(Admin, create_topics=create_topics, describe_cluster=lambda topics: cluster_state(STUCK))
    broker = fake_broker(admin=admin, describe_log_dirs=lambda: (), mbeans=None)
    return fake_cluster(
        _controller_or_any=lambda: broker,
        live_brokers=lambda: [broker],
        check_nodes=check_nodes,
        nodes=nodes,
        brokers=[],
        quorum_nodes=[],
        undo_log=fake(UndoLog, dir=Path("/")),
    )


@pytest.mark.parametrize(
    ("cluster", "seen"),
    [
        (one_brokers_cluster(), r"refunds to be led and replicated in full.*refunds-0 leader 1"),
        (one_brokers_cluster(Refused("create topic refunds", "KAFKA_STORAGE_ERROR")), "KAFKA_STORAGE_ERROR"),
        (one_brokers_cluster(ended=True), "it should go on"),
    ],
    ids=["stuck", "refused", "ended"],
)
@pytest.mark.parametrize("failure", [PromiseBroken, None])
def test_a_topic_that_does_not_come_to_be_breaks_the_promise(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, seen: str, failure: type[JbodError] | None
) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    monkeypatch.setattr(Deadline, "crowding", Crowding())
    with pytest.raises(PromiseBroken, match=seen):
        cluster.create_topics(NewTopic(name="refunds", replicas=2), failure=failure)


CREATED = (
    "[2026-11-23 23:51:00,653] INFO [QuorumController id=102] CreateTopics result(s): {}"
    " (org.apache.kafka.controller.ReplicationControlManager)\n"
)
MAKES = "CreatableTopic(name='{}', numPartitions=-1, replicationFactor=-1, assignments=[], configs=[]): {}"


@pytest.mark.parametrize(
    ("logged", "refused"),
    [
        (CREATED.format(MAKES.format("refunds", "SUCCESS")), False),
        (CREATED.format(f"{MAKES.format('refunds', 'SUCCESS')}, {MAKES.format('orders', 'SUCCESS')}"), False),
        (CREATED.format(MAKES.format("refunds2", "SUCCESS")), True),
        (CREATED.format(f"{MAKES.format('refunds', 'X (no)')}, {MAKES.format('orders', 'SUCCESS')}"), True),
        (CREATED.format(MAKES.format("refunds", "SUCCESS")).replace("CreateT", "Validate-only CreateT"), True),
        (CREATED.format(MAKES.format("refunds", "SUCCESS")).replace("2026", "2025"), True),
        ("", True),
    ],
    ids=["made", "made with another", "another", "only another", "tried", "made before", "not made"],
)
def test_a_topic_that_a_broker_asked_for_twice_was_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: str, refused: bool
) -> None:
    """A broker forwards a request again if the controller resigns before it answers (seen with three controllers).

    The second answer is TOPIC_ALREADY_EXISTS. It is no refusal if a controller has logged that it made the topic.
    """
    monkeypatch.setattr("harness.cluster.cluster.now", lambda: datetime(2026, 11, 23, 23, 50, 59, tzinfo=UTC))
    log = tmp_path / "broker.log"
    log.write_text(logged)
    node = fake_node(log=BrokerLog(log))
    cluster = one_brokers_cluster(Refused("create topic refunds", "TOPIC_ALREADY_EXISTS"), nodes=[node])
    if refused:
        with pytest.raises(Refused):
            cluster.request_topics(NewTopic(name="refunds"))
    else:
        cluster.request_topics(NewTopic(name="refunds"))
        assert [event["topics"] for event in lines_of(cluster.journal, "topic.asked_twice")] == [["refunds"]]


def test_a_broker_that_knows_of_all_others_and_of_no_topic_yet_is_not_well() -> None:
    """ZooKeeper's controller sends brokers before topics when it begins; the cluster is not healthy until then."""
    partitions: list[PartitionState] = []
    broker = fake_broker(
        is_running=True,
        describe_cluster=lambda: cluster_state(*partitions, brokers=(1,)),
        describe_log_dirs=lambda: (),
    )
    cluster = fake_cluster(brokers=[broker], unreachable=set(), topics={})
    assert cluster.health_problems() == []
    cluster.topics["orders"] = Topic(cluster, "orders", 2)
    assert cluster.health_problems() == ["broker 1 does not know orders-0, orders-1"]
    partitions.append(replace(WHOLE, partition=1))
    assert cluster.health_problems() == ["broker 1 does not know orders-0"]
    partitions.append(WHOLE)
    assert cluster.health_problems() == []


WHOLE = partition_state("orders", 1, 2)
MADE = log_dir_state("/1", replica_in_dir("orders"))
FAILED = log_dir_state("/1", error="KAFKA_STORAGE_ERROR")


@pytest.mark.parametrize(
    ("mode", "seen", "log_dir", "untold", "unmade"),
    [
        (Mode.KRAFT, WHOLE, MADE, 0, None),
        (Mode.KRAFT, WHOLE, MADE, 2, "broker 1 has not yet reported the log dirs of 2 replicas to the controller"),
        (Mode.ZK, WHOLE, MADE, 2, None),
        (Mode.ZK, WHOLE, FAILED, 0, "broker 1 has no log of orders-0 leader 1"),
        (Mode.KRAFT, replace(WHOLE, offline_replicas=(1,)), FAILED, 0, None),
    ],
    ids=["made", "not told", "nobody to tell", "not made", "offline"],
)
def test_a_pair_waits_until_every_replica_is_made_and_its_log_dir_known(
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    seen: PartitionState,
    log_dir: LogDirState,
    untold: int,
    unmade: str | None,
) -> None:
    """In KRaft the controller, too, must know each replica's log dir; an offline replica is not waited for."""
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    broker = fake_broker(
        describe_cluster=lambda: cluster_state(seen),
        describe_log_dirs=lambda: (log_dir,),
        mbeans=fake(MBeans, unassigned=lambda: untold),
    )
    monkeypatch.setattr(Deadline, "crowding", Crowding())
    cluster = fake_cluster(
        mode=mode,
        live_brokers=lambda: [broker],
        check_nodes=lambda: None,
        brokers=[],
        quorum_nodes=[],
        undo_log=fake(UndoLog, dir=Path("/")),
    )
    if unmade is None:
        cluster.await_replicas_created()
    else:
        with pytest.raises(PromiseBroken, match=unmade):
            cluster.await_replicas_created()
