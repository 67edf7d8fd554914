"""Checks what members of a share group saw of one partition, against the promises of KIP-932. It knows no cluster.

What is promised of each record:

* **At least once.** It is delivered again and again, until a member accepts or rejects it, or until the number of
  deliveries reaches the limit (``group.share.delivery.count.limit``).
* **Once it has ended, never again.** The broker confirms an acknowledgement when the coordinator's followers have it.
* **One member at a time.** A member has the record alone until it releases it, its session ends, or the lock runs out.
* **Delivery counts.** Each delivery counts one more than the one before. A leader keeps these counts in its memory: "in
  the unlikely event of a share-partition leader crash, memory of the in-flight delivery will be lost". So the next
  leader may count from the last one in the coordinator's log. A confirmed release is in that log.

The deliveries of a record have an order that needs no clock: that of leader epoch and delivery count. A leader with an
older epoch can no longer write to the coordinator's log (FENCED_LEADER_EPOCH).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from harness.kafka.share_group import Acknowledgement

_TERMINAL: tuple[Acknowledgement, ...] = ("ACCEPT", "REJECT")
NOT_ANSWERED = "not answered"
"""Stands for the error of an acknowledgement without an answer."""
_NOT_HELD = "INVALID_RECORD_STATE"
_WITHOUT_EFFECT = (_NOT_HELD, "INVALID_SHARE_SESSION_EPOCH", "SHARE_SESSION_NOT_FOUND")
"""Errors of an acknowledgement that had no effect. After any other, it may be in the coordinator's log."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A record that a member acquired.

    :ivar epoch: the leader epoch of the broker that delivered it
    :ivar count: the delivery count
    :ivar value: the record's value; None if the broker did not send it
    :ivar asked_at: when the member asked, in seconds since 1970; the broker delivered it between this and ``at``
    """

    member: str
    offset: int
    epoch: int
    count: int
    value: bytes | None
    asked_at: float
    at: float

    @property
    def order(self) -> tuple[int, int]:
        """Its place among the deliveries of this record."""
        return self.epoch, self.count

    def __str__(self) -> str:
        return f"delivery {self.count} of offset {self.offset} to {self.member} (leader epoch {self.epoch})"


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """An acknowledgement of a delivery.

    :ivar error: the broker's error, or :data:`NOT_ANSWERED`; None: it is confirmed
    """

    delivery: Delivery
    how: Acknowledgement
    error: str | None
    asked_at: float
    at: float

    @property
    def may_have_effect(self) -> bool:
        """Whether it was confirmed, or its outcome is open."""
        return self.error not in _WITHOUT_EFFECT


@dataclass(frozen=True, kw_only=True)
class SessionEnd:
    """The end of a member's share session: the broker releases what the member held.

    :ivar unseen: whether the member's last fetch has no answer; it may have acquired records
    """

    member: str
    asked_at: float
    at: float
    unseen: bool


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The settings of a share group.

    :ivar deliveries: ``group.share.delivery.count.limit``
    :ivar lock_s: ``group.share.record.lock.duration.ms``, in seconds
    """

    deliveries: int
    lock_s: float


@dataclass(kw_only=True)
class ShareHistory:
    """All that the members of a share group saw of one partition."""

    deliveries: list[Delivery] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    ends: list[SessionEnd] = field(default_factory=list)

    def of_records(self) -> dict[int, list[Delivery]]:
        """The deliveries of each offset, in their order."""
        found: dict[int, list[Delivery]] = defaultdict(list)
        for each in self.deliveries:
            found[each.offset].append(each)
        return {offset: sorted(each, key=lambda delivery: delivery.order) for offset, each in found.items()}

    def answers(self) -> dict[int, list[Acknowledged]]:
        """The acknowledgements of each offset."""
        found: dict[int, list[Acknowledged]] = defaultdict(list)
        for each in self.acknowledged:
            found[each.delivery.offset].append(each)
        return found

    def unseen(self, since: float, until: float) -> int:
        """How many fetches without an answer may have acquired records in this time."""
        return sum(end.unseen and end.asked_at < until and end.at > since for end in self.ends)


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """A promise that was broken for one record."""

    kind: str
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def anomalies(history: ShareHistory, log: Mapping[int, bytes], limits: Limits) -> list[Anomaly]:
    """All promises that were broken, except by what :func:`late_and_confirmed` finds.

    :param history: until every record should have ended
    :param log: the value of each record in the partition's log, by offset
    """
    late = late_and_confirmed(history, limits)
    history = replace(history, acknowledged=[each for each in history.acknowledged if each not in late])
    return [
        *_other_records(history, log),
        *_not_ended(history, log, limits),
        *_after_the_end(history),
        *_held_by_another(history),
        *_taken_early(history, limits),
        *_refused_early(history, limits),
        *_wrong_counts(history, limits),
    ]


