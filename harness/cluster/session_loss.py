"""Finds brokers that lost their session although the scenario left them alone: the machine was too slow.

Other brokers then lead their partitions, and they soon register again. That breaks no promise.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.cluster.lifecycle import ClusterLifecycle

_EXPIRED = r"\[ZooKeeperClient Kafka server\] Session expired"
FENCED = r"Fencing broker (\d+) .*because its session has timed out"
"""A controller's ``ReplicationControlManager`` logs this; a broker's ``ZooKeeperClient`` logs the line above."""


def lost_session(cluster: ClusterLifecycle, but: Collection[int], since: datetime) -> str | None:
    """A broker that has lost its session since then, with the log line that shows it; None if there is none.

    :param but: the ids of brokers that may have lost their session, because the scenario disturbed them
    """
    for broker in cluster.brokers:
        if broker.id not in but and (line := broker.log.first(_EXPIRED, since=since)):
            return f"{broker} lost its session: {line.text[:300]}"
    for node in (*cluster.quorum_nodes, *(broker.node for broker in cluster.brokers)):
        for line in node.log.lines(since=since):
            if (fenced := re.search(FENCED, line.text)) and int(fenced[1]) not in but:
                return f"broker {fenced[1]} lost its session: {line.text[:300]}"
    return None
