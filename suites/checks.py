"""The checks that scenarios share, among them those that "validate client/cluster state" in KIP-112's test plan.

"Brokers are all running and show expected error message; topic description shows expected results for all topics; a
pair of producer and consumer can successfully produce/consume from a topic without message loss or duplication."
:meth:`suites.state_check.StateCheck.check` compares running brokers, topic description and log dirs.
:func:`check_noticed` looks for the error message. :func:`check_delivery` checks for loss and duplication.

In all suites, the first sentence of a ``check_…`` function is its claim. If the claim does not hold in time, the
function raises PromiseBroken.
"""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from confluent_kafka import KafkaError, Message, Producer

from faults.base import Fault
from faults.file_system import PowerCut
from faults.log_dir import LOG_DIR_STOPPED
from faults.segment import BitsFlipped
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.nodes.node import Node
from harness.cluster.own_part import OwnPart
from harness.cluster.quorum.zookeeper import LogDirEvents
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, JbodError, PromiseBroken
from harness.events import GroupEvent, GroupRevoked
from harness.journal import Journal, now
from harness.kafka.answers import Refused
from harness.kafka.broker_log import BrokerLog, LogLine
from harness.kafka.connection import NoAnswer
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Deviation, Expectation
from harness.waiting import await_until
from suites.background import in_background
from suites.observing import expectation_of, observe
from suites.on_disk import check_same_bytes

MAY_END = "The controller has asked us to exit controlled shutdown"
"""The log line of a KRaft broker that was asked to stop, once the controller lets it end."""


def check_noticed(fault: Fault) -> None:
    """The broker's log has the line by which the broker notices the fault."""
    assert fault.noticed_by is not None, f"{fault} names no log line by which a broker notices it"
    line = check_logged(fault.broker, fault.noticed_by, fault.injected_at)
    fault.broker.journal.write(
        "fault.noticed", broker=fault.broker.id, logged_at=line.at.isoformat(), line=line.text[:300]
    )


def check_lost(cut: PowerCut) -> None:
    """The power cut lost bytes that the broker had written and not synced.

    :raises Inconclusive: it lost none
    """
    if cut.lost_bytes <= 0:
        raise Inconclusive(f"{cut.broker} had synced all that it had written, so the power cut shows nothing")


def check_logged(
    broker: Broker,
    saying: str,
    since: datetime,
    timeout_s: float = timeouts.LOG_DIR_FAILURE_S,
    failure: type[JbodError] = PromiseBroken,
) -> LogLine:
    """The first line in the broker's log that matches.

    :param saying: a regular expression
    :param timeout_s: seconds that the broker may take (default: as for noticing a failed log dir)
    :param failure: what is raised without the line: Inconclusive if the line is no promise but a step of the case
    """
    line = await_until(
        lambda: broker.log.first(saying, since=since),
        timeout_s=timeout_s,
        what=f"{broker} to log /{saying}/",
        watch=broker.node.check_alive,
        failure=failure,
        hint=f"looked in {broker.log.path}",
    )
    assert line is not None
    return line


def check_notified(events: LogDirEvents, broker: Broker, *, left: int = 0) -> None:
    """ZooKeeper: the broker notified the controller of its failed log dir with one znode, which is gone (KIP-112).

    :param left: how many znodes are still there: 1 where there is no controller to read them
    """
    wanted = [{"version": 1, "broker": broker.id, "event": 1}]
    await_until(
        lambda: (list(events.seen().values()), events.left()),
        lambda found: found[0] == wanted and len(found[1]) == left,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"one notification {wanted[0]}, and {left} left",
        failure=PromiseBroken,
    )
    broker.journal.write("log_dir.notified", broker=broker.id, znodes=events.seen())


FLUSHED_TOO_LATE = r"(?s)Error while flushing log for \S+ in dir {path} .*ClosedChannelException"
"""The log line of KAFKA-19571 for a log dir that goes offline: a rolled segment was closed before its flush."""

READ_TIMES = 10
"""The least reads of each broker's MBeans. With fewer, a block without failures shows nothing."""


@dataclass(frozen=True, kw_only=True)
class LogDirStop:
    """A broker took a log dir offline, or started without it.

    :ivar text: the log line
    :ivar flushed_too_late: before this stop, and after any earlier one, the broker logged KAFKA-19571 for this log dir
    """

    broker: int
    path: str
    text: str
    flushed_too_late: bool

    def __str__(self) -> str:
        return f"broker {self.broker} logged: {self.text}"


