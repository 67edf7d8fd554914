"""Commits offsets for consumer groups without members, and checks that the groups' coordinator keeps them.

The members of a group commit again and again. So a commit that a coordinator has lost is soon made up for, and only the
commits at handovers are compared (:func:`suites.checks.check_group_commits`). No other client commits for these groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from faults.log_dir import LogDirFault
from harness import timeouts
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, PromiseBroken
from harness.events import FollowersHeld
from harness.journal import now
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.background import in_background
from suites.checks import promised
from suites.deviations import COORDINATOR_STAYS
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed

_EVERY_S = 0.05
_PENDING = "UNSTABLE_OFFSET_COMMIT"
_ELSEWHERE = "NOT_COORDINATOR"
_RESIGNS_S = 10.0
"""A broker resigns within milliseconds after it has heard of another leader; in a deviation, a case waits for this."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AckedCommit:
    """An offset whose commit the coordinator acknowledged."""

    offset: int
    sent_at: datetime
    acked_at: datetime


class MemberlessGroup:
    """A consumer group without members, and the offset of one partition that was committed for it.

    :param name: the group's id
    :param log: the partition of ``__consumer_offsets`` whose leader is the group's coordinator
    :param subject: the partition whose offset is committed; it need not have records
    """

    def __init__(self, name: str, log: Partition, subject: Partition) -> None:
        self.name = name
        self._log = log
        self._subject = subject
        self._acked: list[AckedCommit] = []
        self._tried = 0

    def commit(self, offset: int | None = None) -> None:
        """Commit this offset, or the next one; a commit that the coordinator does not take is repeated."""
        wanted = self._tried + 1 if offset is None else offset
        await_until(
            lambda: self._commit(self._log.leader().admin, wanted),
            timeout_s=timeouts.PROGRESS_S,
            what=f"the coordinator of the group {self.name} to take the offset {wanted}",
            retry_on=(NoAnswer, Refused, AwaitTimeout),
            failure=OwnPart(self._log.cluster, "take the offset of a group", needs_all=False).unserved,
        )

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Inside the block, commit one offset after the other, until the present coordinator does not take one.

        That commit is not repeated: another coordinator would take it, and hide that it has lost those before.
        """
        connection = self._log.leader().new_connection()
        admin = Admin(connection)
        with in_background(lambda: self._commit(admin, self._tried + 1), every_s=_EVERY_S) as errors:
            yield
        connection.close()
        if unexpected := [error for error in errors if not isinstance(error, NoAnswer | Refused)]:
            raise unexpected[0]

    def _commit(self, admin: Admin, offset: int) -> AckedCommit:
        sent_at, self._tried = now(), offset
        admin.commit_offset(self.name, self._subject.topic, self._subject.index, offset)
        acked = AckedCommit(offset=offset, sent_at=sent_at, acked_at=now())
        self._acked.append(acked)
        return acked

    def check_kept(self) -> None:
        """The coordinator has the last offset that was acknowledged, or a later one that was sent and not answered.

        It may have it a little later: a new coordinator shows its log up to the high watermark only, and the high
        watermark of a new leader lags. This hides no loss, since no other client commits for the group meanwhile.
        """
        last = self._acked[-1].offset
        unanswered = "" if self._tried == last else f", or an offset up to {self._tried}, which was not answered"
        [seen] = await_until(
            lambda: [self._ask(stable=False)],
            lambda answer: answer[0] is not None and last <= answer[0] <= self._tried,
            timeout_s=timeouts.LOG_DIR_FAILURE_S,
            what=f"the coordinator of the group {self.name} to have the offset {last} of {self._subject}, whose commit "
            f"was acknowledged{unanswered}",
            retry_on=(NoAnswer, Refused, AwaitTimeout),
            failure=PromiseBroken,
        )
        self._log.cluster.journal.write(
            "group.offset_kept", group=self.name, acked=last, tried=self._tried, seen=seen, commits=len(self._acked)
        )
        if early := acked_while_held(self._log, self._acked):
            raise PromiseBroken(f"the group {self.name} committed {early}")
        self._check_only_coordinator()

    def _check_only_coordinator(self) -> None:
        """Each other live broker sends clients to the coordinator, also one that has been it before."""
        cluster, log = self._log.cluster, self._log.describe()
        for broker in cluster.live_brokers():
            if broker.id == log.leader:
                continue
            failed = broker.id in log.offline_replicas
            shows = rf"{_ELSEWHERE} for .*; last seen: None$"
            with promised(cluster, unless=COORDINATOR_STAYS, seen=shows) if failed else nullcontext():
                await_until(
                    partial(self._refusal, broker.admin),
                    lambda refusal: refusal == _ELSEWHERE,
                    timeout_s=_RESIGNS_S,
                    what=f"{broker} to answer {_ELSEWHERE} for the group {self.name} of broker {log.leader}",
                    retry_on=(NoAnswer, AwaitTimeout),
                    failure=PromiseBroken,
                )

    def _refusal(self, admin: Admin) -> str | None:
        """The error that a broker answers to a question for the group's offset; None: it answers the question."""
        try:
            admin.committed_offset(self.name, self._subject.topic, self._subject.index)
        except Refused as refused:
            return refused.error
        return None

    def check_offset(self, offset: int) -> None:
        """The coordinator has exactly this offset, once no open transaction has one."""
        self._check_is(offset, self._committed(stable=True))

    def check_pending(self, offset: int) -> None:
        """The coordinator has exactly this offset, and knows that an open transaction has another one."""
        self._check_is(offset, self._committed())
        if (stable := self._answer(self._ask_if_stable)) != _PENDING:
            raise PromiseBroken(
                f"{self._log.leader()}, the coordinator of the group {self.name}, answers {stable} for the offset of "
                f"{self._subject} instead of {_PENDING}: it does not know that an open transaction has another one"
            )

    def _check_is(self, offset: int, seen: int | None) -> None:
        self._log.cluster.journal.write("group.offset", group=self.name, seen=seen)
        if seen != offset:
            raise PromiseBroken(
                f"{self._log.leader()}, the coordinator of the group {self.name}, has the offset {seen} of "
                f"{self._subject} instead of {offset}"
            )

    def _committed(self, *, stable: bool = False) -> int | None:
        return self._answer(lambda: self._ask(stable=stable))

    def _answer(self, ask: Callable[[], T]) -> T:
        """The coordinator's answer, as soon as it has loaded its log."""
        [answer] = await_until(
            lambda: [ask()],
            timeout_s=timeouts.PROGRESS_S,
            what=f"the coordinator to answer for the offset of the group {self.name}",
            retry_on=(NoAnswer, Refused, AwaitTimeout),
            failure=PromiseBroken,
        )
        return answer

    def _ask_if_stable(self) -> int | str | None:
        try:
            return self._ask(stable=True)
        except Refused as refused:
            if refused.error == _PENDING:
                return _PENDING
            raise

    def _ask(self, *, stable: bool) -> int | None:
        admin = self._log.leader().admin
        return admin.committed_offset(self.name, self._subject.topic, self._subject.index, stable=stable)


