"""What it means when a topic does not come to be: the harness's affair, or, under a fault, a promise that is broken.

And when it has come to be: no broker is well that knows nothing of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Topic
from harness.errors import AwaitTimeout, Inconclusive, JbodError, NodeDied, PromiseBroken
from harness.journal import Journal
from harness.kafka.admin import NewTopic, Refused
from harness.kafka.broker_log import BrokerLog
from harness.kafka.metadata import LogDirState, PartitionState, ReplicaInDir
from harness.kafka.versions import Mode
from suites.selftest.journal_lines import lines_of

STUCK = PartitionState(
    topic="refunds", partition=0, leader=1, leader_epoch=0, replicas=(1, 2), isr=(1,), offline_replicas=(2,)
)


class OneBrokersCluster(SimpleNamespace):
    """A cluster, as far as topics are created in it, whose one broker answers and does as the test says."""

    def __init__(self, refusal: Refused | None = None, ended: bool = False) -> None:
        def create(_topics: object) -> None:
            if refusal:
                raise refusal

        def check_nodes(*, promised: bool = False) -> None:
            if ended:
                raise PromiseBroken("it should go on") if promised else NodeDied("it ended")

        seen = SimpleNamespace(partitions=(STUCK,))
        admin = SimpleNamespace(create_topics=create, describe_cluster=lambda topics: seen)
        broker = SimpleNamespace(id=1, admin=admin, describe_log_dirs=lambda: (), mbeans=None)
        super().__init__(
            spec=ClusterSpec(mode=Mode.KRAFT),
            _controller_or_any=lambda: broker,
            live_brokers=lambda: [broker],
            check_nodes=check_nodes,
            journal=Journal(None),
        )
        self.request_topics = partial(Cluster.request_topics, self)  # type: ignore[arg-type]
        self.await_topics = partial(Cluster.await_topics, self)  # type: ignore[arg-type]
        self._missing_replicas = partial(Cluster._missing_replicas, self)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "by_itself", "promised"),
    [
        (OneBrokersCluster(), AwaitTimeout, "refunds to be led and replicated in full.*refunds-0 leader 1"),
        (OneBrokersCluster(Refused("create topic refunds", "KAFKA_STORAGE_ERROR")), Refused, "KAFKA_STORAGE_ERROR"),
        (OneBrokersCluster(ended=True), NodeDied, "it should go on"),
    ],
    ids=["stuck", "refused", "ended"],
)
def test_a_topic_that_does_not_come_to_be_breaks_the_promise_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, cluster: Any, by_itself: type[JbodError], promised: str
) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    new = NewTopic(name="refunds", replicas=2)
    with pytest.raises(by_itself):
        Cluster.create_topics(cluster, new)
    with pytest.raises(PromiseBroken, match=promised):
        Cluster.create_topics(cluster, new, failure=PromiseBroken)


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
    """A broker forwards the request again where the controller resigns before it has answered: seen with three."""
    monkeypatch.setattr("harness.cluster.cluster.now", lambda: datetime(2026, 11, 23, 23, 50, 59, tzinfo=UTC))
    cluster: Any = OneBrokersCluster(Refused("create topic refunds", "TOPIC_ALREADY_EXISTS"))
    log = tmp_path / "broker.log"
    log.write_text(logged)
    cluster._nodes = lambda: [SimpleNamespace(log=BrokerLog(log))]
    cluster._was_created = partial(Cluster._was_created, cluster)
    if refused:
        with pytest.raises(Refused):
            cluster.request_topics(NewTopic(name="refunds"))
    else:
        cluster.request_topics(NewTopic(name="refunds"))
        assert [event["topics"] for event in lines_of(cluster.journal, "topic.asked_twice")] == [["refunds"]]


def test_a_broker_that_knows_of_all_others_and_of_no_topic_yet_is_not_well() -> None:
    """As ZooKeeper's controller has it for a moment when it begins: a cluster emptied then would keep its topics."""
    seen = SimpleNamespace(brokers=(1,), partitions=())

    class OneBroker(SimpleNamespace):
        def __str__(self) -> str:
            return "broker 1"

    broker = OneBroker(is_running=True, describe_cluster=lambda: seen, describe_log_dirs=lambda: ())
    cluster: Any = SimpleNamespace(brokers=[broker], live_brokers=lambda: [broker], _broker_ids=lambda: (1,), topics={})
    assert Cluster.health_problems(cluster) == []
    cluster.topics["orders"] = Topic(cluster, "orders", 2)
    assert Cluster.health_problems(cluster) == ["broker 1 does not know orders-0, orders-1"]
    seen.partitions = (replace(WHOLE, partition=1),)
    assert Cluster.health_problems(cluster) == ["broker 1 does not know orders-0"]
    seen.partitions = (WHOLE, replace(WHOLE, partition=1))
    assert Cluster.health_problems(cluster) == []


WHOLE = PartitionState(
    topic="orders", partition=0, leader=1, leader_epoch=0, replicas=(1, 2), isr=(1, 2), offline_replicas=()
)
MADE = LogDirState(
    path="/1",
    error=None,
    replicas=(ReplicaInDir(topic="orders", partition=0, size=0, offset_lag=0, is_future=False),),
)
FAILED = LogDirState(path="/1", error="KAFKA_STORAGE_ERROR", replicas=())


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
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)

    class OneBroker(SimpleNamespace):
        def __str__(self) -> str:
            return "broker 1"

    broker = OneBroker(
        id=1,
        describe_cluster=lambda: SimpleNamespace(partitions=(seen,)),
        describe_log_dirs=lambda: (log_dir,),
        mbeans=SimpleNamespace(unassigned=lambda: untold),
    )
    cluster: Any = SimpleNamespace(spec=ClusterSpec(mode=mode), live_brokers=lambda: [broker], check_nodes=lambda: None)
    cluster._missing_replicas = partial(Cluster._missing_replicas, cluster)
    if unmade is None:
        Cluster.await_replicas_created(cluster)
    else:
        with pytest.raises(Inconclusive, match=unmade):
            Cluster.await_replicas_created(cluster)