def log_dir_stops(broker: Broker, since: datetime) -> list[LogDirStop]:
    """The log dirs that a broker stopped serving, by its log, oldest first."""
    flushed, stops = set[str](), list[LogDirStop]()
    for line in broker.log.lines(since=since):
        if late := re.search(FLUSHED_TOO_LATE.format(path=r"(\S+)"), line.text):
            flushed.add(late[1])
        if found := re.search(LOG_DIR_STOPPED.format(path=r"(\S+)"), line.text):
            known = "Stopping" in found[0] and found[1] in flushed  # a starting broker has flushed nothing yet
            stops.append(LogDirStop(broker=broker.id, path=found[1], text=line.text[:300], flushed_too_late=known))
            flushed.discard(found[1])
    return stops


@contextmanager
def no_log_dir_fails(cluster: Cluster, *, expected: Deviation | None = None) -> Iterator[Collection[str]]:
    """Inside the block, no broker counts a log dir as offline, and none logs that it stops serving one.

    A thread reads the MBeans of every live broker up to five times a second. The logs show what happened in between.
    Yields the offline log dirs that were counted so far; this should stay empty.

    :param expected: a known deviation of the build: a log dir must go offline for that reason, and for no other. Each
        log dir that a broker counts or stops serving must be one for which it logged KAFKA-19571 before. No log dir
        need go offline if the deviation does not show in every run or is open on this build
    :raises PromiseBroken: a log dir goes offline; raised from the block's error if the block fails, too. Or none does
        where one must
    :raises Inconclusive: a broker's MBeans were read too rarely
    """
    start = now()
    samples, counted = collections.Counter[int](), dict[str, set[tuple[int, str]]]()

    def sample() -> None:
        for broker in cluster.live_brokers():
            assert broker.mbeans is not None
            with contextlib.suppress(NoAnswer):
                metrics = broker.mbeans.describe_broker()
                samples[broker.id] += 1
                offline = [path for path, is_offline in metrics.log_dir_offline.items() if is_offline]
                if metrics.offline_log_dirs or offline:
                    seen = f"{broker} counted {metrics.offline_log_dirs} log dirs offline: {offline}"
                    unnamed = ["unnamed"] * (metrics.offline_log_dirs > len(offline))  # the count is read first
                    counted[seen] = {(broker.id, path) for path in (*offline, *unnamed)}

    def stops() -> list[LogDirStop]:
        """What the brokers logged.

        :raises PromiseBroken: see above
        """
        logged = [stop for broker in cluster.brokers for stop in log_dir_stops(broker, start)]
        known = [stop for stop in logged if expected and stop.flushed_too_late]
        forgiven = {(stop.broker, stop.path) for stop in known}
        wrong = [seen for seen, log_dirs in sorted(counted.items()) if not log_dirs <= forgiven]
        wrong += [str(stop) for stop in logged if stop not in known]
        if wrong and expected:
            raise PromiseBroken(f"a log dir went offline, and not by {expected.issue}: {'; '.join(wrong)}")
        if wrong:
            raise PromiseBroken(f"no fault was injected, and {'; '.join(wrong)}")
        return logged

    try:
        with in_background(sample, every_s=0.2) as errors:
            yield counted
            await_until(
                lambda: {broker.id: samples[broker.id] for broker in cluster.brokers},
                lambda times: bool(errors or counted) or min(times.values()) >= READ_TIMES,
                timeout_s=timeouts.PROGRESS_S,
                what=f"every broker's MBeans to have been read {READ_TIMES} times",
                failure=Inconclusive,
            )
    except Exception as error:
        try:
            stops()
        except PromiseBroken as broken:
            raise broken from error
        raise
    said = [str(stop) for stop in stops()]
    if errors:
        raise errors[0]
    if expected and (said or expected.deterministic):
        observe(expected, cluster, deviates=bool(said), seen="; ".join(said) or "all log dirs stay online")
    cluster.journal.write("log_dirs.watched", samples=dict(samples), counted=sorted(counted), said=said)


def check_ends(broker: Broker, *, exit_code: int, saying: str) -> LogLine:
    """The broker ends by itself, with this exit code and this message; returns the log line.

    :param saying: a regular expression of a line in its log since its last start
    """
    line = check_node_ends(broker.node, str(broker), broker.log, broker.started_at, exit_code=exit_code, saying=saying)
    broker.journal.write("broker.ended", broker=broker.id, exit_code=exit_code, line=line.text[:300])
    return line


def check_node_ends(node: Node, name: str, log: BrokerLog, since: datetime, *, exit_code: int, saying: str) -> LogLine:
    """The node ends by itself, with this exit code and this message; returns the log line.

    :param saying: a regular expression of a line in its log since then
    """
    node.expect_end()
    code = await_until(
        node.exit_code,
        lambda code: code is not None,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{name} to exit",
        failure=PromiseBroken,
        hint=log.tail,
    )
    line = log.first(saying, since=since)
    if code != exit_code or line is None:
        raise PromiseBroken(
            f"{name} ended with exit code {code} instead of {exit_code} and "
            f"{'logged' if line else 'did not log'} /{saying}/; its log ends with:\n{log.tail()}"
        )
    return line


