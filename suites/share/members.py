"""Members of a share group that work through one partition, each in a thread, and note all that they see.

What a member does with a record depends on its offset alone, so that each run releases, rejects and leaves some:

* Of each eight records, one is released when it is first delivered, one is rejected, and one is left until its lock has
  run out. Then the member acknowledges it after all, and must be refused.
* Of each 32, one is released each time, until the limit of deliveries is reached.
* All others are accepted, also those that come again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from harness import timeouts
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition
from harness.errors import AwaitTimeout, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import Connection, NoAnswer
from harness.kafka.share_group import Acknowledgement, ShareSession, heartbeat
from harness.waiting import await_until
from suites.background import in_background
from suites.share.checker import NOT_ANSWERED, Acknowledged, Delivery, Limits, SessionEnd, ShareHistory, not_ended

LIMITS = Limits(deliveries=8, lock_s=2.0)
SETTINGS = {
    "group.share.delivery.count.limit": str(LIMITS.deliveries),
    # Kafka's least. By default a record stays locked for 30 s.
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": f"{LIMITS.lock_s * 1000:.0f}",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "3",
    # 500 by default: the state is read from many snapshots, each with some updates.
    "share.coordinator.snapshot.update.records.per.snapshot": "10",
}
"""The settings of brokers for these limits, and for a coordinator's log of one partition."""

_HEARTBEAT_S = 2.0
_FETCH_S = 0.2
_EVERY_S = 0.02
_RETRY_S = 0.2
_LATE_S = 1.0
"""How long after its lock should have run out a record is acknowledged, which a broker may notice late."""
_UNAVAILABLE = (NoAnswer, Refused, AwaitTimeout, KeyError)
"""A partition or a coordinator has no leader that answers; KeyError: a broker that has just started knows neither."""


def way(offset: int, *, first: bool) -> Acknowledgement | None:
    """How a member acknowledges a record.

    :param first: it is the first delivery of the record
    :returns: None: it leaves the record
    """
    if offset % 32 == 3:
        return "RELEASE"
    if offset % 8 == 2:
        return "REJECT"
    if first and offset % 8 == 4:
        return "RELEASE"
    if first and offset % 8 == 6:
        return None
    return "ACCEPT"


class ShareGroup:
    """A share group, and the partition that its members work through.

    :param log: the partition of ``__consumer_offsets`` whose leader is the coordinator of the group's members
    :ivar history: all that the members saw
    :ivar refusals: how often brokers refused or did not answer, by request and error; not of acknowledgements
    """

    def __init__(self, name: str, subject: Partition, log: Partition) -> None:
        self.name = name
        self.subject = subject
        self.log = log
        self.topic_id = subject.describe().topic_id
        self.history = ShareHistory()
        self.refusals: Counter[str] = Counter()
        self._errors: list[Exception] = []

    @contextmanager
    def working(self, *beside: Callable[[], object]) -> Iterator[list[Member]]:
        """Inside the block, three members work in threads; yields them once each has joined and asked for records.

        The group begins at the end of the partition, which must be empty. The first member acquires whole batches, the
        others no more records than they ask for.

        :param beside: steps that are run again and again, too, each in a thread
        :raises PromiseBroken: the group does not assign the partition to a member
        """
        members = [Member(self, f"m{number}", most=10 + 5 * number, exactly=number > 0) for number in range(3)]
        for member in members:
            member.join()
        try:
            with in_background(*(member.work for member in members), *beside, every_s=_EVERY_S) as self._errors:
                yield members
        finally:
            for member in members:
                member.close()
        self.check()

    def check(self) -> None:
        """Raise the error of the first step that failed, if any did."""
        if self._errors:
            raise self._errors[0]

    def await_ended(self, end: int) -> None:
        """Wait until all records below this offset have ended.

        :raises PromiseBroken: some do not
        """
        own_part = OwnPart(self.subject.cluster, "serve share groups", needs_all=False)
        began = time.monotonic()
        await_until(
            lambda: not_ended(self.history, range(end), LIMITS),
            lambda left: not left,
            timeout_s=timeouts.PROGRESS_S,
            poll_s=0.2,
            watch=self.check,
            what=f"the members of {self.name} to get through all records of {self.subject} below offset {end}",
            failure=own_part.unserved,
            hint=lambda: f"refused: {dict(self.refusals)}",
        )
        self.subject.cluster.journal.write(
            "share.ended", group=self.name, below=end, after_s=round(time.monotonic() - began, 3)
        )


