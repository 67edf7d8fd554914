"""A consumer group as an independent reader: committed offsets, rebalances, members that join and leave.

A member is a live consumer (:class:`~harness.workload.consumer.Consuming`) that subscribes instead of being assigned
its partitions. It differs in this:

* **Its records are delivered at least once.** It commits only what is on disk: in the background every
  :data:`COMMIT_S`, and synchronously, in ``on_revoke``, before it gives a partition away. A killed member may have
  recorded records that it has not committed; the next owner of the partition gets them again.
* **The harness commits the first offset** of every partition before the first member joins, and ``auto.offset.reset``
  stays ``error``. So a group that loses its committed offsets fails, and does not silently go to the first or last one.
* **A session in the history is an assignment.** It goes up each time the member is assigned the partition; positions
  run on.
* **Rebalances are cooperative** (``cooperative-sticky``, KIP-429). A member reads its remaining partitions during a
  rebalance, so a joining member causes no gap in them. And a partition that moves really moves to another process;
  eager rebalances would revoke all partitions and give most of them back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import SparkSession

from harness.errors import AwaitTimeout, NotServed, PipelineError
from harness.spark.control import ABORT, ControlServer, DriverLink, TaskEndpoint
from harness.spark.tasks import claimed
from harness.waiting import await_until
from harness.workload.client_config import CONSUMER_CONFIG, MEMBER_CONFIG
from harness.workload.consumer import ConsumerSpec, Consuming, Isolation
from harness.workload.consumer_supervisor import LiveConsumer, OnEvent
from harness.workload.progress import ConsumerReport, Rebalance

COMMIT_S = 1.0
LEAVE_S = 30.0
"""Enough for a member to leave the group and the others to rejoin at a heartbeat, or for its session to time out."""
_FIRST_COMMIT_S = 30.0
_ATTEMPT_S = 5.0


def consume_in_group(spec: ConsumerSpec, endpoint: TaskEndpoint, _: Iterable[object]) -> Iterator[str]:
    """A member's Spark task; ``spec.config`` has its ``group.id``. It ends as ``consume`` does."""
    with claimed(spec.run_dir, spec.task, endpoint) as link:
        _Member(spec, link).run()
    yield spec.task


