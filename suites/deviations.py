"""Where a Kafka build is known to do other than its KIP says: expected, named, and missed where it no longer shows."""

from __future__ import annotations

from harness.deviation import Deviation
from harness.versions import VersionRange

GOOD_LOG_DIR_OFFLINE = Deviation(
    kip=113,
    says="a log dir is offline when it fails; a move between log dirs touches nothing else",
    does="a move that ends while the flush of a rolled segment is due takes the good log dir offline",
    issue="KAFKA-19571",
    builds=VersionRange.parse("<4.2.0"),
)

OFFLINE_REPLICAS_UNCOUNTED = Deviation(
    kip=112,
    says="OfflineReplicaCount is the number of replicas on failed log dirs",
    does="it is always 0: it counts entries of the class of HostedPartition.Offline's companion, which none has",
    issue="since the mending of KAFKA-16157",
    builds=VersionRange.parse(">=3.7.0,<4.3.0"),
)
