"""Topics are created all the while, and each is held against the cordons that were in force for all of that time."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Topic
from harness.errors import AwaitTimeout, Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import Refused
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.background import in_background
from suites.state_check import StateCheck

_REPLICAS = 2


class TopicCreation:
    """Topics as they come, each with the log dirs that were cordoned all the while it was created.

    :ivar errors: what ended the thread that creates them
    """

    def __init__(self, state: StateCheck) -> None:
        self.errors: Sequence[Exception] = ()
        self._state = state
        self._new: deque[tuple[Topic, frozenset[LogDir]]] = deque()
        self._asked_at: list[float] = []
        self._made = 0  # of those that were asked for, the first so many

    def create(self, name: str) -> None:
        """One more.

        Where nobody answers, since whoever was asked is just being stopped, others are asked until it is known to be
        there: it may have been created by who was asked first.
        """
        before = self._state.cordoned
        self._asked_at.append(time.monotonic())
        cluster = self._state.cluster
        try:
            topic = cluster.create_topic(name, replicas=_REPLICAS)
        except NoAnswer:
            await_until(
                lambda: self._exists(name),
                timeout_s=timeouts.PROGRESS_S,
                what=f"{name} to be created, for which nobody answered",
                retry_on=(NoAnswer,),
            )
            [topic] = cluster.await_topics({name: 1})
        self._new.append((topic, before & self._state.cordoned))
        self._made += 1

    def _exists(self, name: str) -> bool:
        """It is there when it has been asked for once more."""
        try:
            self._state.cluster.create_topic(name, replicas=_REPLICAS)
        except Refused as refusal:
            if refusal.error != "TOPIC_ALREADY_EXISTS":
                raise
        return True

    def check_running(self) -> None:
        """Topics are created all the while.

        :raises PromiseBroken: one was refused
        """
        for error in self.errors:
            if isinstance(error, Refused):
                raise PromiseBroken(f"a topic could not be created all the while: {error}") from error
            raise error

    @contextmanager
    def created_during(self, what: str) -> Iterator[None]:
        """Topics are created inside the block too: at least one was asked for there, and is made, if only after it.

        So that it doesn't pass while one is long in the making, which was asked for before, that is awaited first.

        :raises Inconclusive: none was
        """
        self._await_made(len(self._asked_at), f"before {what}")
        began = time.monotonic()
        yield
        ended = time.monotonic()
        inside = [number for number, at in enumerate(self._asked_at.copy(), 1) if began <= at <= ended]
        if not inside:
            raise Inconclusive(f"no topic was asked for during {what}, which took {ended - began:.1f} s")
        self._await_made(inside[-1], f"during {what}")
        self._state.cluster.journal.write("topics.created_meanwhile", what=what, topics=len(inside))

    def _await_made(self, count: int, when: str) -> None:
        await_until(
            lambda: self._made >= count,
            timeout_s=timeouts.PROGRESS_S,
            what=f"the topics to be made that were asked for {when}",
            watch=self.check_running,
            failure=Inconclusive,
        )

    def add_new_topics(self, at_least: int = 0) -> list[Topic]:
        """Take into the model what was created since the last time.

        :param at_least: wait until there are so many that were asked for under all the cordons of now
        :raises PromiseBroken: a replica came to a log dir that was cordoned
        :raises Inconclusive: there aren't so many
        """
        learnt: list[Topic] = []
        fresh = 0

        def so_far() -> int:
            nonlocal fresh
            while self._new:
                topic, cordoned = self._new[0]
                self._state.add_topic(topic, cordoned=cordoned)
                self._new.popleft()
                learnt.append(topic)
                fresh += cordoned >= self._state.cordoned
            return fresh

        await_until(
            so_far,
            lambda count: count >= at_least,
            timeout_s=timeouts.PROGRESS_S,
            what=f"{at_least} topics to be created",
            retry_on=(NoAnswer, KeyError, AwaitTimeout),  # a broker that was just started may not know it yet
            watch=self.check_running,
            failure=Inconclusive,
        )
        self._state.cluster.journal.write("topics.learnt", topics=[topic.name for topic in learnt])
        return learnt


@contextmanager
def topics_created(state: StateCheck) -> Iterator[TopicCreation]:
    """Inside the block topics are created one after another, some a second, by a thread.

    :raises PromiseBroken: one is refused; also where the block fails for another reason
    """
    creation, numbers = TopicCreation(state), itertools.count()
    try:
        with in_background(lambda: creation.create(f"passing-{next(numbers)}"), every_s=0.5) as creation.errors:
            yield creation
    except Exception:
        if any(isinstance(error, Refused) for error in creation.errors):
            creation.check_running()
        raise
    creation.check_running()
    creation.add_new_topics()
    state.check()


@dataclass(frozen=True, kw_only=True)
class TopicRequest:
    """A topic that was asked for, whether it was made, and when asked and answered."""

    name: str
    at: datetime
    answered: datetime
    made: bool


@contextmanager
def wide_topics_requested(cluster: Cluster, via: Broker) -> Iterator[Sequence[TopicRequest]]:
    """Inside the block topics with a replica on each broker are asked for as quickly as they can be, by a thread.

    A broker that is fenced is given replicas too where no others are left, unless it is wholly cordoned.
    """
    asked, numbers = list[TopicRequest](), itertools.count()

    def one_more() -> None:
        name, at = f"wide-{next(numbers)}", now()
        try:
            via.admin.create_topic(name, partitions=1, replicas=len(cluster.brokers))
            made = True
        except Refused as refusal:
            if refusal.error != "INVALID_REPLICATION_FACTOR":
                raise
            made = False
        asked.append(TopicRequest(name=name, at=at, answered=now(), made=made))

    with in_background(one_more, every_s=0.005) as errors:
        yield asked
    if errors:
        raise errors[0]


def created_despite_cordons(
    asked: Sequence[TopicRequest], *, down: datetime, started: datetime, known: datetime
) -> list[TopicRequest]:
    """The topics that were made after a wholly cordoned broker was started and before the controller knew its cordons.

    :param down: from then on it did not run
    :param known: from then on the controller knew
    :raises PromiseBroken: one was made while it was down, its cordons being in the metadata log, or after that
    :raises Inconclusive: none was asked for in one of the three times
    """
    while_down = [each for each in asked if down <= each.at and each.answered <= started]
    between = [each for each in asked if started < each.answered and each.at <= known]
    afterwards = [each for each in asked if known < each.at]
    if not (while_down and between and afterwards):
        counts = f"{len(while_down)} before it was started, {len(between)} meanwhile, {len(afterwards)} afterwards"
        raise Inconclusive(f"too few topics were asked for: {counts}")
    if wrong := [each.name for each in (*while_down, *afterwards) if each.made]:
        raise PromiseBroken(f"{wrong} came to a broker that the controller knew to be wholly cordoned")
    return [each for each in between if each.made]