def acked_while_held(log: Partition, commits: Sequence[AckedCommit]) -> str:
    """Return what was sent and acknowledged while a follower in the ISR was held, and so without it; empty if nothing.

    It is the rule of :mod:`harness.measure.premature`.
    """
    holds = [
        hold
        for hold in log.cluster.journal.of(FollowersHeld)
        if hold.topic == log.topic and log.index in hold.partitions
    ]
    return "; ".join(
        f"{commit.offset}, and this was acknowledged while followers in the ISR of {log} were held "
        f"(brokers {list(hold.brokers)})"
        for hold in holds
        for commit in commits
        if hold.held_at < commit.sent_at and commit.acked_at < hold.until
    )


@contextmanager
def log_dir_failed_amid_commits(
    state: StateCheck, fault: LogDirFault, group: MemberlessGroup, offsets: Topic
) -> Iterator[LogDirFault]:
    """Like :func:`suites.steps.log_dirs_failed`, for a log dir of the group coordinator's log, while the group commits.

    Its coordinator gets ahead of its followers before. The block comes once the new one has shown what was committed.

    :param offsets: the topic ``__consumer_offsets``
    """
    with ExitStack() as undone:
        with group.committing():
            failed = undone.enter_context(log_dirs_failed(state, fault, ahead=offsets))
        group.check_kept()
        yield failed
