"""Topics for tests of clients on a real broker."""

from __future__ import annotations

import uuid

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from harness.kafka.security import Bootstrap


def new_topic(bootstrap: Bootstrap, prefix: str, partitions: int) -> str:
    """Create a topic with one replica; returns its name: the prefix and eight random characters."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    client = AdminClient({**bootstrap.librdkafka})  # a client that is deleted ends its requests
    client.create_topics([NewTopic(name, partitions, 1)])[name].result()
    return name
