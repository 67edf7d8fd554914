"""Tiered storage (KIP-405): Kafka's ``LocalTieredStorage`` as the remote storage, and the settings that brokers need.

``LocalTieredStorage`` is in a test jar of Kafka. It keeps remote segments as files in a folder, which all brokers of a
cluster share. A broker loads it as a plugin, with a class loader of its own
(``remote.log.storage.manager.class.path``). All builds get the plugin of one release: KIP-405's interface is public,
and the plugin's few internal classes, which later releases moved, are put into its jar. So builds differ in Kafka only.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness.errors import EnvironmentLacks, HarnessError
from harness.host.cache import publish
from harness.host.scratch import scratch
from harness.kafka.distribution import is_sound, write_sums
from harness.kafka.maven import ArtifactNotFound, copy_dependencies, silent

METADATA_TOPIC = "__remote_log_metadata"
"""The internal topic in which brokers keep what they know of remote segments."""

_RELEASE = "3.9.2"
_JARS = (
    f"org.apache.kafka:kafka-storage:{_RELEASE}:test",
    f"org.apache.kafka:kafka-storage:{_RELEASE}",
    f"org.apache.kafka:kafka-clients:{_RELEASE}",
)
_CLASSES = re.compile(
    r"org/apache/kafka/(?:server/log/remote/storage/(?:LocalTieredStorage|RemoteLogSegmentFileset|"
    r"RemoteTopicPartitionDirectory|Transferer)(?!\w*Test)[\w$]*"
    r"|storage/internals/log/LogFileUtils|common/utils/LogContext(?:\$\w+)*)\.class"
)
PLUGIN_CLASS = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
_FOLDER = "kafka-tiered-storage"  # LocalTieredStorage.ROOT_STORAGE_DIR_NAME

SYSTEM_ENABLE = "remote.log.storage.system.enable"
"""The setting that enables tiered storage: controllers read it, too, before they create a tiered topic."""

_SETTINGS: Mapping[str, str] = {
    SYSTEM_ENABLE: "true",
    "remote.log.storage.manager.class.name": PLUGIN_CLASS,
    # One partition, so that its leader has the metadata of every segment.
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    # A segment is copied within a second (30 s by default), and retention runs every half second (5 min).
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    # Many JVMs on few cores: fewer threads.
    "remote.log.reader.threads": "2",
}


_CLIENTS = "rlmm.config.remote.log.metadata.common.client."


def tiered_settings(plugin: Path, storage: Path, listener: str, client: Mapping[str, str]) -> dict[str, str]:
    """The settings of a broker with tiered storage.

    :param plugin: the jar of :func:`local_tiered_storage`, as the broker can read it
    :param storage: the folder in which ``LocalTieredStorage`` makes its own
    :param listener: the listener by which brokers read and write :data:`METADATA_TOPIC`
    :param client: the settings with which a broker's own clients connect to it
    """
    return {
        **_SETTINGS,
        "remote.log.storage.manager.class.path": str(plugin),
        "remote.log.metadata.manager.listener.name": listener,
        "rsm.config.dir": str(storage),
        **{_CLIENTS + name: value for name, value in client.items()},
    }


def remote_files(storage: Path, topic: str, partition: int) -> list[Path]:
    """The files of a partition's remote segments, in the order of their base offsets."""
    topic_id = "?" * 22
    return sorted(storage.glob(f"{_FOLDER}/{topic}-{partition}-{topic_id}/*"))


def local_tiered_storage(cache: Path, *, say: Callable[[str], None] = silent) -> Path:
    """The jar of the plugin; from the cache, or made of jars from Maven.

    :raises EnvironmentLacks, HarnessError: these can't be fetched, see :func:`harness.kafka.maven.copy_dependencies`
    """
    name = f"local-tiered-storage-{_RELEASE}"

    def make(folder: Path) -> None:
        say(f"LocalTieredStorage {_RELEASE}: fetching it with mvn")
        with scratch("tiered") as fetched:
            try:
                copy_dependencies(_JARS, fetched, transitive=False, say=say)
            except ArtifactNotFound as error:
                raise EnvironmentLacks(f"{error}; tiered storage needs it") from error
            with zipfile.ZipFile(folder / f"{name}.jar", "w", zipfile.ZIP_DEFLATED) as jar:
                for member, content in _classes(sorted(fetched.glob("*.jar"))):
                    jar.writestr(zipfile.ZipInfo(member), content)
        write_sums(folder)

    return publish(cache / name, make, is_sound) / f"{name}.jar"


def _classes(jars: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the classes of the plugin.

    :raises HarnessError: the jars have not all of them
    """
    found = set[str]()
    for path in jars:
        with zipfile.ZipFile(path) as jar:
            for member in sorted(filter(_CLASSES.fullmatch, jar.namelist())):
                found.add(member)
                yield member, jar.read(member)
    wanted = {PLUGIN_CLASS.replace(".", "/"), "org/apache/kafka/common/utils/LogContext"}
    if missing := sorted(wanted - {member.removesuffix(".class") for member in found}):
        raise HarnessError(f"{', '.join(path.name for path in jars)} lack {', '.join(missing)}")