class _Member(Consuming):
    def __init__(self, spec: ConsumerSpec, link: DriverLink) -> None:
        self._assigned: frozenset[int] = frozenset()
        self._rebalances: list[Rebalance] = []
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

    def _callbacks(self) -> dict[str, Callable[..., None]]:
        return {"on_commit": self._on_commit}

    def _compare_with_fresh_client(self) -> None:
        """Do nothing: a member that reads nothing may wait for its partitions."""

    def _report(self) -> ConsumerReport:
        return replace(super()._report(), assigned=sorted(self._assigned), rebalances=self._rebalances.copy())

    def _hand_over(self) -> None:
        super()._hand_over()
        self._commit_recorded()

    # --- offsets ----------------------------------------------------------------------------------------------------

    def _commit_recorded(self) -> None:
        """Every :data:`COMMIT_S`, commit what is on disk, without waiting for the answer."""
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
        """The offsets to commit: those of partitions in which it has read something since their assignment."""
        return [TopicPartition(self._spec.topic, partition, end) for partition, end in ends.items() if end > 0]

    def _on_commit(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        # The next commit makes up for a failed one; else the records are delivered again.
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self._last_error = error.name()

    # --- rebalances, called within the client's consume() and close() -----------------------------------------------

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin new sessions; the client continues from the committed offsets, which are noted."""
        super()._hand_over()
        given = [each.partition for each in partitions]
        self._sessions = {**self._sessions, **{partition: self._next_session[partition] for partition in given}}
        for partition in given:
            self._next_session[partition] += 1
            self._reached[partition] = 0  # others may have committed more since
        self._recording = None
        self._assigned |= frozenset(given)
        sessions = {partition: self._sessions[partition] for partition in given}
        committed = self._committed(partitions) if given else {}
        self._note(
            Rebalance(
                what="assigned", partitions=sorted(given), when=time.time(), sessions=sessions, committed=committed
            )
        )

    def _committed(self, partitions: list[TopicPartition]) -> dict[int, int]:
        """The committed offsets that the coordinator has, -1 for none; without partitions that have an error."""
        try:
            committed = self._client.committed(partitions, timeout=_ATTEMPT_S)
        except KafkaException as error:
            self._last_error = error.args[0].name()
            return {}
        return {each.partition: max(each.offset, -1) for each in committed if each.error is None}

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Write what was read, then commit it, then give the partitions away."""
        super()._hand_over()
        self._recorder.flush()
        self._recording = None
        taken = [each.partition for each in partitions]
        ends = {partition: self._reached[partition] for partition in taken}
        failed: str | None = None
        if offsets := self._offsets(ends):
            try:
                self._client.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                failed = self._last_error = error.args[0].name()
        self._assigned -= frozenset(taken)
        self._note(Rebalance(what="revoked", partitions=sorted(taken), when=time.time(), committed=ends, error=failed))

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """The group has removed this member, which may commit no more."""
        super()._hand_over()
        self._recording = None
        taken = [each.partition for each in partitions]
        self._assigned -= frozenset(taken)
        self._note(Rebalance(what="lost", partitions=sorted(taken), when=time.time()))

    def _note(self, rebalance: Rebalance) -> None:
        if rebalance.partitions:  # else it moved no partition of this member
            self._rebalances.append(rebalance)


class GroupReader:
    """A consumer group and its members; the methods are those of :class:`harness.workload.readers.Reader`.

    :param members: the first one stays; the others join later and leave before the end
    :raises ValueError: the topic has fewer partitions than the group has members
    """

    def __init__(
        self, session: SparkSession, server: ControlServer, on_event: OnEvent, members: Sequence[ConsumerSpec]
    ) -> None:
        self._began = members[0]
        if len(self._began.starts) < len(members):
            raise ValueError(
                f"{self._began.topic} has {len(self._began.starts)} partitions; a group of {len(members)} "
                f"members needs at least {len(members)}"
            )
        config = {**MEMBER_CONFIG, "group.id": self.name}
        self._specs = [replace(spec, config={**config, **spec.config}) for spec in members]
        self._start_member = partial(LiveConsumer, session, server, on_event, body=consume_in_group)
        self._on_event = on_event
        self._members: list[LiveConsumer] = []

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
        """The isolation level of all members."""
        return self._began.isolation

    def start(self) -> None:
        """Commit the first offsets, and let the first member join.

        :raises NotServed: no coordinator accepts the offsets
        """
        self._commit_first()
        self._members.append(self._start_member(self._specs[0]))

    def check(self) -> None:
        """Raise PipelineError if a member is broken."""
        for member in self._members:
            member.check()

    def await_ready(self, timeout_s: float) -> None:
        """Wait until the first member reads; then let each other member join, and wait until it reads.

        :param timeout_s: for each member
        :raises NotServed: one does not read in time, although it runs
        """
        self._await_read(self._members[0], timeout_s)
        for spec in self._specs[1:]:
            self._members.append(self._start_member(spec))
            self._await_read(self._members[-1], timeout_s)

    def read_end(self, partition: int) -> int:
        """The next offset that the group reads."""
        return max((member.read_end(partition) for member in self._members), default=0)

    def read_sent_at(self, partition: int) -> int:
        """When the newest record that a member read was sent, in microseconds; 0 is never."""
        return max((member.read_sent_at(partition) for member in self._members), default=0)

    def before_end(self) -> None:
        """Let all members but the first leave, and wait until the first is assigned every partition.

        A member that doesn't leave is ended. If the first one does not have all partitions within :data:`LEAVE_S`, the
        journal says so (``group.unsettled``); it may still get them while it catches up.
        """
        ends_at = time.monotonic() + LEAVE_S
        for member in self._members[1:]:
            member.stop({})
        for member in self._members[1:]:
            if not member.wait(max(0.0, ends_at - time.monotonic()) / 2):
                member.abort()
        try:
            await_until(
                lambda: self._members[0].report.assigned,
                lambda assigned: len(assigned) == len(self._began.starts),
                timeout_s=max(1.0, ends_at - time.monotonic()),
                what=f"{self._members[0].name} to be assigned all partitions of {self._began.topic}",
                watch=self.check,
                hint=self._standing_still,
            )
        except AwaitTimeout as error:
            self._on_event("group.unsettled", group=self.name, error=str(error))

    def stop(self, at: Mapping[int, int]) -> None:
        """Let the first member read up to these offsets; the others have left."""
        for member in self._members:
            member.stop(at if member is self._members[0] else {})

    def wait(self, timeout_s: float) -> bool:
        """Whether all members have ended."""
        ends_at = time.monotonic() + timeout_s
        return all(member.wait(max(0.0, ends_at - time.monotonic())) for member in self._members)

    def abort(self) -> None:
        """End all members now."""
        tasks = [member.let_die() for member in self._members]
        for task in tasks:
            task.channel.send(ABORT)
        for task in tasks:
            task.end()

    def _await_read(self, member: LiveConsumer, timeout_s: float) -> None:
        await_until(
            lambda: member.read,
            timeout_s=timeout_s,
            what=f"{member.name}, of the group {self.name}, to read a record of {self._began.topic}",
            watch=self.check,
            failure=lambda message: (NotServed if member.task.channel.connected else PipelineError)(message),
            hint=self._standing_still,
        )

    def _commit_first(self) -> None:
        """Commit the first offset of every partition, before the group has a member."""
        client = Consumer({**CONSUMER_CONFIG, **self._began.bootstrap.librdkafka, "group.id": self.name})

        def commit() -> bool:
            topic = self._began.topic
            firsts = [
                TopicPartition(topic, p, client.get_watermark_offsets(TopicPartition(topic, p), _ATTEMPT_S)[0])
                for p in self._began.starts
            ]
            committed = client.commit(offsets=firsts, asynchronous=False) or []
            return all(each.error is None for each in committed)

        try:
            await_until(
                commit,
                timeout_s=_FIRST_COMMIT_S,
                what=f"the first offsets of the group {self.name} to be committed",
                poll_s=0.2,
                retry_on=(KafkaException,),
                failure=NotServed,
            )
        finally:
            client.close()

    def _standing_still(self) -> str:
        return "; ".join(
            f"{member.name} has {list(member.report.assigned)}, has read {member.read}"
            + (f", client: {error}" if (error := member.report.last_error) else "")
            for member in self._members
        )
