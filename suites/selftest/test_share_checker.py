"""The checker for share groups, with histories of members that should be right, and with some that should fool it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from suites.share.checker import (
    NOT_ANSWERED,
    Acknowledged,
    Delivery,
    Limits,
    SessionEnd,
    ShareHistory,
    anomalies,
    confirmed_within,
    delivered_within,
    exercised,
    late_and_confirmed,
    not_ended,
)

LIMITS = Limits(deliveries=4, lock_s=2.0)
REFUSED = "INVALID_RECORD_STATE"


class Told:
    """A history that is made step by step; each step takes a tenth of a second."""

    def __init__(self) -> None:
        self.history = ShareHistory()
        self.at = 100.0

    def passes(self, seconds: float) -> None:
        """Let so much time pass."""
        self.at += seconds

    def delivered(
        self, count: int, *, to: str = "a", offset: int = 0, epoch: int = 0, value: bytes | None = b"0"
    ) -> Delivery:
        """A delivery."""
        each = Delivery(
            member=to, offset=offset, epoch=epoch, count=count, value=value, asked_at=self.at, at=self.at + 0.1
        )
        self.history.deliveries.append(each)
        self.at += 0.1
        return each

    def answered(self, delivery: Delivery, how: str, error: str | None = None) -> Acknowledged:
        """An acknowledgement."""
        each = Acknowledged(
            delivery=delivery,
            how=how,  # type: ignore[arg-type]
            error=error,
            asked_at=self.at,
            at=self.at + 0.1,
        )
        self.history.acknowledged.append(each)
        self.at += 0.1
        return each

    def session_ends(self, member: str, *, unseen: bool = False) -> None:
        """The end of a member's session."""
        self.history.ends.append(SessionEnd(member=member, asked_at=self.at, at=self.at + 0.1, unseen=unseen))
        self.at += 0.1

    def kinds(self, records: int = 1) -> list[str]:
        """The kinds of anomalies, where the log has so many records."""
        return [each.kind for each in anomalies(self.history, {at: b"%d" % at for at in range(records)}, LIMITS)]


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_history_as_promised(told: Told) -> None:
    """Records that are accepted, rejected, released, left, and released until the limit, with a failover between."""
    told.answered(told.delivered(1, offset=0, value=b"0"), "ACCEPT")
    told.answered(told.delivered(1, offset=1, value=b"1"), "REJECT")
    told.answered(told.delivered(1, offset=2, value=b"2"), "RELEASE")
    told.answered(told.delivered(2, offset=2, to="b", value=b"2"), "ACCEPT")
    left = told.delivered(1, offset=3, value=b"3")
    told.passes(LIMITS.lock_s)
    again = told.delivered(2, offset=3, to="b", value=b"3")
    told.answered(left, "ACCEPT", REFUSED)
    told.answered(again, "ACCEPT")
    told.answered(told.delivered(1, offset=4, value=b"4"), "RELEASE")
    told.answered(told.delivered(2, offset=4, value=b"4"), "RELEASE")
    told.delivered(3, offset=4, value=b"4")
    told.answered(told.delivered(3, offset=4, epoch=1, to="b", value=b"4"), "RELEASE")
    told.answered(told.delivered(4, offset=4, epoch=1, value=b"4"), "RELEASE")
    assert told.kinds(5) == []
    seen = exercised(told.history, LIMITS)
    assert (seen.accepted, seen.rejected, seen.refused, seen.ran_out, seen.at_limit) == (3, 1, 1, 1, 1)
    assert (seen.released, seen.taken_over, seen.deliveries) == (4, 1, 11)
    assert seen.missing("taken_over") == []


@pytest.mark.parametrize("epoch", [0, 1], ids=["same-leader", "next-leader"])
@pytest.mark.parametrize("how", ["ACCEPT", "REJECT"])
def test_again_after_its_end(told: Told, how: str, epoch: int) -> None:
    """Also where the next leader counts from one, as for a record that it never saw."""
    told.answered(told.delivered(1), how)
    told.passes(LIMITS.lock_s)
    told.delivered(1 if epoch else 2, to="b", epoch=epoch)
    assert told.kinds() == ["after its end"]


def test_confirmed_though_another_member_already_had_it(told: Told) -> None:
    """The acknowledgement was confirmed later than the other member got the record."""
    first = told.delivered(1)
    told.passes(LIMITS.lock_s)
    told.delivered(2, to="b")
    told.answered(first, "ACCEPT")
    assert told.kinds() == ["after its end"]


