"""The metadata that a migration must not change: topics, assignments and configs, as every broker shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until

OF_TOPIC = {"retention.ms": "7200000"}
OF_BROKER = {"log.cleaner.backoff.ms": "14000"}
OF_ALL_BROKERS = {"log.cleaner.io.buffer.size": "262144"}


def metadata_seen_by(broker: Broker) -> dict[str, object]:
    """The ids, assignments and configs of all topics, and the dynamic configs of the broker and of all brokers."""
    partitions = broker.describe_cluster().partitions
    configs = broker.admin.dynamic_configs(broker.id)
    return {
        **{f"the id of {each.topic}": each.topic_id for each in partitions},
        **{f"the replicas of {each.topic}-{each.partition}": sorted(each.replicas) for each in partitions},
        **{f"the configs of {name}": broker.admin.topic_configs(name) for name in {each.topic for each in partitions}},
        "its own configs": configs.own,
        "the configs of all brokers": configs.of_all,
    }


class KeptMetadata:
    """The metadata of a cluster before a migration, which every broker must show after each step, too."""

    def __init__(self, cluster: Cluster, topic: Topic) -> None:
        """Set configs of the topic, of a broker and of all brokers, and take the metadata once all brokers agree."""
        self._cluster = cluster
        topic.configure(OF_TOPIC)
        first = cluster.brokers[0]
        first.configure(OF_BROKER)
        first.admin.set_broker_configs(None, OF_ALL_BROKERS)
        await_until(
            lambda: all(each.admin.dynamic_configs(each.id).of_all == OF_ALL_BROKERS for each in cluster.brokers),
            timeout_s=timeouts.REQUEST_S,
            what=f"all brokers to have the configs {OF_ALL_BROKERS}",
            retry_on=(NoAnswer,),
            failure=Inconclusive,
        )
        self._of = {broker.id: metadata_seen_by(broker) for broker in cluster.brokers}

    def check(self) -> None:
        """Every live broker shows the metadata from before the migration."""
        await_until(
            lambda: list(self._differences()),
            lambda found: not found,
            timeout_s=timeouts.LOG_DIR_FAILURE_S,
            what="all brokers to show the metadata from before the migration",
            retry_on=(NoAnswer,),
            watch=self._cluster.check_nodes,
            failure=PromiseBroken,
        )
        self._cluster.journal.write("metadata.kept", brokers=[broker.id for broker in self._cluster.live_brokers()])

    def _differences(self) -> Iterator[str]:
        for broker in self._cluster.live_brokers():
            yield from compare_metadata(broker, self._of[broker.id], metadata_seen_by(broker))


def compare_metadata(broker: Broker, before: Mapping[str, object], seen: Mapping[str, object]) -> Iterator[str]:
    """Every value from before is as it was; topics that were created since then may be there, too."""
    for what, value in before.items():
        if seen.get(what) != value:
            yield f"{broker} shows {what} as {seen.get(what)} instead of {value}"
