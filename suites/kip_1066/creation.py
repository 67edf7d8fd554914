"""Creates topics in the background, and checks each against the cordons that were in force during its creation."""

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
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Topic
from harness.errors import AwaitTimeout, Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.background import in_background
from suites.state_check import StateCheck

_REPLICAS = 2


class TopicCreation:
    """Creates topics, and notes for each the log dirs that were cordoned all the while.

    :ivar errors: the errors that ended the thread that creates them
    """

    def __init__(self, state: StateCheck) -> None:
        self.errors: Sequence[Exception] = ()
        self._state = state
        self._new: deque[tuple[Topic, frozenset[LogDir]]] = deque()
        self._asked_at: list[float] = []
        self._made = 0  # so many of the first requests have been carried out

    def create(self, name: str) -> None:
        """Create one topic.

        A broker that is just being stopped may not answer, although the topic is created. Others are then asked until
        the topic is known.
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
                what=f"{name} to be created, after a request without an answer",
                retry_on=(NoAnswer,),
                failure=OwnPart(cluster, "create topics").undone,
            )
            [topic] = cluster.await_topics({name: 1})
        self._new.append((topic, before & self._state.cordoned))
        self._made += 1

    def _exists(self, name: str) -> bool:
        """Ask for the topic once more; then it exists."""
        try:
            self._state.cluster.create_topic(name, replicas=_REPLICAS)
        except Refused as refusal:
            if refusal.error != "TOPIC_ALREADY_EXISTS":
                raise
        return True

    def check_running(self) -> None:
        """The thread still creates topics.

        :raises PromiseBroken: a request was refused
        """
        for error in self.errors:
            if isinstance(error, Refused):
                raise PromiseBroken(f"a topic could not be created: {error}") from error
            raise error

    @contextmanager
    def created_during(self, what: str) -> Iterator[None]:
        """Inside the block, at least one topic is requested; it is created then or soon after.

        Earlier requests are awaited first, so that a slow one does not fill the block.

        :param what: what the block does, for messages
        :raises Inconclusive: no topic was requested
        """
        self._await_made(len(self._asked_at), f"before {what}")
        began = time.monotonic()
        yield
        ended = time.monotonic()
        inside = [number for number, at in enumerate(self._asked_at.copy(), 1) if began <= at <= ended]
        if not inside:
            raise Inconclusive(f"no topic was requested during {what}, which took {ended - began:.1f} s")
        self._await_made(inside[-1], f"during {what}")
        self._state.cluster.journal.write("topics.created_meanwhile", what=what, topics=len(inside))

    def _await_made(self, count: int, when: str) -> None:
        own_part = OwnPart(self._state.cluster, "create the topics that are requested", needs_all=False)
        await_until(
            lambda: self._made >= count,
            timeout_s=timeouts.PROGRESS_S,
            what=f"the topics to be created that were requested {when}",
            watch=self.check_running,
            failure=own_part.unserved,
        )

    def add_new_topics(self, at_least: int = 0) -> list[Topic]:
        """Add the topics that were created since the last call to the expected state.

        :param at_least: wait for so many topics that were requested under all the present cordons
        :raises PromiseBroken: a replica was placed on a cordoned log dir
        :raises Inconclusive: there are fewer
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
            retry_on=(NoAnswer, KeyError, AwaitTimeout),  # a broker that was just started may not know the topic yet
            watch=self.check_running,
            failure=Inconclusive,
        )
        self._state.cluster.journal.write("topics.learnt", topics=[topic.name for topic in learnt])
        return learnt


@contextmanager
def topics_created(state: StateCheck) -> Iterator[TopicCreation]:
    """Inside the block, a thread creates topics one after another, some a second.

    :raises PromiseBroken: a request is refused; also where the block fails for another reason
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
    """A request for a topic: when it was sent and answered, and whether the topic was created."""

    name: str
    at: datetime
    answered: datetime
    made: bool


@contextmanager
def wide_topics_requested(cluster: Cluster, via: Broker) -> Iterator[Sequence[TopicRequest]]:
    """Inside the block, a thread requests topics with a replica on each broker, as fast as it can.

    A fenced broker gets replicas, too, if no other brokers are left, unless all its log dirs are cordoned.
    """
    asked, numbers = list[TopicRequest](), itertools.count()

    def one_more() -> None:
        name, at = f"wide-{next(numbers)}", now()
        try:
            via.admin.create_topics([NewTopic(name=name, replicas=len(cluster.brokers))])
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
    """The topics that were created after a wholly cordoned broker started and before the controller knew its cordons.

    :param down: when the broker was stopped
    :param started: when the broker was started
    :param known: when the controller knew the cordons
    :raises PromiseBroken: a topic was created while the broker was down, or after ``known``
    :raises Inconclusive: no topic was requested in one of the three periods
    """
    while_down = [each for each in asked if down <= each.at and each.answered <= started]
    between = [each for each in asked if started < each.answered and each.at <= known]
    afterwards = [each for each in asked if known < each.at]
    if not (while_down and between and afterwards):
        counts = (
            f"{len(while_down)} while the broker was down, {len(between)} from its start until the controller knew its "
            f"cordons, {len(afterwards)} afterwards"
        )
        raise Inconclusive(f"too few topics were requested, at least one each is needed: {counts}")
    if wrong := [each.name for each in (*while_down, *afterwards) if each.made]:
        raise PromiseBroken(f"{wrong} were placed on a broker whose log dirs the controller knew to be cordoned")
    return [each for each in between if each.made]
