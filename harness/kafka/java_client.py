"""Asks brokers with Kafka's Java client, as Java programs do; the client runs in the JVM of Kafka's tools."""

from __future__ import annotations

from collections.abc import Collection

from py4j.java_gateway import JVMView

from harness.kafka.distribution import Distribution
from harness.kafka.tools_jvm import ask_java


def cordoned_flags(distribution: Distribution, bootstrap: str, brokers: Collection[int]) -> dict[int, dict[str, bool]]:
    """``LogDirDescription.isCordoned()`` of every log dir (KIP-1066), by broker and path.

    :raises HarnessError: the class has no such method, or a broker does not answer
    """

    def ask(jvm: JVMView) -> dict[int, dict[str, bool]]:
        properties, ids = jvm.java.util.Properties(), jvm.java.util.ArrayList()
        properties.setProperty("bootstrap.servers", bootstrap)
        for broker in brokers:
            ids.add(broker)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            described = admin.describeLogDirs(ids).allDescriptions().get()
            return {broker: {str(path): bool(of[path].isCordoned()) for path in of} for broker, of in described.items()}
        finally:
            admin.close()

    return ask_java(distribution, ask)
