"""What it means when a topic does not come to be: the harness's affair, or, under a fault, a promise that is broken."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from harness import timeouts
from harness.cluster import Cluster
from harness.doors.admin import NewTopic, Refused
from harness.doors.metadata import PartitionState
from harness.errors import AwaitTimeout, JbodError, NodeDied, PromiseBroken
from harness.journal import Journal

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
        broker = SimpleNamespace(id=1, admin=admin, describe_log_dirs=lambda: ())
        super().__init__(
            _controlling=lambda: broker, live_brokers=lambda: [broker], check_nodes=check_nodes, journal=Journal(None)
        )
        self.await_topics = partial(Cluster.await_topics, self)  # type: ignore[arg-type]


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
