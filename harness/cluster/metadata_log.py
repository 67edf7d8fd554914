"""Reads the metadata log of a cluster at the end of a case, and writes what is irregular there into the journal."""

from __future__ import annotations

import re
from collections.abc import Collection

from harness.cluster.cluster import Cluster
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.errors import BuildLacks, ToolFailed
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata_records import read_metadata_log
from harness.measure.metadata_history import irregular


def journal_metadata_log(cluster: Cluster, known: Collection[str]) -> dict[str, str]:
    """Read the log of the active controller, and write ``metadata_log.read``. Without one, nothing is read.

    On a build whose tool or records are others, it writes ``metadata_log.unread``: ``jbod probe`` says what is missing.

    In a reused cluster, the records that emptied it belong to the case after that.

    :param known: patterns of what is irregular and known; it is not in the event
    :returns: the first of what is known, by its pattern
    """
    if not isinstance(cluster.quorum, KRaftQuorum):
        return {}
    try:
        controller = cluster.active_controller()
    except NoAnswer:
        return {}
    since = cluster.metadata_read_until
    try:
        records = read_metadata_log(cluster.distribution, cluster.quorum.metadata_log(controller))
        found = irregular(records, since=since)
    except (ToolFailed, BuildLacks, OSError) as error:
        cluster.journal.write("metadata_log.unread", why=str(error))
        return {}
    until = records[-1].offset + 1 if records else 0
    explained, others = dict[str, str](), list[str]()
    for each in map(str, found):
        if (pattern := next((pattern for pattern in known if re.search(pattern, each)), None)) is None:
            others.append(each)
        else:
            explained.setdefault(pattern, each)
    cluster.journal.write("metadata_log.read", since=since, until=until, irregular=others)
    cluster.metadata_read_until = until
    return explained
