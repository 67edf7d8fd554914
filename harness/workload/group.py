"""A consumer group of confluent-kafka as an independent reader: committed offsets, rebalances, members come and go.

A member is the pair's live consumer (:class:`~harness.workload.consumer.Consuming`: the same task, recorder, rows and
supervision) that subscribes instead of being assigned. What differs:

* **Commits: at least once.** Only what is on disk is committed: each :data:`COMMIT_S` in the background, and before a
  partition is given away in ``on_revoke``, synchronously, when the recorder has written. A killed member leaves
  records recorded and not committed; whoever has the partition next is handed them again.
* **Offsets are begun by the harness**, committed for every partition before the first member joins, and
  ``auto.offset.reset`` stays ``error``: a group whose committed offsets are gone is loud, not silently back at the
  first record or at the end.
* **A session of the history is an assignment**: it goes up each time that the member is assigned the partition anew;
  positions run on.
* **Cooperative** (``cooperative-sticky``, KIP-429), not eager: partitions that stay with their member are read during
  a rebalance, so that a gap in a fault isn't one that the other member's coming made; and what moves is really handed
  from one process to another. Eager would take all partitions away each time and mostly give them back to whom they
  came from.

``session.timeout.ms`` is the least that brokers take by default, so that a dead member's partitions are free soon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import SparkSession

from harness.errors import AwaitTimeout, PipelineError
from harness.spark.control import ABORT, ControlServer, DriverLink, TaskEndpoint
from harness.spark.run_once import claim
from harness.waiting import await_until
from harness.workload.consumer import CONSUMER_CONFIG, ConsumerSpec, Consuming, Isolation
from harness.workload.consumer_supervisor import LiveConsumer, OnEvent

MEMBER_CONFIG: Mapping[str, str | int | float | bool] = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 6000,
    # A member hears of a rebalance in the answer to a heartbeat: 3 s by default.
    "heartbeat.interval.ms": 500,
}
"""A member's settings over :data:`harness.workload.consumer.CONSUMER_CONFIG`."""
COMMIT_S = 1.0
LEAVE_S = 30.0
"""A member says good-bye, the others hear of it at a heartbeat and join again; or it is missed after its session."""
_FIRST_COMMIT_S = 30.0
_ATTEMPT_S = 5.0


def consume_in_group(spec: ConsumerSpec, invitation: TaskEndpoint, _: Iterable[Any]) -> Iterator[str]:
    """A member's Spark task; ``spec.config`` has its ``group.id``. As :func:`harness.workload.consumer.consume`."""
    claim(spec.run_dir, spec.task)
    link = DriverLink(invitation)
    try:
        _Member(spec, link).run()
    finally:
        link.close()
    yield spec.task