def refuses_to_start(broker: Broker, *, saying: str) -> LogLine | None:
    """Wait until a broker that was just started ends or joins: its log line if it ends with code 1, None if it joins.

    :raises PromiseBroken: it does neither, or ends with another code or message (:func:`check_ends`)
    """

    def has_joined() -> bool:
        return broker.id in broker.describe_cluster().brokers

    await_until(
        lambda: broker.node.exit_code() is not None or has_joined(),
        timeout_s=timeouts.RECOVERY_S,
        what=f"{broker} to exit or to join the cluster",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
        hint=broker.log.tail,
    )
    return None if broker.node.exit_code() is None else check_ends(broker, exit_code=1, saying=saying)


@dataclass(kw_only=True)
class Outcome:
    """Whether the build deviated in a block of :func:`promised`; set when the block ends."""

    deviates: bool = False


@contextmanager
def promised(
    cluster: Cluster, *, unless: Deviation, seen: str, logged: Callable[[], LogLine | None] | None = None
) -> Iterator[Outcome]:
    """The block's checks must pass; on a build that is confirmed to deviate, they must fail exactly as the build does.

    Where the expectation is open, the build may do either.

    :param seen: a regular expression of the error that shows the deviation, exact enough that no other error matches
    :param logged: finds the log line without which the error does not show the deviation
    :raises PromiseBroken: a check fails on another build, or in another way; or none fails on a confirmed build
    """
    outcome = Outcome()
    broken: PromiseBroken | None = None
    try:
        yield outcome
    except PromiseBroken as error:
        line = logged() if logged else None
        if not re.search(seen, str(error)) or (logged and line is None):
            raise
        broken = error
        shown = f"{error}; logged: {line.text[:300]}" if line else str(error)
    else:
        shown = "the promise is kept"
    outcome.deviates = observe(unless, cluster, deviates=broken is not None, seen=shown, broken=broken)


def check_not_noticed(fault: Fault, log_dir: LogDir) -> None:
    """The broker did not log that it stops serving the log dir, and describes it as online."""
    broker = log_dir.broker
    line = broker.log.first(LOG_DIR_STOPPED.format(path=re.escape(str(log_dir.path))), since=fault.injected_at)
    if line is not None:
        raise PromiseBroken(f"{log_dir} gave no error, and {broker} took it offline: {line.text[:300]}")
    errors = [state.error for state in broker.describe_log_dirs() if state.path == str(log_dir.path) and state.error]
    if errors:
        raise PromiseBroken(f"{log_dir} gave no error, and {broker} describes it as {errors[0]}")