def late_and_confirmed(history: ShareHistory, limits: Limits) -> set[Acknowledged]:
    """The acknowledgements that were confirmed though the record had ended by then, with a later delivery.

    "If a record had reached its acquisition lock timeout and reverted to Available state, the attempt to acknowledge it
    will fail with InvalidRecordStateException" (KIP-932).
    """
    answers, deliveries = history.answers(), history.of_records()

    def ended_before(late: Acknowledged) -> bool:
        of_record = deliveries[late.delivery.offset]
        again = [each for each in of_record if each.order > late.delivery.order and each.at <= late.asked_at]
        return bool(again) and (
            again[-1].count >= limits.deliveries
            or any(
                each.how in _TERMINAL and each.may_have_effect and each.delivery in again and each.asked_at < late.at
                for each in answers[late.delivery.offset]
            )
        )

    return {each for each in history.acknowledged if each.error is None and ended_before(each)}


def not_ended(history: ShareHistory, offsets: Collection[int], limits: Limits) -> list[int]:
    """The offsets of the records that were neither accepted nor rejected, nor delivered as often as the limit says.

    A fetch without an answer may have been the last delivery.
    """
    answers, deliveries = history.answers(), history.of_records()

    def has_ended(offset: int) -> bool:
        if any(each.how in _TERMINAL and each.may_have_effect for each in answers.get(offset, ())):
            return True
        last = max(deliveries.get(offset, ()), key=lambda each: each.count, default=None)
        return last is not None and last.count + history.unseen(last.asked_at, math.inf) >= limits.deliveries

    return [offset for offset in offsets if not has_ended(offset)]


def _not_ended(history: ShareHistory, log: Mapping[int, bytes], limits: Limits) -> Iterator[Anomaly]:
    """Each record is delivered until it ends."""
    deliveries = history.of_records()
    for offset in not_ended(history, log, limits):
        if offset not in deliveries:
            yield Anomaly(kind="not delivered", offset=offset, text=f"no member got offset {offset}")
        else:
            last = deliveries[offset][-1]
            yield Anomaly(kind="not ended", offset=offset, text=f"nothing came after {last}")


def _other_records(history: ShareHistory, log: Mapping[int, bytes]) -> Iterator[Anomaly]:
    """A member gets the record that is in the log; one above the high watermark may have been replaced since."""
    for each in history.deliveries:
        if each.offset not in log:
            yield Anomaly(kind="no record", offset=each.offset, text=f"{each}: the log has no such record")
        elif each.value != log[each.offset]:
            text = f"{each} has the value {each.value!r}, and the log {log[each.offset]!r}"
            yield Anomaly(kind="other record", offset=each.offset, text=text)


def _after_the_end(history: ShareHistory) -> Iterator[Anomaly]:
    """No record is delivered again once it was accepted or rejected."""
    deliveries = history.of_records()
    for end in history.acknowledged:
        if end.how in _TERMINAL and end.error is None:
            offset = end.delivery.offset
            for each in deliveries[offset]:
                if each.order > end.delivery.order:
                    text = f"{each}, though {end.how} of {end.delivery} was confirmed"
                    yield Anomaly(kind="after its end", offset=offset, text=text)


def _held_by_another(history: ShareHistory) -> Iterator[Anomaly]:
    """No release is confirmed of a record that was delivered again before the member sent it.

    For the other acknowledgements, :func:`_after_the_end` shows the same.
    """
    deliveries = history.of_records()
    for each in history.acknowledged:
        if each.how == "RELEASE" and each.error is None:
            for later in deliveries[each.delivery.offset]:
                if later.order > each.delivery.order and later.at <= each.asked_at:
                    text = f"RELEASE of {each.delivery} was confirmed after {later}"
                    yield Anomaly(kind="held by another", offset=later.offset, text=text)


def _taken_early(history: ShareHistory, limits: Limits) -> Iterator[Anomaly]:
    """A member has a record alone until it releases it, its session ends, or its lock runs out.

    A new leader knows of no locks.
    """
    answers = history.answers()
    for offset, deliveries in history.of_records().items():
        for held, taken in pairwise(deliveries):
            if held.epoch != taken.epoch or taken.at >= held.asked_at + limits.lock_s:
                continue
            released = any(
                each.delivery == held and each.how == "RELEASE" and each.may_have_effect and each.asked_at <= taken.at
                for each in answers.get(offset, ())
            )
            ended = any(
                end.member == held.member and end.asked_at <= taken.at and end.at >= held.asked_at
                for end in history.ends
            )
            if not released and not ended and not history.unseen(held.asked_at, taken.at):
                text = f"{taken} came {taken.at - held.asked_at:.3f} s after {held} was asked for"
                yield Anomaly(kind="taken early", offset=offset, text=text)


def _refused_early(history: ShareHistory, limits: Limits) -> Iterator[Anomaly]:
    """While the lock lasts and its session goes on, a member may acknowledge what it holds."""
    for each in history.acknowledged:
        held = each.delivery
        if each.error != _NOT_HELD or each.at >= held.asked_at + limits.lock_s:
            continue
        if not any(end.member == held.member and held.asked_at <= end.at <= each.at for end in history.ends):
            text = f"{each.how} of {held} was refused {each.at - held.asked_at:.3f} s after it was asked for"
            yield Anomaly(kind="refused early", offset=held.offset, text=text)