class Member:
    """A member of a share group, with a share session with the leader of the group's partition.

    :param most: how many records it acquires at once
    :param exactly: not one more, to the end of a batch
    """

    def __init__(self, group: ShareGroup, name: str, *, most: int, exactly: bool = True) -> None:
        self.name = name
        self._group = group
        self._most, self._exactly = most, exactly
        self._member_epoch = 0
        self._assigned = False
        self._crashes = threading.Event()
        self._coordinators: dict[int, Connection] = {}
        self._heartbeat_due = self._retry_at = 0.0
        self._session: ShareSession | None = None
        self._epoch = -1
        self._left: list[Delivery] = []
        self._latest: dict[int, Delivery] = {}

    def join(self) -> None:
        """Join the group, and wait until the partition is assigned and its leader has opened a session.

        :raises PromiseBroken: the group does not assign it
        """

        def joined() -> bool:
            self._send_heartbeat()
            if self._assigned:
                self.acquire()
            return self._session is not None

        await_until(
            joined,
            timeout_s=timeouts.PROGRESS_S,
            poll_s=0.1,
            what=f"the share group {self._group.name} to let {self.name} acquire from {self._group.subject}",
            retry_on=_UNAVAILABLE,
            failure=PromiseBroken,
            hint=lambda: f"refused: {dict(self._group.refusals)}",
        )

    def work(self) -> None:
        """Send a heartbeat if it is due, acquire some records, and acknowledge them."""
        if time.monotonic() >= self._heartbeat_due:
            self._heartbeat_due = time.monotonic() + _HEARTBEAT_S
            try:
                self._send_heartbeat()
            except _UNAVAILABLE as error:
                self._note("heartbeat", error)
                if isinstance(error, Refused) and error.error in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"):
                    self._member_epoch = 0
        acquired = self.acquire()
        if acquired and self._crashes.is_set():
            self._crash()
            return
        ways = {each: way(each.offset, first=each.count == 1) for each in acquired}
        self._left += [each for each, how in ways.items() if how is None]
        self.acknowledge({each: how for each, how in ways.items() if how is not None})
        self._acknowledge_late()

    def acquire(self) -> list[Delivery]:
        """Acquire records, and note them; none if the partition has no leader that gives some."""
        if time.monotonic() < self._retry_at:
            return []
        asked_at = time.time()
        try:
            acquired = self._opened().acquire(self._most, exactly=self._exactly, wait_s=_FETCH_S)
        except _UNAVAILABLE as error:
            self._note("fetch", error)
            self._end_session(asked_at, unseen=isinstance(error, NoAnswer) and not _was_refused(error))
            return []
        at = time.time()
        deliveries = [
            Delivery(
                member=self.name,
                offset=each.offset,
                epoch=self._epoch,
                count=each.count,
                value=each.value,
                asked_at=asked_at,
                at=at,
            )
            for each in acquired
        ]
        self._group.history.deliveries += deliveries
        self._latest |= {each.offset: each for each in deliveries}
        return deliveries

    def acknowledge(self, ways: Mapping[Delivery, Acknowledgement]) -> None:
        """Acknowledge deliveries, and note what became of it. Without the session in which they came, do nothing."""
        if not ways or self._session is None:
            return
        asked_at, outcome = time.time(), None
        try:
            self._session.acknowledge({each.offset: how for each, how in ways.items()})
        except (NoAnswer, Refused) as error:
            outcome = error.error if isinstance(error, Refused) else NOT_ANSWERED
        at = time.time()
        self._group.history.acknowledged += [
            Acknowledged(delivery=each, how=how, error=outcome, asked_at=asked_at, at=at) for each, how in ways.items()
        ]
        if outcome not in (None, "INVALID_RECORD_STATE"):
            self._end_session(asked_at)

    def _acknowledge_late(self) -> None:
        """Accept the records that were left, one by one, once their locks should have run out.

        A record that this member got again is not acknowledged for the delivery before.
        """
        due = time.time() - LIMITS.lock_s - _LATE_S
        late = [each for each in self._left if each.at <= due]
        self._left = [each for each in self._left if each.at > due]
        for each in late:
            if self._latest[each.offset] is each:
                self.acknowledge({each: "ACCEPT"})

    def _opened(self) -> ShareSession:
        """The session with the present leader; opens one if there is none."""
        if self._session is None:
            subject = self._group.subject
            state = subject.describe()
            leader = subject.cluster.broker(state.leader) if state.leader is not None else subject.leader()
            self._epoch = state.leader_epoch
            self._session = ShareSession(
                subject.cluster.distribution,
                leader.new_connection(),
                self._group.name,
                self.name,
                self._group.topic_id,
                subject.index,
            )
        return self._session

    def _end_session(self, asked_at: float, *, unseen: bool = False) -> None:
        self._retry_at = time.monotonic() + _RETRY_S
        self._left.clear()
        if self._session is not None:
            self._session.close()
            self._session = None
            end = SessionEnd(member=self.name, asked_at=asked_at, at=time.time(), unseen=unseen)
            self._group.history.ends.append(end)

    def _send_heartbeat(self) -> None:
        group = self._group
        coordinator = group.log.leader()
        connection = self._coordinators.setdefault(coordinator.id, coordinator.new_connection())
        build = group.subject.cluster.distribution
        answer = heartbeat(build, connection, group.name, self.name, group.subject.topic, self._member_epoch)
        self._member_epoch = answer.epoch
        if answer.assigned is not None:
            self._assigned = (group.topic_id, group.subject.index) in answer.assigned

    def crash(self) -> None:
        """Let the member crash as soon as it holds records, and another one take its place."""
        self._crashes.set()

    def _crash(self) -> None:
        self._crashes.clear()
        self._end_session(time.time())
        self.name, self._member_epoch, self._heartbeat_due = f"{self.name}+", 0, 0.0

    def _note(self, request: str, error: BaseException) -> None:
        self._group.refusals[f"{request}: {error.error if isinstance(error, Refused) else type(error).__name__}"] += 1

    def close(self) -> None:
        """Close all connections, without a word, as a member that crashes."""
        self._end_session(time.time())
        for connection in self._coordinators.values():
            connection.close()


def _was_refused(error: NoAnswer) -> bool:
    """Whether the connection was refused, so that no request was sent."""
    return isinstance(error.__cause__, ConnectionRefusedError)
