"""A request is refused: with the error and the reason that KIP-1066 promises, and nothing comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.kafka.admin import Refused
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
    """Kafka refuses what is asked of a topic, and nothing comes of it.

    :param saying: a regular expression of the message
    :param there: the replicas of each partition that the topic has all the while; none: there is no such topic
    :raises PromiseBroken: it does it, or refuses otherwise, or does it in spite of what it says
    """
    check_refused(ask, error, saying)
    check_only_replicas(cluster, topic, there)


def check_only_replicas(cluster: Cluster, topic: str, there: Sequence[tuple[int, ...]]) -> None:
    """Every broker sees just these replicas of the topic's partitions, and none is being reassigned.

    What a broker hears of a config that is set now it hears after all that the controller wrote before.

    :raises PromiseBroken: one sees something else
    """
    for broker in cluster.live_brokers():
        broker.configure({"jbod.refused": topic})
        seen = [state.replicas for state in broker.admin.describe_cluster(topics=(topic,)).partitions]
        if seen != list(there):
            raise PromiseBroken(f"{topic} was refused, and {broker} sees it on {seen} instead of {list(there)}")
    if under_way := cluster.reassignments():
        raise PromiseBroken(f"{topic} was refused, and is being reassigned: {under_way}")


def answer_of(refusal: Refused) -> str:
    """A refusal's error; with its message where this should name the cordon and doesn't.

    "The INVALID_REPLICA_ASSIGNMENT error will be returned. […] The error message will be adjusted to specify the
    reason" (KIP-1066, "Error handling"); of INELIGIBLE_REPLICA only the controller's log is to have it.
    """
    silent = refusal.error == "INVALID_REPLICA_ASSIGNMENT" and "cordoned" not in (refusal.message or "")
    return f"{refusal.error} without the reason: {refusal.message}" if silent else refusal.error
