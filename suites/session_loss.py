"""Whether the machine was too slow for the cluster: a broker that nobody had done anything to lost its session.

Its partitions are then led by others, by the rules, and it is back in a moment: nothing of that is a broken promise.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime

from harness.cluster.cluster import Cluster

_EXPIRED = r"\[ZooKeeperClient Kafka server\] Session expired"
FENCED = r"Fencing broker (\d+) .*because its session has timed out"
"""``kafka.zookeeper.ZooKeeperClient``; ``ReplicationControlManager``, which is a controller's."""


def lost_session(cluster: Cluster, but: Collection[int], since: datetime | None = None) -> str | None:
    """Which broker, and what says so; None where none did but those of which that was to be expected, by their ids.

    :param since: None: since the case began
    """
    for broker in cluster.brokers:
        if broker.id not in but and (line := broker.log.first(_EXPIRED, since=since)):
            return f"{broker} lost its session: {line.text[:300]}"
    for node in (*cluster.quorum_nodes, *(broker.node for broker in cluster.brokers)):
        for line in node.log.lines(since=since):
            if (fenced := re.search(FENCED, line.text)) and int(fenced[1]) not in but:
                return f"broker {fenced[1]} lost its session: {line.text[:300]}"
    return None
