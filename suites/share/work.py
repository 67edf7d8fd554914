"""A share group at work in a cluster, and what must hold of all that its members saw."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from faults.targets import leader_of
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.events import FollowersHeld
from harness.runner.case import Case
from suites.deviations import LATE_ACKNOWLEDGEMENT_CONFIRMED
from suites.leadership import lead
from suites.observing import observe
from suites.on_disk import check_same_bytes
from suites.share.checker import (
    Acknowledged,
    Delivery,
    SessionEnd,
    Span,
    anomalies,
    confirmed_within,
    delivered_within,
    exercised,
    late_and_confirmed,
)
from suites.share.members import LIMITS, Member, ShareGroup
from suites.share.writer import NumberedWriter
from suites.state_check import StateCheck

STATE_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "min.insync.replicas": "2"}
"""As brokers create ``__share_group_state`` (``ShareCoordinatorService.shareGroupStateTopicConfigs``)."""
_SOME = 150
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Work:
    """A share group whose members work through a partition, to which a producer writes.

    :ivar jobs: the topic, of one partition
    :ivar states: ``__share_group_state``, of one partition
    :ivar leader: the broker that led both at first; their replicas are in different log dirs
    """

    jobs: Topic
    states: Topic
    leader: Broker
    state: StateCheck
    group: ShareGroup
    members: Sequence[Member]
    writer: NumberedWriter

    def go_on(self) -> None:
        """Some more records are written; they and all before them are delivered until they have ended."""
        self.group.await_ended(self.writer.await_more(_SOME, self.group.check))


@contextmanager
def at_work(cluster: Cluster, case: Case, *, also: tuple[str, ...] = ()) -> Iterator[Work]:
    """Inside the block, three members work through a partition; at its end, everything must have been as promised.

    :param also: what the case must have put to the test, beside what each case does (fields of
        :class:`suites.share.checker.Exercised`)
    :raises PromiseBroken: it was not as promised
    :raises Inconclusive: a promise was not put to the test
    """
    offsets = cluster.create_topic("__consumer_offsets", configs={"cleanup.policy": "compact"})
    states = cluster.create_topic("__share_group_state", configs=STATE_CONFIGS)
    jobs = cluster.create_topic("jobs")
    leader = leader_of(jobs[0])
    lead(states[0], leader)
    if jobs[0].log_dir_on(leader) == states[0].log_dir_on(leader):
        raise Inconclusive(f"{jobs[0].log_dir_on(leader)} has the replicas of {jobs} and {states}")
    state = StateCheck(cluster, offsets, states, jobs)
    group, writer = ShareGroup("workers", jobs[0], offsets[0]), NumberedWriter(jobs[0])
    try:
        with group.working(writer.write) as members:
            work = Work(
                jobs=jobs, states=states, leader=leader, state=state, group=group, members=members, writer=writer
            )
            work.go_on()
            yield work
            work.go_on()
            log = writer.finish()
            group.await_ended(max(log) + 1)
    finally:
        _keep(group, case)
    _check(work, log, also)
    check_same_bytes(*states.partitions, *jobs.partitions)


def _check(work: Work, log: dict[int, bytes], also: tuple[str, ...]) -> None:
    """Everything that members saw was as promised.

    :raises PromiseBroken: it was not
    :raises Inconclusive: a promise was not put to the test
    """
    group, journal = work.group, work.jobs.cluster.journal
    broken = [str(each) for each in anomalies(group.history, log, LIMITS)]
    broken += [
        f"confirmed early: {each.how} of {each.delivery}, while followers of {work.states} in the ISR were held"
        for each in confirmed_within(group.history, _holds(work.states), LIMITS)
    ]
    broken += [
        f"delivered early: {each}, while followers of {work.jobs} in the ISR were held"
        for each in delivered_within(group.history, work.writer.written_at, _holds(work.jobs))
    ]
    seen, late = exercised(group.history, LIMITS), late_and_confirmed(group.history, LIMITS)
    journal.write(
        "share.checked",
        group=group.name,
        records=len(log),
        broken=len(broken),
        late_and_confirmed=len(late),
        refusals=group.refusals,
        **dataclasses.asdict(seen),
    )
    if broken:
        more = f"; and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
        raise PromiseBroken("; ".join(broken[:_SHOWN]) + more)
    observe(
        LATE_ACKNOWLEDGEMENT_CONFIRMED,
        work.jobs.cluster,
        deviates=bool(late),
        seen=f"{len(late)} of {seen.late} late acknowledgements were confirmed",
    )
    if missing := seen.missing(*also):
        raise Inconclusive(f"the share group did not put to the test: {', '.join(missing)}")


def _holds(topic: Topic) -> list[Span]:
    """The times in which followers of the topic in the ISR were held."""
    return [
        (hold.held_at.timestamp(), hold.until.timestamp())
        for hold in topic.cluster.journal.of(FollowersHeld)
        if hold.topic == topic.name and hold.partitions
    ]


def _keep(group: ShareGroup, case: Case) -> None:
    """Write all that the members saw into the run folder, an event a line, in the order of its end."""
    seen: list[Delivery | Acknowledged | SessionEnd] = [
        *group.history.deliveries,
        *group.history.acknowledged,
        *group.history.ends,
    ]
    events = [
        {"kind": type(each).__name__, **dataclasses.asdict(each)} for each in sorted(seen, key=lambda each: each.at)
    ]
    path = case.run_dir / "share-group.jsonl"
    path.write_text("".join(json.dumps(event, default=bytes.decode) + "\n" for event in events), encoding="utf-8")
