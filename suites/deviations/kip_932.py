"""The known deviations of Kafka builds from KIP-932, as data."""

from __future__ import annotations

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

LATE_ACKNOWLEDGEMENT_CONFIRMED = Deviation(
    kip=932,
    promised="a member that acknowledges a record after its lock ran out gets INVALID_RECORD_STATE",
    actual="the broker confirms it, without an effect, if another member has ended this record and all before it",
    issue="none found; SharePartition.acknowledge ignores offsets before the start offset",
    builds=VersionRange.parse(">=4.2.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)
