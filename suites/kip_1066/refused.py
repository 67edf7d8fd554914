"""Checks that a request is refused with the error and reason of KIP-1066, and has no effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.kafka.answers import Refused
from suites.checks import check_refused


def check_refused_without_effect(
    cluster: Cluster,
    topic: str,
    ask: Callable[[], object],
    error: str,
    saying: str,
    *,
    there: Sequence[tuple[int, ...]] = (),
) -> None:
    """Kafka refuses a request about a topic, and the topic does not change.

    :param saying: a regular expression of the error's message
    :param there: the replicas of each partition that the topic has; empty: there is no such topic
    """
    check_refused(ask, error, saying)
    check_only_replicas(cluster, topic, there)


def check_only_replicas(cluster: Cluster, topic: str, there: Sequence[tuple[int, ...]]) -> None:
    """Every broker sees exactly these replicas of the topic's partitions, and no reassignment is under way.

    A config is set first. A broker that knows it also knows all that the controller wrote before it.
    """
    for broker in cluster.live_brokers():
        broker.configure({"jbod.refused": topic})
        seen = [state.replicas for state in broker.admin.describe_cluster(topics=(topic,)).partitions]
        if seen != list(there):
            raise PromiseBroken(
                f"a request about {topic} was refused, but {broker} now sees it on {seen} instead of {list(there)}"
            )
    if under_way := cluster.reassignments():
        raise PromiseBroken(f"a request about {topic} was refused, but a reassignment is under way: {under_way}")


def answer_of(refusal: Refused) -> str:
    """The error of a refusal, followed by its message if the message should name the cordon and does not.

    "The INVALID_REPLICA_ASSIGNMENT error will be returned. […] The error message will be adjusted to specify the
    reason" (KIP-1066, "Error handling"). For INELIGIBLE_REPLICA only the controller's log must have the reason.
    """
    silent = refusal.error == "INVALID_REPLICA_ASSIGNMENT" and "cordoned" not in (refusal.message or "")
    return f"{refusal.error} without the reason: {refusal.message}" if silent else refusal.error