def _wrong_counts(history: ShareHistory, limits: Limits) -> Iterator[Anomaly]:
    """Each delivery counts one more than the last; with a new leader, more than the last confirmed release."""
    answers = history.answers()
    for offset, deliveries in history.of_records().items():
        for number, each in enumerate(deliveries):
            before = deliveries[:number]
            same = bool(before) and before[-1].epoch == each.epoch
            last = before[-1] if same else max(before, key=lambda delivery: delivery.count, default=None)
            released = [
                answer.delivery.count
                for answer in answers.get(offset, ())
                if answer.how == "RELEASE" and answer.error is None and answer.delivery.order < each.order
            ]
            known = last.count if last else 0
            least = known if same else max(released, default=0)
            most = known + history.unseen(last.asked_at if last else -math.inf, each.at)
            if not least < each.count <= most + 1:
                wanted = f"{least + 1}" if least == most else f"{least + 1} to {most + 1}"
                yield Anomaly(kind="wrong count", offset=offset, text=f"{each}: its count should be {wanted}")
            elif each.count > limits.deliveries:
                yield Anomaly(
                    kind="over the limit", offset=offset, text=f"{each}: the limit is {limits.deliveries} deliveries"
                )


Span = tuple[float, float]
"""A time, from its first to its last second since 1970."""


def confirmed_within(history: ShareHistory, spans: Sequence[Span], limits: Limits) -> list[Acknowledged]:
    """The acknowledgements that were sent and confirmed within one of these times, except those without an effect.

    Followers of the coordinator's log were held meanwhile, so nothing may have been confirmed.
    """
    late = late_and_confirmed(history, limits)
    return [
        each
        for each in history.acknowledged
        if each.error is None
        and each not in late
        and any(begin < each.asked_at and each.at < end for begin, end in spans)
    ]


def delivered_within(history: ShareHistory, written_at: Mapping[bytes, float], spans: Sequence[Span]) -> list[Delivery]:
    """The deliveries of records that were written and delivered within one of these times.

    Followers of the partition were held meanwhile, so they lacked these records.

    :param written_at: when each value was given to the producer
    """
    return [
        each
        for each in history.deliveries
        if each.value is not None
        and any(begin < written_at.get(each.value, begin) and each.at < end for begin, end in spans)
    ]


@dataclass(frozen=True, kw_only=True)
class Exercised:
    """How often each promise was put to the test.

    :ivar released: records that came again after their release was confirmed
    :ivar ran_out: records that came again, though nothing released them and no session ended: their locks ran out
    :ivar rejected: records whose rejection was confirmed
    :ivar at_limit: records that were delivered as often as the limit says, and not accepted
    :ivar late: acknowledgements after the lock had run out, whatever became of them
    :ivar refused: acknowledgements that were refused, since the member no longer held the record
    :ivar taken_over: records that the next leader delivered again, since they were not acknowledged when it took over
    :ivar unconfirmed: acknowledgements with other errors, by error
    """

    deliveries: int
    accepted: int
    released: int
    ran_out: int
    rejected: int
    at_limit: int
    late: int
    refused: int
    taken_over: int
    unconfirmed: Mapping[str, int]

    def missing(self, *also: str) -> list[str]:
        """What was never put to the test."""
        names = ("released", "ran_out", "rejected", "at_limit", "late", *also)
        return [name for name in names if not getattr(self, name)]


def exercised(history: ShareHistory, limits: Limits) -> Exercised:
    """Count how often each promise was put to the test."""
    deliveries, late = history.of_records(), late_and_confirmed(history, limits)
    confirmed = [each for each in history.acknowledged if each.error is None and each not in late]
    again = [(held, taken) for each in deliveries.values() for held, taken in pairwise(each)]
    tried_to_release = {each.delivery for each in history.acknowledged if each.how == "RELEASE"}
    released = {each.delivery for each in confirmed if each.how == "RELEASE"}
    accepted = {each.delivery.offset for each in confirmed if each.how == "ACCEPT"}
    ends = defaultdict(list)
    for end in history.ends:
        ends[end.member].append(end)
    return Exercised(
        deliveries=len(history.deliveries),
        accepted=len(accepted),
        released=sum(held in released for held, _ in again),
        ran_out=sum(
            held.epoch == taken.epoch
            and held not in tried_to_release
            and not any(held.asked_at <= end.at and end.asked_at <= taken.at for end in ends[held.member])
            for held, taken in again
        ),
        rejected=len({each.delivery.offset for each in confirmed if each.how == "REJECT"}),
        at_limit=sum(
            each[-1].count >= limits.deliveries and offset not in accepted for offset, each in deliveries.items()
        ),
        late=sum(each.asked_at > each.delivery.at + limits.lock_s for each in history.acknowledged),
        refused=sum(each.error == _NOT_HELD for each in history.acknowledged),
        taken_over=sum(held.epoch != taken.epoch and held not in released for held, taken in again),
        unconfirmed=dict(Counter(each.error for each in history.acknowledged if each.error not in (None, _NOT_HELD))),
    )
