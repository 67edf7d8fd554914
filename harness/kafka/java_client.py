"""Asks brokers with Kafka's Java client, as Java programs do, and classes of a build for what they know.

Both run in the JVM of Kafka's tools.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from py4j.java_gateway import JVMView

from harness.kafka.distribution import Distribution
from harness.kafka.security import Bootstrap
from harness.kafka.tools_jvm import ask_java


def cordoned_flags(
    distribution: Distribution, bootstrap: Bootstrap, brokers: Collection[int]
) -> dict[int, dict[str, bool]]:
    """``LogDirDescription.isCordoned()`` of every log dir (KIP-1066), by broker and path.

    :raises HarnessError: the class has no such method, or a broker does not answer
    """

    def ask(jvm: JVMView) -> dict[int, dict[str, bool]]:
        properties, ids = jvm.java.util.Properties(), jvm.java.util.ArrayList()
        for name, value in bootstrap.java.items():
            properties.setProperty(name, value)
        for broker in brokers:
            ids.add(broker)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            described = admin.describeLogDirs(ids).allDescriptions().get()
            return {broker: {str(path): bool(of[path].isCordoned()) for path in of} for broker, of in described.items()}
        finally:
            admin.close()

    return ask_java(distribution, ask)


@dataclass(frozen=True, kw_only=True)
class MetadataVersion:
    """A metadata version that a build knows.

    :ivar name: such as 4.3-IV0
    :ivar level: its number
    :ivar changes_metadata: whether it changed the format of the metadata, so that no downgrade goes below it
    """

    name: str
    level: int
    changes_metadata: bool


def metadata_versions(distribution: Distribution) -> tuple[MetadataVersion, ...]:
    """The metadata versions that a build knows, lowest first, also those that are not yet released."""

    def ask(jvm: JVMView) -> tuple[MetadataVersion, ...]:
        values = jvm.org.apache.kafka.server.common.MetadataVersion.values()
        return tuple(
            MetadataVersion(
                name=str(each.version()),
                level=int(each.featureLevel()),
                changes_metadata=bool(each.didMetadataChange()),
            )
            for each in values
        )

    return ask_java(distribution, ask)


def plugin_methods(distribution: Distribution, plugin: Path, class_name: str, storage: Path) -> dict[str, bool]:
    """Load a remote storage plugin (KIP-405) beside a build, and configure it as a broker does.

    :param storage: the folder for remote segments
    :returns: the plugin's public methods, and whether it implements each
    :raises HarnessError: the build has not the classes that the plugin needs
    """

    def ask(jvm: JVMView) -> dict[str, bool]:
        urls = jvm.java.lang.reflect.Array.newInstance(jvm.Class.forName("java.net.URL"), 1)
        urls[0] = jvm.java.io.File(str(plugin)).toURI().toURL()
        loader = jvm.java.net.URLClassLoader(urls, jvm.ClassLoader.getSystemClassLoader())
        loaded = loader.loadClass(class_name)
        settings = jvm.java.util.HashMap()
        settings.put("broker.id", 1)
        settings.put("dir", str(storage))
        loaded.newInstance().configure(settings)
        is_abstract = jvm.java.lang.reflect.Modifier.isAbstract
        return {str(each.toGenericString()): not is_abstract(each.getModifiers()) for each in loaded.getMethods()}

    return ask_java(distribution, ask)
