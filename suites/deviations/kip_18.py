"""The known deviations of Kafka builds from KIP-18, as data."""

from __future__ import annotations

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

CLEAN_ELECTIONS_COUNTED = Deviation(
    kip=18,
    promised="UncleanLeaderElectionsPerSec counts the leaders that were not elected from the ISR",
    actual="it also counts a leader that joins the ISR as it becomes leader, at the end of a reassignment",
    issue="KAFKA-19212",
    builds=VersionRange.parse(">=3.9.0,<4.1.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

COMMITTED_TRUNCATED = Deviation(
    kip=18,
    promised="a replica in the ISR has all committed records",
    actual="a follower that was about to truncate these records, led and committed them, and follows again, truncates "
    "them: if it leads before it has fetched them again, they are lost",
    issue="none found; what the fix of KAFKA-18991 left: truncateOnFetchResponse does not compare the leader epoch",
    builds=VersionRange.parse(">=2.7.0"),
)
