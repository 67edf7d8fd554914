"""The known deviations of Kafka builds from KIP-853, as data."""

from __future__ import annotations

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

VOTES_ASKED_WITHOUT_PAUSE = Deviation(
    kip=853,
    promised="a controller that wants votes asks again after controller.quorum.retry.backoff.ms, 20 ms by default",
    actual="it asks a controller with a new disk again at once, over and over, as long as the quorum has no leader",
    issue="none found; KafkaRaftClient.maybeHandleCommonResponse takes INVALID_VOTER_KEY for a success",
    builds=VersionRange.parse(">=3.9.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,  # it ends when there is a leader
    floods=r"sent a voter key .* in the VOTE request that doesn't match the local key|"
    r"Voter key for VOTE or BEGIN_QUORUM_EPOCH request didn't match",
)

TRUNCATION_HIDES_VOTERS = Deviation(
    kip=853,
    promised="an active controller has the votes of a majority of the voters that the metadata log names",
    actual="a controller that had to truncate its log does not read the voters that come in place of what it "
    "truncated, and a majority of the former voters elects it",
    issue="none found; KRaftControlRecordStateMachine.truncateNewEntries does not set back the next offset to read",
    builds=VersionRange.parse(">=3.9.0"),
    modes=(Mode.KRAFT,),
)