def check_led_by_another(partition: Partition, dead: Broker) -> None:
    """Another broker leads now, so the records that only the dead one has must be truncated.

    :raises Inconclusive: no broker leads, because the dead one was the last of the ISR: the others were paused too long
    """
    seen = await_until(
        partition.describe,
        lambda state: state.leader not in (None, dead.id) or state.isr == (dead.id,),
        timeout_s=timeouts.BROKER_FAILURE_S,
        what=f"{dead} not to lead {partition} any more",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    dead.journal.write("partition.led_anew", partition=str(partition), leader=seen.leader, isr=seen.isr)
    if seen.leader is None:
        raise Inconclusive(f"{dead} was the last of the ISR of {partition}: the others were paused for too long")


def check_records_deleted(partition: Partition, *, before: int) -> None:
    """The leader answers DeleteRecords, once all replicas that it still counts have deleted these records.

    It does not wait for a replica that was reassigned away, or for a future replica that is gone.
    """
    admin = partition.leader().admin
    await_until(
        lambda: admin.delete_records(partition.topic, partition.index, before, timeout_s=timeouts.REQUEST_S),
        lambda low: low == before,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"DeleteRecords of {partition} to be answered, which is once all of its replicas have deleted them",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )


def check_rebuilt(flip: BitsFlipped) -> None:
    """The flipped bit of an index or a segment is gone: Kafka has rebuilt the file."""
    if flip.still_flipped():
        raise PromiseBroken(f"{flip.broker} loaded {flip.target} with the flipped bit")


def check_delivery(workload: CaseWorkload) -> None:
    """Drain the healed cluster and judge the whole history: nothing is lost, duplicated or misplaced.

    A drain reads the leaders' logs only. So all replicas are compared, too, byte for byte: a follower with missing or
    other records would show only after the next election.

    :raises PromiseBroken: the verdict is invalid, or a replica differs from the others
    :raises Inconclusive: the verdict is unknown
    """
    check_verdict(workload)
    check_same_bytes(*(partition for topic in workload.topics for partition in topic.partitions))


def check_verdict(workload: CaseWorkload) -> None:
    """Drain the healed cluster: the judge's verdict on the whole history is valid.

    The verdict and the floors of the load also count where a scenario does not call this
    (:mod:`harness.runner.case_outcome`).

    :raises PromiseBroken: the verdict is invalid
    :raises Inconclusive: the verdict is unknown
    """
    verdict = workload.drain_and_judge()
    if verdict.verdict != "valid":
        raise {"invalid": PromiseBroken, "unknown": Inconclusive}[verdict.verdict]("; ".join(verdict.reasons))


def check_group_commits(journal: Journal, *, since: datetime | None = None, handovers: int = 1) -> None:
    """A group's acknowledged commits are kept: a member that is assigned a partition starts at its commit, or later.

    :param since: count assignments from then on; None: from the first
    :param handovers: the least number of assignments of partitions with an acknowledged commit
    :raises PromiseBroken: a member starts before the commit
    :raises Inconclusive: there were fewer such assignments, so the commits were not put to the test
    """
    given: dict[str, int] = {}
    went_on = []
    for event in sorted(journal.of(GroupEvent), key=lambda event: event.when):
        if isinstance(event, GroupRevoked):
            given |= {} if event.error else {key: end for key, end in event.committed.items() if end > 0}
        elif since is None or event.when >= since.timestamp():
            went_on += [(key, given[key], at) for key, at in event.committed.items() if key in given]
    if lost := [f"partition {key}: committed {end}, then {at}" for key, end, at in went_on if at < end]:
        raise PromiseBroken(f"the group's acknowledged commits are lost: {'; '.join(lost)}")
    journal.write("group.went_on", times=len(went_on))
    if len(went_on) < handovers:
        raise Inconclusive(
            f"partitions with an acknowledged commit changed hands {len(went_on)} times, instead of at least "
            f"{handovers}{f' since {since.isoformat()}' if since else ''}: the group's commits were not put to the test"
        )


T = TypeVar("T")


def check_settings(broker: Broker, wanted: Mapping[str, str | None]) -> None:
    """The broker's own dynamic settings become these; None stands for a setting that is not set."""

    def seen() -> dict[str, str | None]:
        own = broker.admin.dynamic_configs(broker.id).own
        return {setting: own.get(setting) for setting in wanted}

    await_until(
        seen,
        lambda seen: seen == wanted,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the settings of {broker} to be {dict(wanted)}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_refused(ask: Callable[[], object], error: str, saying: str) -> None:
    """Kafka refuses the request with this error.

    :param saying: a regular expression of the error's message
    """
    try:
        ask()
    except Refused as refusal:
        if refusal.error == error and re.search(saying, refusal.message or ""):
            return
        raise PromiseBroken(f"{refusal}, instead of {error} with /{saying}/") from refusal
    raise PromiseBroken(f"the request succeeded, where {error} is promised")


def check_not_enough_replicas(topic: Topic, leader: Broker) -> None:
    """The leader refuses a record with acks=all before it is written, since the ISR is too small.

    :raises PromiseBroken: the record is acked, refused with another error, or not answered
    :raises Inconclusive: it is not answered, and this machine is too busy to say why
    """
    own_part = OwnPart(topic.cluster, "answer a record", needs_all=False)
    outcomes: list[KafkaError | None] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        outcomes.append(error)

    client = Producer({**leader.bootstrap.librdkafka, "acks": "all", "retries": 0})
    client.produce(topic.name, b"too few replicas", partition=0, on_delivery=note)
    client.flush(timeouts.PROGRESS_S)
    if not outcomes:
        raise own_part.unserved(f"{leader} did not answer a record within {timeouts.PROGRESS_S:.0f} s")
    [error] = outcomes
    if error is None or error.code() != KafkaError.NOT_ENOUGH_REPLICAS:
        raise PromiseBroken(
            f"{leader} has fewer replicas in the ISR of {topic} than min.insync.replicas, and "
            f"{'acked a record' if error is None else f'refused a record with {error.name()}'}"
        )
    leader.journal.write("record.refused", broker=leader.id, error=error.name())


def check_promised_or_known(deviation: Deviation, cluster: Cluster, seen: T, *, promised: T, known: T) -> bool:
    """The value seen is the promised one; on a confirmed build it is the known one; where that is open, either.

    :returns: whether the build deviates
    :raises PromiseBroken: it is another value; "no longer deviates" where a confirmed build keeps the promise
    """
    expected = expectation_of(deviation, cluster)
    either = {Expectation.NONE: [promised], Expectation.CONFIRMED: [known], Expectation.OPEN: [promised, known]}
    wrong = f"{deviation.promised}; seen: {seen}, instead of {' or '.join(map(str, either[expected]))}"
    if seen not in (promised, known):
        raise PromiseBroken(wrong)
    return observe(deviation, cluster, deviates=seen == known, seen=seen, broken=PromiseBroken(wrong))