def test_again_after_an_acknowledgement_that_was_not_confirmed(told: Told) -> None:
    """Its outcome is open: both are right."""
    told.answered(told.delivered(1), "ACCEPT", NOT_ANSWERED)
    assert told.kinds() == []
    told.passes(LIMITS.lock_s)
    told.answered(told.delivered(2, to="b"), "ACCEPT", "COORDINATOR_NOT_AVAILABLE")
    assert told.kinds() == []


def test_never_delivered(told: Told) -> None:
    """No member got the second record."""
    told.answered(told.delivered(1), "ACCEPT")
    assert told.kinds(2) == ["not delivered"]


@pytest.mark.parametrize("how", ["ACCEPT", "REJECT", "RELEASE"])
def test_never_again_though_it_has_not_ended(told: Told, how: str) -> None:
    """A refused acknowledgement ends nothing, and a release does not either."""
    each = told.delivered(1)
    if how != "RELEASE":
        told.passes(LIMITS.lock_s)
    told.answered(each, how, None if how == "RELEASE" else REFUSED)
    assert told.kinds() == ["not ended"]
    assert not_ended(told.history, [0], LIMITS) == [0]


def test_ended_before_the_limit(told: Told) -> None:
    """It was delivered one time less than the limit says, and then no more."""
    for count in range(1, LIMITS.deliveries):
        told.answered(told.delivered(count), "RELEASE")
    assert told.kinds() == ["not ended"]
    told.session_ends("a", unseen=True)
    assert told.kinds() == [], "the last delivery may be the one that was not seen"


def test_an_unseen_fetch_before_the_last_delivery_is_no_last_delivery(told: Told) -> None:
    told.session_ends("a", unseen=True)
    told.passes(1)
    told.answered(told.delivered(1), "RELEASE")
    told.answered(told.delivered(2), "RELEASE")
    told.answered(told.delivered(3), "RELEASE")
    assert told.kinds() == ["not ended"]


def test_more_deliveries_than_the_limit(told: Told) -> None:
    for count in range(1, LIMITS.deliveries + 2):
        told.answered(told.delivered(count), "RELEASE")
    assert told.kinds() == ["over the limit"]


@pytest.mark.parametrize("second", [1, 3], ids=["not-counted", "counted-twice"])
def test_wrong_count(told: Told, second: int) -> None:
    told.answered(told.delivered(1), "RELEASE")
    told.answered(told.delivered(second, to="b"), "ACCEPT")
    assert "wrong count" in told.kinds()


def test_first_delivery_counts_one(told: Told) -> None:
    told.answered(told.delivered(2), "ACCEPT")
    assert told.kinds() == ["wrong count"]


def test_a_fetch_without_an_answer_may_have_counted(told: Told) -> None:
    """One more, and not two."""
    told.answered(told.delivered(1), "RELEASE")
    told.session_ends("b", unseen=True)
    told.answered(told.delivered(3), "RELEASE")
    assert told.kinds() == ["not ended"]
    told.answered(told.delivered(5), "ACCEPT")
    assert told.kinds() == ["wrong count"]


def test_the_next_leader_knows_confirmed_releases(told: Told) -> None:
    """It need not know of later deliveries, but must count more than the last confirmed release."""
    told.answered(told.delivered(1), "RELEASE")
    told.answered(told.delivered(2), "RELEASE")
    told.delivered(3)
    told.answered(told.delivered(3, to="b", epoch=1), "ACCEPT")
    assert told.kinds() == []
    told.history.deliveries[-1] = told.delivered(2, to="b", epoch=1)
    assert "wrong count" in told.kinds()


def test_the_next_leader_need_not_know_a_release_that_was_not_confirmed(told: Told) -> None:
    told.answered(told.delivered(1), "RELEASE", NOT_ANSWERED)
    told.answered(told.delivered(1, to="b", epoch=1), "ACCEPT")
    assert told.kinds() == []


def test_the_next_leader_counts_no_delivery_that_no_member_saw(told: Told) -> None:
    told.delivered(1)
    told.answered(told.delivered(3, to="b", epoch=1), "ACCEPT")
    assert told.kinds() == ["wrong count"]


def test_taken_early(told: Told) -> None:
    """Two members have a record at the same time."""
    told.delivered(1)
    told.answered(told.delivered(2, to="b"), "ACCEPT")
    assert told.kinds() == ["taken early"]


def test_a_refused_release_frees_no_record(told: Told) -> None:
    told.answered(told.delivered(1), "RELEASE", "SHARE_SESSION_NOT_FOUND")
    told.answered(told.delivered(2, to="b"), "ACCEPT")
    assert told.kinds() == ["taken early"]


def test_the_end_of_another_members_session_frees_no_record(told: Told) -> None:
    told.delivered(1)
    told.session_ends("c")
    told.answered(told.delivered(2, to="b"), "ACCEPT")
    assert told.kinds() == ["taken early"]


