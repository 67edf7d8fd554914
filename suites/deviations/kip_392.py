"""The known deviations of Kafka builds from KIP-392, as data."""

from __future__ import annotations

from harness.kafka.versions import VersionRange
from harness.runner.deviation import Deviation

FAILED_REPLICA_PREFERRED = Deviation(
    kip=392,
    promised="a consumer is served by another replica where the nearest is offline",
    actual="the leader still names the nearest replica, which is not in the ISR, and the consumer reads nothing",
    issue="KAFKA-14372",
    builds=VersionRange.parse(">=2.4.0,<3.3.2"),
)
