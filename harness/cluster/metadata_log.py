"""Reads the metadata log of a cluster at the end of a case, and writes what is irregular there into the journal."""

from __future__ import annotations

from harness.cluster.cluster import Cluster
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata_records import dump_records, files_of
from harness.measure.metadata_history import irregular


def journal_metadata_log(cluster: Cluster) -> None:
    """Read the log of the active controller, and write ``metadata_log.read``. Without one, nothing is read.

    In a reused cluster, the records that emptied it belong to the case after that.

    :raises ToolFailed: Kafka's tool can't read the log
    """
    if not isinstance(cluster.quorum, KRaftQuorum):
        return
    try:
        controller = cluster.active_controller()
    except NoAnswer:
        return
    records = dump_records(cluster.distribution, *files_of(cluster.quorum.metadata_log(controller)))
    since, until = cluster.metadata_read_until, records[-1].offset + 1
    found = irregular(records, since=since)
    cluster.journal.write("metadata_log.read", since=since, until=until, irregular=[str(each) for each in found])
    cluster.metadata_read_until = until