@pytest.mark.parametrize("excuse", ["release", "open-release", "session-ends", "unseen", "lock", "next-leader"])
def test_taken_as_promised(told: Told, excuse: str) -> None:
    first = told.delivered(1)
    match excuse:
        case "release" | "open-release":
            told.answered(first, "RELEASE", NOT_ANSWERED if excuse == "open-release" else None)
        case "session-ends":
            told.session_ends("a")
        case "unseen":
            told.session_ends("c", unseen=True)
        case "lock":
            told.passes(LIMITS.lock_s)
    told.answered(told.delivered(2, to="b", epoch=int(excuse == "next-leader")), "ACCEPT")
    assert told.kinds() == []


def test_release_confirmed_after_another_member_got_the_record(told: Told) -> None:
    first = told.delivered(1)
    told.passes(LIMITS.lock_s)
    second = told.delivered(2, to="b")
    told.answered(first, "RELEASE")
    told.answered(second, "ACCEPT")
    assert told.kinds() == ["held by another"]


@pytest.mark.parametrize("how", ["ACCEPT", "REJECT", "RELEASE"])
def test_confirmed_after_another_member_ended_the_record(told: Told, how: str) -> None:
    """It is found apart, and counts as no end: the checker still sees what is wrong with the later deliveries."""
    first = told.delivered(1)
    told.passes(LIMITS.lock_s)
    second = told.delivered(2, to="b")
    told.answered(second, "ACCEPT")
    late = told.answered(first, how)
    assert late_and_confirmed(told.history, LIMITS) == {late}
    assert late not in confirmed_within(told.history, [(0.0, 999.0)], LIMITS)
    assert told.kinds() == []
    told.delivered(3, to="b")
    assert told.kinds() == ["after its end", "taken early"], "not after the late one"


def test_confirmed_before_another_member_got_the_record_is_not_late(told: Told) -> None:
    told.answered(told.delivered(1), "ACCEPT")
    told.answered(told.delivered(2, to="b"), "ACCEPT")
    assert late_and_confirmed(told.history, LIMITS) == set()
    assert "after its end" in told.kinds()


def test_confirmed_after_the_last_delivery_to_another_member(told: Told) -> None:
    first = told.delivered(1)
    for count in range(2, LIMITS.deliveries + 1):
        told.passes(LIMITS.lock_s)
        last = told.delivered(count, to="b")
    told.answered(last, "RELEASE")
    late = told.answered(first, "ACCEPT")
    assert late_and_confirmed(told.history, LIMITS) == {late}
    assert told.kinds() == []


def test_refused_while_the_lock_lasts(told: Told) -> None:
    told.answered(told.delivered(1), "ACCEPT", REFUSED)
    told.answered(told.delivered(2), "ACCEPT")
    assert "refused early" in told.kinds()


def test_refused_after_the_end_of_the_session(told: Told) -> None:
    first = told.delivered(1)
    told.session_ends("a")
    told.answered(first, "ACCEPT", REFUSED)
    told.answered(told.delivered(2, to="b"), "ACCEPT")
    assert told.kinds() == []


@pytest.mark.parametrize(
    ("offset", "value", "kind"),
    [(0, b"other", "other record"), (0, None, "other record"), (7, b"7", "no record")],
    ids=["another", "without-it", "no-such"],
)
def test_a_record_that_is_not_in_the_log(told: Told, offset: int, value: bytes | None, kind: str) -> None:
    told.answered(told.delivered(1, offset=offset, value=value), "ACCEPT")
    if offset:
        told.answered(told.delivered(1), "ACCEPT")
    assert told.kinds() == [kind]


@pytest.mark.parametrize(
    ("span", "found"), [((99.0, 101.0), 1), ((100.15, 101.0), 0), ((99.0, 100.15), 0), ((102.0, 103.0), 0)]
)
def test_confirmed_and_delivered_while_followers_were_held(told: Told, span: tuple[float, float], found: int) -> None:
    """Only what was sent, or written, and answered within the time counts."""
    each = told.delivered(1)
    told.answered(each, "ACCEPT")
    told.answered(each, "ACCEPT", NOT_ANSWERED)
    assert len(confirmed_within(told.history, [span], LIMITS)) == found
    written: Sequence[tuple[bytes, float]] = [(b"0", 100.1)]
    told.history.deliveries[:] = [told.delivered(1)]
    assert len(delivered_within(told.history, dict(written), [span])) == int(span == (99.0, 101.0))


def test_nothing_put_to_the_test() -> None:
    assert exercised(ShareHistory(), LIMITS).missing("taken_over") == [
        "released",
        "ran_out",
        "rejected",
        "at_limit",
        "late",
        "taken_over",
    ]
