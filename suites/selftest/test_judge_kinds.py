"""Each kind of anomaly of the contract's table: a history that shows it, and a similar one that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.checkers.verdict import KINDS
from suites.selftest.histories import Story, anomaly_counts, crc

RED: list[tuple[str, Callable[[Story], None], dict[str, int], str]] = []
GREEN: list[tuple[str, Callable[[Story], None]]] = []

Told = Callable[[Story], None]


def shows(verdict: str, **kinds: int) -> Callable[[Told], Told]:
    """The history that the function tells shows exactly these kinds and leads to this verdict."""

    def register(tell: Told) -> Told:
        RED.append((tell.__name__, tell, kinds, verdict))
        return tell

    return register


def is_right(tell: Told) -> Told:
    """The history that the function tells is valid and shows nothing."""
    GREEN.append((tell.__name__, tell))
    return tell


def acked(story: Story, count: int) -> None:
    """Records 0 to count-1, each acked at the offset of its number."""
    for seq in range(count):
        story.send(seq, seq)


# lost, undrained


@shows("invalid", lost=1)
def lost_behind_the_drain(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 2)


@shows("invalid", lost=1)
def lost_at_the_end_of_a_truncated_log(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1, end=2)


@shows("invalid", lost=1)
def lost_without_the_table_drained(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 2)
    s.drained = None


@shows("invalid", lost=1)
def lost_although_a_live_consumer_of_another_partition_has_that_offset(s: Story) -> None:
    acked(s, 2)
    s.send(2, 0, partition=1)
    s.drain(0)
    s.end(2)
    s.drain()
    s.read(0, 2, by="drain", partition=1)


@shows("invalid", lost=3)
def lost_with_an_empty_consumed_table(s: Story) -> None:
    acked(s, 3)
    s.end(3)


@shows("unknown", undrained=3)
def nothing_was_drained(s: Story) -> None:
    acked(s, 3)
    s.drained = None


@shows("unknown", undrained=1)
def a_drain_that_stopped_early(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1, end=3, position=2)


@shows("unknown", undrained=1)
def the_last_record_without_the_table_drained(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1)
    s.drained = None


@shows("invalid", lost=1, undrained=1)
def lost_before_and_undrained_behind(s: Story) -> None:
    acked(s, 4)
    s.drain(0, 2, end=4, position=3)


@is_right
def indeterminate_and_failed_records_may_be_missing(s: Story) -> None:
    acked(s, 2)
    s.send(2)
    s.send(3, outcome="failed")
    s.drain(0, 1)


@is_right
def an_indeterminate_record_may_be_there(s: Story) -> None:
    acked(s, 2)
    s.send(2, partition=None)
    s.drain(0, 1, 2)


@is_right
def one_complete_drain_is_enough(s: Story) -> None:
    acked(s, 3)
    s.drain(0, by="drain-a", end=3, position=1)
    s.drain(0, 1, 2, by="drain-b")


@is_right
def deleted_by_the_scenario(s: Story) -> None:
    s.run["deleted_below"] = {"t": {"0": 2}}
    acked(s, 3)
    for offset in (0, 1, 2):
        s.read(offset)
    s.drain(2)


@shows("invalid", lost=1, vanished=1)
def deleted_above_what_the_scenario_deleted(s: Story) -> None:
    s.run["deleted_below"] = {"t": {"0": 1}}
    acked(s, 3)
    for offset in (0, 1, 2):
        s.read(offset)
    s.drain(2)


@is_right
def compacted_away(s: Story) -> None:
    s.run["compacted"] = ["t"]
    s.send(0, 0, key="a")
    s.send(1, 1, key="a")
    s.read(0)
    s.drain(1)


@shows("invalid", lost=2)
def no_later_record_has_the_key(s: Story) -> None:
    s.run["compacted"] = ["t"]
    s.send(0, 0, key="a")
    s.send(1, 1, key=None)
    s.send(2, 2, key="b")
    s.send(3, 0, key="a", partition=1)
    s.drain(2)
    s.read(0, 3, by="drain", partition=1)


@shows("invalid", lost=1)
def the_last_of_a_key_may_not_go(s: Story) -> None:
    s.run["compacted"] = ["t"]
    s.send(0, 0, key="a")
    s.send(1, 1, key="a")
    s.send(2, 2, key="b")
    s.drain(2)


@shows("invalid", lost=1)
def an_aborted_record_replaces_nothing(s: Story) -> None:
    s.run["compacted"] = ["t"]
    s.send(0, 0, key="a")
    s.send(1, 1, key="a", transaction="x", transaction_outcome="aborted")
    s.send(2, 3, key="b")
    s.drain(by="drain-rc", end=4)
    s.read(3, 2, by="drain-rc")


@shows("unknown", undrained=1)
def acked_without_an_offset_in_a_log_that_was_deleted_from(s: Story) -> None:
    s.run["deleted_below"] = {"t": {"0": 1}}
    s.send(0, outcome="acked")
    s.send(1, 1)
    s.drain(1)


@shows("invalid", lost=1)
def acked_without_an_offset(s: Story) -> None:
    s.send(0, outcome="acked")
    s.send(1, 1)
    s.drain(1)


@shows("unknown", no_load=0)
def nothing_was_acked(s: Story) -> None:
    s.send(0)
    s.drain(0)


@shows("unknown", no_load=0)
def nothing_at_all(s: Story) -> None:
    pass


# vanished


@shows("invalid", vanished=1)
def a_live_consumer_had_an_indeterminate_record(s: Story) -> None:
    s.send(0)
    s.send(1, 1)
    s.read(0)
    s.drain(1)


@is_right
def a_live_consumer_had_an_aborted_record(s: Story) -> None:
    s.send(0, 0, transaction="x", transaction_outcome="aborted")
    s.send(1, 2)
    s.read(0)
    s.drain(by="drain-rc", end=3)
    s.read(2, 1, by="drain-rc")


@is_right
def a_live_consumer_had_a_record_of_an_indeterminate_transaction(s: Story) -> None:
    s.send(0, 0, transaction="x", transaction_outcome="indeterminate")
    s.send(1, 2)
    s.read(0)
    s.drain(by="drain-rc", end=3)
    s.read(2, 1, by="drain-rc")


@shows("invalid", vanished=1)
def a_read_committed_consumer_had_a_record_of_an_indeterminate_transaction(s: Story) -> None:
    s.send(0, 0, transaction="x", transaction_outcome="indeterminate")
    s.send(1, 2)
    s.read(0, by="live-rc")
    s.drain(by="drain-rc", end=3)
    s.read(2, 1, by="drain-rc")


@is_right
def what_no_drain_reached_has_not_vanished(s: Story) -> None:
    s.send(0, 0)
    s.send(1)
    s.read(0)
    s.read(1)
    s.drain(0, end=3, position=1)


# duplicated, misplaced, corrupted, failed_but_present, reordered


@shows("invalid", duplicated=1)
def read_at_two_places(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1, 2)
    s.read(3, 1, by="drain")


@shows("valid", duplicated=1)
def read_at_two_places_as_allowed(s: Story) -> None:
    s.run["allow_duplicates"] = True
    acked(s, 3)
    s.drain(0, 1, 2)
    s.read(3, 1, by="drain")


def doubled_in(s: Story, *sessions: list[int], ack: int | None = 3, **other: object) -> None:
    """A record at the offsets 1 and 3, whose batches are of these producer sessions."""
    s.run["producer_sessions"] = {"t": {"0": list(sessions)}}
    for seq, offset in ((0, 0), (1, ack), (2, 2)):
        s.send(seq, offset)
    s.produced[1] |= other
    s.drain(0, 1, 2)
    s.read(3, 1, by="drain")


@shows("valid", resent=1)
def its_client_wrote_it_anew_in_another_epoch(s: Story) -> None:
    doubled_in(s, [0, 2, 7, 0], [3, 3, 7, 1])


@shows("valid", resent=1)
def its_client_wrote_it_anew_and_got_no_ack(s: Story) -> None:
    doubled_in(s, [0, 1, 7, 0], [2, 2, 8, 0], [3, 3, 7, 2], ack=None)


@shows("valid", resent=1)
def its_client_wrote_it_anew_twice(s: Story) -> None:
    doubled_in(s, [0, 2, 7, 0], [3, 3, 7, 1], [4, 4, 7, 2], ack=4)
    s.read(4, 1, by="drain")


@shows("invalid", duplicated=1)
def doubled_in_one_epoch(s: Story) -> None:
    doubled_in(s, [0, 3, 7, 1])


@shows("invalid", duplicated=1)
def doubled_in_one_epoch_with_another_between(s: Story) -> None:
    doubled_in(s, [0, 1, 7, 1], [2, 2, 7, 0], [3, 3, 7, 1])


@shows("invalid", duplicated=1)
def doubled_in_an_older_epoch(s: Story) -> None:
    """A broker must refuse a batch of an older producer epoch."""
    doubled_in(s, [0, 2, 7, 1], [3, 3, 7, 0])


@shows("invalid", duplicated=1)
def doubled_by_another_producer_id(s: Story) -> None:
    doubled_in(s, [0, 2, 7, 0], [3, 3, 8, 1])


@shows("invalid", duplicated=1)
def doubled_and_one_copy_is_of_no_session(s: Story) -> None:
    doubled_in(s, [0, 2, 7, 0])


@shows("invalid", duplicated=1)
def doubled_though_the_first_copy_was_acked(s: Story) -> None:
    """A client does not send a record again that was acked."""
    doubled_in(s, [0, 2, 7, 0], [3, 3, 7, 1], ack=1)


@shows("invalid", duplicated=1)
def doubled_and_one_copy_is_gone_again(s: Story) -> None:
    s.run["producer_sessions"] = {"t": {"0": [[0, 2, 7, 0], [3, 3, 7, 1]]}}
    acked(s, 3)
    s.drain(0, 1, 2, end=4)
    s.read(3, 1)


@shows("invalid", duplicated=1)
def doubled_in_another_partition(s: Story) -> None:
    s.run["producer_sessions"] = {"t": {"0": [[0, 2, 7, 0]], "1": [[0, 0, 7, 1]]}}
    s.send(0, 0)
    s.send(1, None, partition=None)
    s.send(2, 2)
    s.drain(0, 1, 2)
    s.read(0, 1, by="drain", partition=1)
    s.end(1, partition=1)


@shows("invalid", duplicated=1)
def doubled_in_a_transaction(s: Story) -> None:
    doubled_in(s, [0, 2, 7, 0], [3, 3, 7, 1], transaction="x", transaction_outcome="committed")


@shows("invalid", duplicated=1)
def three_copies_in_two_epochs(s: Story) -> None:
    doubled_in(s, [0, 2, 7, 0], [3, 4, 7, 1], ack=4)
    s.read(4, 1, by="drain")


@shows("invalid", duplicated=1)
def two_consumers_at_two_places(s: Story) -> None:
    acked(s, 2)
    s.read(3, 1)
    s.drain(0, 1)


@is_right
def two_consumers_at_one_place(s: Story) -> None:
    acked(s, 2)
    s.read(1)
    s.drain(0, 1)
    s.drain(0, 1, by="drain-2")


@shows("invalid", misplaced=1)
def acked_here_and_read_there(s: Story) -> None:
    """It is not duplicated, since an ack alone does not show a second copy; nor lost, since a drain has it."""
    s.send(0, 0)
    s.send(1, 1)
    s.drain(0)
    s.read(2, 1, by="drain")


@shows("invalid", corrupted=1)
def another_crc(s: Story) -> None:
    acked(s, 2)
    s.read(0)
    s.read(1, crc32=1)
    s.drain(0, 1)


@is_right
def a_crc_of_more_than_31_bits(s: Story) -> None:
    s.send(0, 0, crc32=2**32 - 1)
    s.drain()
    s.end(1)
    s.read(0, crc32=2**32 - 1, by="drain")


@shows("invalid", failed_but_present=1)
def failed_and_there(s: Story) -> None:
    s.send(0, 0)
    s.send(1, outcome="failed")
    s.drain(0, 1)


@shows("invalid", reordered=1)
def the_later_one_first(s: Story) -> None:
    s.send(0, 1)
    s.send(1, 0)
    s.drain()
    s.end(2)
    s.read(0, 1, by="drain")
    s.read(1, 0, by="drain")


@shows("valid", reordered=2)
def the_later_ones_first_as_allowed(s: Story) -> None:
    s.run["allow_reordering"] = True
    s.send(0, 2)
    s.send(1, 0)
    s.send(2, 1)
    s.drain()
    s.end(3)
    for offset, seq in ((0, 1), (1, 2), (2, 0)):
        s.read(offset, seq, by="drain")


@shows("invalid", reordered=1, undrained=2)
def acks_alone_are_out_of_order(s: Story) -> None:
    s.send(0, 1)
    s.send(1, 0)
    s.drained = None


@is_right
def other_producers_and_other_partitions_have_their_own_order(s: Story) -> None:
    s.send(0, 1)
    s.send(1, 0, partition=1)
    s.send(5, 0, producer="q", crc32=crc("q", 5))
    s.drain()
    s.end(2)
    s.end(1, partition=1)
    s.read(0, 5, by="drain", producer="q", crc32=crc("q", 5))
    s.read(1, 0, by="drain")
    s.read(0, 1, by="drain", partition=1)


@shows("valid", duplicated=1)
def the_first_offset_is_what_counts(s: Story) -> None:
    s.run["allow_duplicates"] = True
    acked(s, 2)
    s.drain(0, 1)
    s.read(2, 0, by="drain")


# phantom, conflicting_offset


@shows("invalid", phantom=2)
def no_producer_sent_it(s: Story) -> None:
    acked(s, 1)
    s.drain(0)
    s.read(1, 77, by="drain")
    s.read(2, by="drain", producer=None, seq=None)
    s.read(2, by="live", producer=None, seq=None)


@shows("invalid", phantom=1)
def no_producer_sent_it_to_that_topic(s: Story) -> None:
    s.send(0, 0)
    s.send(1, topic="t")
    s.drain(0)
    s.read(0, 1, by="drain", topic="other")


@shows("invalid", phantom=1)
def no_producer_sent_it_to_that_partition(s: Story) -> None:
    s.send(0, 0)
    s.send(1, partition=0)
    s.drain(0)
    s.read(0, 1, by="drain", partition=1)


@shows("invalid", phantom=1)
def it_was_acked_without_an_offset_and_lies_in_another_partition(s: Story) -> None:
    s.send(0, 0)
    s.send(1, partition=0, outcome="acked")
    s.drain(0)
    s.read(0, 1, by="drain", partition=1)


@shows("invalid", conflicting_offset=1)
def two_acks_at_one_offset(s: Story) -> None:
    acked(s, 2)
    s.send(2, 1, producer="q", transaction="x", transaction_outcome="aborted")
    s.drain(0, 1)


@shows("invalid", conflicting_offset=1, duplicated=1)
def two_reads_at_one_offset(s: Story) -> None:
    acked(s, 2)
    s.read(1, 0)
    s.drain(0, 1)


@shows("invalid", conflicting_offset=1, phantom=1)
def two_strangers_at_one_offset(s: Story) -> None:
    acked(s, 1)
    s.drain(0)
    s.read(1, by="drain", producer=None, seq=None, crc32=1)
    s.read(1, by="live", producer=None, seq=None, crc32=2)


@shows("invalid", phantom=1)
def one_stranger_read_twice(s: Story) -> None:
    acked(s, 1)
    s.drain(0)
    s.read(1, by="drain", producer=None, seq=None, crc32=1)
    s.read(1, by="live", producer=None, seq=None, crc32=1)


# skipped


@shows("invalid", skipped=1)
def passed_over(s: Story) -> None:
    acked(s, 3)
    s.read(0)
    s.read(2)
    s.drain(0, 1, 2)


@shows("invalid", skipped=1)
def passed_over_between_two_sessions(s: Story) -> None:
    acked(s, 3)
    s.read(0)
    s.read(2, session=1)
    s.drain(0, 1, 2)


@shows("invalid", skipped=2)
def passed_over_by_both_of_a_group(s: Story) -> None:
    s.run["groups"] = {"a": "g", "b": "g"}
    acked(s, 3)
    for consumer in ("a", "b"):
        s.read(0, by=consumer)
        s.read(2, by=consumer)
    s.drain(0, 1, 2)


@is_right
def handed_to_another_of_the_group(s: Story) -> None:
    s.run["groups"] = {"a": "g", "b": "g"}
    acked(s, 3)
    s.read(0, by="a")
    s.read(1, by="b")
    s.read(2, by="a", session=1)
    s.drain(0, 1, 2)


@shows("invalid", skipped=1)
def handed_to_one_of_another_group(s: Story) -> None:
    s.run["groups"] = {"a": "g", "b": "h"}
    acked(s, 3)
    s.read(0, by="a")
    s.read(1, by="b")
    s.read(2, by="a", session=1)
    s.drain(0, 1, 2)


@shows("invalid", skipped=1)
def passed_over_between_two_of_a_group(s: Story) -> None:
    """Neither member has records on both sides of the gap."""
    s.run["groups"] = {"a": "g", "b": "g"}
    acked(s, 5)
    for offset in (0, 1):
        s.read(offset, by="a")
    for offset in (3, 4):
        s.read(offset, by="b")
    s.drain(0, 1, 2, 3, 4)


@shows("invalid", skipped=3)
def passed_over_whenever_it_changed_hands(s: Story) -> None:
    s.run["groups"] = {"a": "g", "b": "g", "c": "g"}
    acked(s, 8)
    for offset, consumer in ((0, "a"), (2, "b"), (5, "c"), (6, "c")):
        s.read(offset, by=consumer)
    s.read(0, 7, by="c", partition=1)
    s.produced[7].update(partition=1, offset=0)
    s.read(0, 7, by="drain", partition=1)
    s.drain(*range(7))
    s.end(1, partition=1)


@is_right
def from_hand_to_hand(s: Story) -> None:
    """Records that were not committed before the partition changed hands are delivered again."""
    s.run["groups"] = {"a": "g", "b": "g"}
    acked(s, 6)
    for offset, consumer in ((0, "a"), (1, "a"), (2, "b"), (3, "b"), (3, "a"), (4, "a")):
        s.read(offset, by=consumer, session=int(offset > 2))
    s.drain(*range(6))


@is_right
def aborted_between_two_of_a_group_that_read_committed(s: Story) -> None:
    s.run["groups"] = {"a-rc": "g", "b-rc": "g"}
    s.send(0, 0)
    s.send(1, 1, transaction="x", transaction_outcome="aborted")
    s.send(2, 2)
    s.read(0, by="a-rc")
    s.read(2, by="b-rc")
    s.drain(0, 1, 2)


@is_right
def aborted_between_two_of_a_group_of_which_one_reads_committed(s: Story) -> None:
    s.run["groups"] = {"a-rc": "g", "b": "g"}
    s.send(0, 0)
    s.send(1, 1, transaction="x", transaction_outcome="aborted")
    s.send(2, 2)
    s.read(0, by="a-rc")
    s.read(2, by="b")
    s.drain(0, 1, 2)


@is_right
def two_that_are_no_group_have_nothing_between_them(s: Story) -> None:
    acked(s, 5)
    for offset, consumer in ((0, "a"), (1, "a"), (3, "b"), (4, "b")):
        s.read(offset, by=consumer)
    s.drain(*range(5))


@is_right
def before_the_first_and_after_the_last_is_not_passed_over(s: Story) -> None:
    acked(s, 4)
    s.read(1)
    s.read(2)
    s.drain(0, 1, 2, 3)


@is_right
def what_was_deleted_is_not_passed_over(s: Story) -> None:
    s.run["deleted_below"] = {"t": {"0": 2}}
    acked(s, 3)
    s.read(0)
    s.read(2)
    s.drain(0, 1, 2)


@is_right
def read_committed_need_not_show_aborted_records(s: Story) -> None:
    s.send(0, 0)
    s.send(1, 1, transaction="x", transaction_outcome="aborted")
    s.send(2, 2, transaction="y", transaction_outcome="indeterminate")
    s.send(3, 3)
    s.read(0, by="live-rc")
    s.read(3, by="live-rc")
    s.drain(0, 1, 2, 3)


@shows("invalid", skipped=2)
def read_uncommitted_must_show_aborted_records(s: Story) -> None:
    s.send(0, 0)
    s.send(1, 1, transaction="x", transaction_outcome="aborted")
    s.send(2, 2, transaction="y", transaction_outcome="indeterminate")
    s.send(3, 3)
    s.read(0)
    s.read(3)
    s.drain(0, 1, 2, 3)


@shows("invalid", skipped=1)
def an_indeterminate_transaction_that_was_committed(s: Story) -> None:
    s.send(0, 0)
    s.send(1, 1, transaction="x", transaction_outcome="indeterminate")
    s.send(2, 2)
    s.read(0, by="live-rc")
    s.read(2, by="live-rc")
    s.drain(0, 1, 2, by="drain-rc")


# hidden, held_back


@shows("invalid", hidden=2)
def committed_and_not_shown(s: Story) -> None:
    """The record may be in a transaction or not; a single drain reads with both isolations."""
    for seq in range(4):
        s.send(seq, seq, transaction="x", transaction_outcome="committed")
    s.send(4, 5)
    s.drain(0, 2, 3, by="drain-rc", end=6)
    s.drain(0, 1, 2, 3, 5, end=6)
    s.consumed[-1].update(seq=4, crc32=crc("p", 4))


@shows("invalid", hidden=3)
def a_drain_to_the_end_that_was_handed_nothing(s: Story) -> None:
    for seq in range(3):
        s.send(seq, seq, transaction="x", transaction_outcome="committed")
    s.drain(0, 1, 2, end=4)
    s.drain(by="drain-rc", end=4)


@shows("invalid", hidden=1)
def hidden_from_a_drain_that_noted_nothing(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1, 2)
    s.read(0, by="drain-rc")
    s.read(2, by="drain-rc")


@shows("invalid", hidden=1)
def two_drains_of_one_isolation_that_disagree(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1, 2, by="drain-a")
    s.drain(0, 2, by="drain-b")


@shows("invalid", hidden=1)
def an_indeterminate_transaction_that_another_drain_says_was_committed(s: Story) -> None:
    s.send(0, 0, transaction="x", transaction_outcome="indeterminate")
    s.send(1, 2)
    s.drain(0, by="drain-a-rc", end=3)
    s.read(2, 1, by="drain-a-rc")
    s.drain(by="drain-b-rc", end=3)
    s.read(2, 1, by="drain-b-rc")


@shows("unknown", held_back=1)
def behind_an_open_transaction(s: Story) -> None:
    """Whether the record becomes visible is unknown until the open transaction ends, which may never happen."""
    s.send(0, 0)
    s.send(1, 1, transaction="x", transaction_outcome="indeterminate")
    s.send(2, 2, transaction="y", transaction_outcome="committed")
    s.drain(0, by="drain-rc", end=4, position=1)
    s.drain(0, 1, 2, end=4)


@shows("invalid", hidden=1, held_back=1)
def hidden_before_and_held_back_behind(s: Story) -> None:
    acked(s, 4)
    s.drain(0, by="drain-rc", end=4, position=2)
    s.drain(0, 1, 2, 3)


@shows("unknown", held_back=1)
def a_read_committed_drain_that_noted_nothing_and_stopped(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1, 2)
    s.read(0, by="drain-rc")


@is_right
def what_is_aborted_in_doubt_or_a_marker_is_not_hidden(s: Story) -> None:
    s.send(0, 0, transaction="x", transaction_outcome="aborted")
    s.send(1, 2, transaction="y", transaction_outcome="indeterminate")
    s.send(2, 4)
    s.drain(by="drain-rc", end=5)
    s.read(4, 2, by="drain-rc")
    s.drain(0, end=5)
    s.read(2, 1, by="drain")
    s.read(4, 2, by="drain")


@is_right
def only_what_does_not_count_lies_behind_an_open_transaction(s: Story) -> None:
    acked(s, 1)
    s.send(1, 1, transaction="x", transaction_outcome="indeterminate")
    s.send(2, 2)
    s.produced[2].update(outcome="indeterminate", offset=None)
    s.drain(0, by="drain-rc", end=3, position=1)
    s.drain(0, 1, 2)


@is_right
def one_read_committed_drain_to_the_end_is_enough(s: Story) -> None:
    acked(s, 3)
    s.drain(0, by="drain-a-rc", end=3, position=1)
    s.drain(0, 1, 2, by="drain-b-rc")


@is_right
def a_later_drain_found_more(s: Story) -> None:
    acked(s, 3)
    s.drain(0, 1, by="drain-a", end=2)
    s.drain(0, 1, 2, by="drain-b")


@is_right
def deleted_between_two_drains(s: Story) -> None:
    s.run["deleted_below"] = {"t": {"0": 1}}
    acked(s, 3)
    s.drain(0, 1, 2, by="drain-a")
    s.drain(1, 2, by="drain-b-rc")


@is_right
def compacted_between_two_drains(s: Story) -> None:
    s.run["compacted"] = ["t"]
    s.send(0, 0, key="a")
    s.send(1, 1, key="a")
    s.drain(0, 1, by="drain-a")
    s.drain(1, by="drain-b")


@shows("invalid", hidden=1)
def compaction_may_not_drop_the_last_of_a_key(s: Story) -> None:
    s.run["compacted"] = ["t"]
    s.send(0, 0, key="a")
    s.send(1, 1, key="b")
    s.drain(0, 1, by="drain-a")
    s.drain(1, by="drain-b")


# nonmonotonic_read, redelivered


@shows("invalid", nonmonotonic_read=1)
def the_same_offset_twice_in_a_session(s: Story) -> None:
    acked(s, 2)
    s.read(0)
    s.read(0)
    s.drain(0, 1)


@shows("invalid", nonmonotonic_read=1)
def a_drain_that_went_back(s: Story) -> None:
    acked(s, 2)
    s.read(1, by="drain")
    s.read(0, by="drain")
    s.end(2)


@shows("valid", redelivered=2)
def again_after_a_restart(s: Story) -> None:
    acked(s, 3)
    for offset, session in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1)):
        s.read(offset, session=session)
    s.drain(0, 1, 2)


@is_right
def a_drain_may_read_again(s: Story) -> None:
    acked(s, 2)
    for session in (0, 1):
        for offset in (0, 1):
            s.read(offset, by="drain", session=session)
    s.end(2)


# transactions


@shows("invalid", aborted_read=2)
def aborted_and_shown(s: Story) -> None:
    s.send(0, 0, transaction="x", transaction_outcome="aborted")
    s.read(0, by="live-rc")
    s.drain(0, by="drain-rc")
    s.drain(0, by="drain-all")


@shows("invalid", aborted_read=1)
def shown_before_it_was_aborted(s: Story) -> None:
    """The producer did not learn how the transaction ended; the drains show that it was aborted."""
    s.send(0, 0)
    s.send(1, 1, transaction="x", transaction_outcome="indeterminate")
    for by in ("live-rc", "live"):
        s.read(0, by=by)
        s.read(1, by=by)
    s.drain(0, by="drain-rc", end=2, position=2)
    s.drain(0, 1, by="drain-all")


@is_right
def shown_of_a_transaction_that_was_committed_or_is_open(s: Story) -> None:
    """A transaction that no read_committed drain got past shows nothing."""
    s.send(0, 0, transaction="x", transaction_outcome="indeterminate")
    s.send(1, 1, transaction="y", transaction_outcome="indeterminate")
    s.read(0, by="live-rc")
    s.read(1, by="live-rc")
    s.drain(0, by="drain-rc", end=2, position=1)
    s.drain(0, 1, by="drain-all")


@shows("invalid", partial_transaction=1, lost=1)
def a_record_of_a_committed_transaction_is_lost(s: Story) -> None:
    for seq in range(3):
        s.send(seq, seq, transaction="x", transaction_outcome="committed")
    s.drain(0, 2, by="drain-rc")


@shows("unknown", partial_transaction=1, undrained=1)
def a_record_of_a_committed_transaction_is_undrained(s: Story) -> None:
    for seq in range(3):
        s.send(seq, seq, transaction="x", transaction_outcome="committed")
    s.drain(0, 1, by="drain-rc", end=4, position=2)


@shows("invalid", partial_transaction=1)
def half_of_an_indeterminate_transaction(s: Story) -> None:
    """The records of an indeterminate transaction do not count as written, so none is lost."""
    for seq in range(3):
        s.send(seq, seq, transaction="x", transaction_outcome="indeterminate")
    s.drain(0, 1, by="drain-rc", end=4)
    s.drain(0, 1, 2, by="drain-all", end=4)


@shows("unknown", partial_transaction=1)
def half_of_an_indeterminate_transaction_beyond_the_drain(s: Story) -> None:
    for seq in range(3):
        s.send(seq, seq, transaction="x", transaction_outcome="indeterminate")
    s.drain(0, 1, by="drain-rc", end=4, position=2)
    s.drain(0, 1, 2, by="drain-all", end=4)


@is_right
def an_indeterminate_transaction_all_there(s: Story) -> None:
    s.send(0, 0, transaction="x", transaction_outcome="indeterminate")
    s.send(1, transaction="x", transaction_outcome="indeterminate")
    s.send(2, transaction="x", transaction_outcome="indeterminate", outcome="failed")
    s.drain(0, 1, by="drain-rc", end=3)


@is_right
def an_indeterminate_transaction_that_was_aborted(s: Story) -> None:
    for seq in range(2):
        s.send(seq, seq, transaction="x", transaction_outcome="indeterminate")
    s.drain(0, 1)
    s.end(3, by="drain-rc")


@is_right
def deleted_from_a_transaction(s: Story) -> None:
    s.run["deleted_below"] = {"t": {"0": 1}}
    for seq in range(2):
        s.send(seq, seq, transaction="x", transaction_outcome="committed")
    s.drain(1, by="drain-rc", end=3)


@is_right
def compacted_away_from_a_transaction(s: Story) -> None:
    s.run["compacted"] = ["t"]
    for seq in range(2):
        s.send(seq, seq, key="a", transaction="x", transaction_outcome="indeterminate")
    s.drain(1, by="drain-rc", end=3)


@shows("unknown", partial_transaction=1, undrained=1, redelivered=1)
def unknown_is_no_pass(s: Story) -> None:
    for seq in range(2):
        s.send(seq, seq, transaction="x", transaction_outcome="committed")
    s.read(0)
    s.read(0, session=1)
    s.drain(0, end=3, position=1)


@pytest.mark.parametrize(("name", "tell", "kinds", "word"), RED, ids=[case[0] for case in RED])
def test_shows(name: str, tell: Told, kinds: dict[str, int], word: str, tmp_path: Path) -> None:
    story = Story()
    tell(story)
    verdict = story.judged(tmp_path)
    expected = {kind: count for kind, count in kinds.items() if count or kind == "no_load"}
    assert (anomaly_counts(verdict), verdict.verdict) == (expected, word)


@pytest.mark.parametrize(("name", "tell"), GREEN, ids=[case[0] for case in GREEN])
def test_is_right(name: str, tell: Told, tmp_path: Path) -> None:
    story = Story()
    tell(story)
    verdict = story.judged(tmp_path)
    assert (anomaly_counts(verdict), verdict.verdict, verdict.reasons) == ({}, "valid", ())


def test_every_kind_is_shown() -> None:
    """Each kind has a history here, except the one that no table shows; test_judge_run.py has that one."""
    assert {kind for _, _, kinds, _ in RED for kind in kinds} == set(KINDS) - {"unrecorded"}