class _Member(Consuming):
    def __init__(self, spec: ConsumerSpec, link: DriverLink) -> None:
        self._assigned: frozenset[int] = frozenset()
        self._rebalances: list[tuple[str, dict[str, Any]]] = []
        self._next_session = {partition: start.session for partition, start in spec.starts.items()}
        self._recording: tuple[threading.Event, dict[int, int]] | None = None
        self._asked_at = time.monotonic()
        super().__init__(spec, link)

    def _begin(self) -> None:
        self._client.subscribe(
            [self._spec.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _end(self) -> None:
        self._hand_over()
        self._client.close()  # calls on_revoke, which needs the recorder
        self._hand_over()  # for its report
        self._recorder.close()

    def _callbacks(self) -> dict[str, Any]:
        return {"on_commit": self._on_commit}

    def _look_beside(self) -> None:
        """Nothing: it may be that it waits for its partitions."""

    def _more_progress(self) -> dict[str, Any]:
        return {"assigned": sorted(self._assigned), "rebalances": list(self._rebalances)}

    def _hand_over(self) -> None:
        super()._hand_over()
        self._commit_recorded()

    # --- offsets ----------------------------------------------------------------------------------------------------

    def _commit_recorded(self) -> None:
        """Now and then: commit, without waiting for it, what is on disk."""
        if self._recording is not None:
            written, ends = self._recording
            if written.is_set():
                self._recording = None
                if offsets := self._offsets(ends):
                    self._client.commit(offsets=offsets, asynchronous=True)
        elif self._assigned and time.monotonic() - self._asked_at >= COMMIT_S:
            self._asked_at = time.monotonic()
            self._recording = (self._recorder.written(), {p: self._reached[p] for p in self._assigned})

    def _offsets(self, ends: Mapping[int, int]) -> list[TopicPartition]:
        """What to commit; nothing where nothing was read since the partition was assigned."""
        return [TopicPartition(self._spec.topic, partition, end) for partition, end in ends.items() if end > 0]

    def _on_commit(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        # A commit that failed is made up for by the next one, or the records are handed to somebody again.
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self._last_error = error.name()

    # --- rebalances, called within the client's consume() and close() -----------------------------------------------

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """New sessions; where to go on is for the client to fetch: the committed offsets, which are noted."""
        super()._hand_over()
        given = [each.partition for each in partitions]
        self._sessions = {**self._sessions, **{partition: self._next_session[partition] for partition in given}}
        for partition in given:
            self._next_session[partition] += 1
            self._reached[partition] = 0  # what was reached before may be behind what others have committed since
        self._recording = None
        self._assigned |= frozenset(given)
        sessions = {str(partition): self._sessions[partition] for partition in given}
        self._note("assigned", given, sessions=sessions, committed=self._committed(partitions) if given else {})

    def _committed(self, partitions: list[TopicPartition]) -> dict[str, int]:
        """What is committed of these, as their coordinator has it, -1 where it has nothing; without those that it
        doesn't tell of in time."""
        try:
            told = self._client.committed(partitions, timeout=_ATTEMPT_S)
        except KafkaException as error:
            self._last_error = error.args[0].name()
            return {}
        return {str(each.partition): max(each.offset, -1) for each in told if each.error is None}

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """What was read is written down, and only then committed, and only then given away."""
        super()._hand_over()
        self._recorder.flush()
        self._recording = None
        taken = [each.partition for each in partitions]
        ends = {partition: self._reached[partition] for partition in taken}
        failed = None
        if offsets := self._offsets(ends):
            try:
                self._client.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                failed = self._last_error = error.args[0].name()
        self._assigned -= frozenset(taken)
        self._note("revoked", taken, committed={str(p): end for p, end in ends.items()}, error=failed)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """The group went on without this member; it may commit no more."""
        super()._hand_over()
        self._recording = None
        taken = [each.partition for each in partitions]
        self._assigned -= frozenset(taken)
        self._note("lost", taken)

    def _note(self, what: str, partitions: list[int], **more: Any) -> None:
        if not partitions:
            return  # a rebalance that moved nothing of this member's
        self._rebalances.append((f"group.{what}", {"partitions": sorted(partitions), "when": time.time()} | more))


class GroupReader:
    """The group and its members, supervised; :class:`harness.workload.readers.Group` says when who is in it.

    :param members: the first one stays, the others come later and go before the end
    :raises ValueError: the topic has fewer partitions than the group has members, so one would have nothing to do
    """

    def __init__(
        self, session: SparkSession, server: ControlServer, on_event: OnEvent, members: Sequence[ConsumerSpec]
    ) -> None:
        self._began = members[0]
        if len(self._began.starts) < len(members):
            raise ValueError(
                f"{self._began.topic} has {len(self._began.starts)} partitions; a group of {len(members)} needs as many"
            )
        config = {**MEMBER_CONFIG, "group.id": self.name}
        self._specs = [replace(spec, config={**config, **spec.config}) for spec in members]
        self._start_member = partial(
            LiveConsumer, session, server, on_event, body=consume_in_group, events_of=_rebalances_of
        )
        self._on_event = on_event
        self._members: list[LiveConsumer] = []

    # --- as the protocol Reader has it ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The group's id."""
        return f"jbod-{self._began.run_token}-{self._began.consumer}"

    @property
    def consumers(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(spec.consumer for spec in self._specs)

    @property
    def isolation(self) -> Isolation:
        """What all members read."""
        return self._began.isolation

    def start(self) -> None:
        """Commit the first offsets, and let the first member join.

        :raises PipelineError: no coordinator takes the offsets
        """
        self._commit_first()
        self._members.append(self._start_member(self._specs[0]))

    def check(self) -> None:
        """Raise PipelineError if a member died for good."""
        for member in self._members:
            if member.broken is not None:
                raise PipelineError(member.broken)

    def await_ready(self, timeout_s: float) -> None:
        """The first member has read; then the others join, and have read: each took over what the first one had.

        :param timeout_s: for each member
        """
        for spec in (None, *self._specs[1:]):
            if spec is not None:
                self._members.append(self._start_member(spec))
            newest = self._members[-1]
            await_until(
                lambda newest=newest: newest.read,  # type: ignore[misc]
                timeout_s=timeout_s,
                what=f"{newest.name}, of the group {self.name}, to be handed a record of {self._began.topic}",
                watch=self.check,
                failure=PipelineError,
                hint=self._standing_still,
            )

    def read_end(self, partition: int) -> int:
        """Of the member that got furthest."""
        return max((member.read_end(partition) for member in self._members), default=0)

    def read_sent_at(self, partition: int) -> int:
        """Of the member that got furthest."""
        return max((member.read_sent_at(partition) for member in self._members), default=0)

    def before_end(self) -> None:
        """All but the first member leave, and that one is assigned every partition.

        One that doesn't leave is ended. Where the first member is not assigned everything within :data:`LEAVE_S`, the
        journal says so (``group.unsettled``); it may still come to it before the time for catching up is over.
        """
        ends_at = time.monotonic() + LEAVE_S
        for member in self._members[1:]:
            member.stop({})
        for member in self._members[1:]:
            if not member.done.wait(max(0.0, ends_at - time.monotonic()) / 2):
                member.let_die().end()
        try:
            await_until(
                lambda: self._members[0].report.get("assigned", []),
                lambda assigned: len(assigned) == len(self._began.starts),
                timeout_s=max(1.0, ends_at - time.monotonic()),
                what=f"{self._members[0].name} to be assigned all partitions of {self._began.topic}",
                watch=self.check,
                hint=self._standing_still,
            )
        except AwaitTimeout as error:
            self._on_event("group.unsettled", group=self.name, error=str(error))

    def stop(self, at: Mapping[int, int]) -> None:
        """The first member reads up to these offsets; the others have left."""
        for member in self._members:
            member.stop(at if member is self._members[0] else {})

    def wait(self, timeout_s: float) -> bool:
        """Whether all members have ended."""
        ends_at = time.monotonic() + timeout_s
        return all(member.done.wait(max(0.0, ends_at - time.monotonic())) for member in self._members)

    def abort(self) -> None:
        """End all members now."""
        tasks = [member.let_die() for member in self._members]
        for task in tasks:
            task.channel.send(ABORT)
        for task in tasks:
            task.end()

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _commit_first(self) -> None:
        """Commit where the log begins, for every partition, before anybody is in the group."""
        client = Consumer({**CONSUMER_CONFIG, "bootstrap.servers": self._began.bootstrap, "group.id": self.name})

        def commit() -> bool:
            wheres = [TopicPartition(self._began.topic, partition) for partition in self._began.starts]
            firsts = [
                TopicPartition(each.topic, each.partition, client.get_watermark_offsets(each, _ATTEMPT_S)[0])
                for each in wheres
            ]
            done = client.commit(offsets=firsts, asynchronous=False) or []
            return all(each.error is None for each in done)

        try:
            await_until(
                commit,
                timeout_s=_FIRST_COMMIT_S,
                what=f"the first offsets of the group {self.name} to be committed",
                poll_s=0.2,
                retry_on=(KafkaException,),
                failure=PipelineError,
            )
        finally:
            client.close()

    def _standing_still(self) -> str:
        return "; ".join(
            f"{member.name} has {member.report.get('assigned', [])}, has read {member.read}"
            + (f", client: {error}" if (error := member.report.get("last_error")) else "")
            for member in self._members
        )


def _rebalances_of(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(kind, fields) for kind, fields in report.get("rebalances", [])]
