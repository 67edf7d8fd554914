"""What "validate client/cluster state" of KIP-112's test plan means, as checks that a scenario calls by name.

"Brokers are all running and show expected error message; topic description shows expected results for all topics; a
pair of producer and consumer can successfully produce/consume from a topic without message loss or duplication."
Running brokers, topic description and log dirs are :meth:`suites.state_check.World.check`; the message is
:func:`check_noticed`; the pair without loss or duplication is :func:`check_delivery`.
"""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from faults.base import Fault
from faults.log_dir import LOG_DIR_STOPPED
from faults.segment import BitsFlipped
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.quorum.zookeeper import LogDirEvents
from harness.errors import Inconclusive, PromiseBroken
from harness.events import GroupEvent, GroupRevoked
from harness.journal import Journal, now
from harness.kafka.admin import Refused
from harness.kafka.broker_log import LogLine
from harness.kafka.connection import NoAnswer
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Deviation, Expectation
from harness.waiting import await_until
from suites.background import in_background
from suites.observing import expectation_of, observe
from suites.on_disk import check_same_bytes


def check_noticed(fault: Fault) -> None:
    """The broker's log shows the message by which it says that it noticed the fault.

    :raises PromiseBroken: it doesn't, within the time that noticing may take
    """
    assert fault.noticed_by is not None, f"{fault} names no log line by which a broker notices it"
    line = check_says(fault.broker, fault.noticed_by, fault.injected_at)
    fault.broker.journal.write(
        "fault.noticed", broker=fault.broker.id, logged_at=line.at.isoformat(), line=line.text[:300]
    )


def check_says(broker: Broker, saying: str, since: datetime, timeout_s: float = timeouts.LOG_DIR_FAILURE_S) -> LogLine:
    """The broker's log has such a line (a regular expression); the first one.

    :param timeout_s: what the broker may take (default: as for noticing a failed log dir)
    :raises PromiseBroken: it hasn't
    """
    line = await_until(
        lambda: broker.log.first(saying, since=since),
        timeout_s=timeout_s,
        what=f"{broker} to log /{saying}/",
        watch=broker.node.check_alive,
        failure=PromiseBroken,
        hint=f"looked in {broker.log.path}",
    )
    assert line is not None
    return line


def check_notified(events: LogDirEvents, broker: Broker, *, left: int = 0) -> None:
    """ZooKeeper: the broker told the controller that a log dir failed, in one znode, which is gone (KIP-112).

    :param left: or which is still there to be read, since there is no controller: 1
    :raises PromiseBroken: there was none, it said something else, or it is still there, or gone too soon
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
"""What KAFKA-19571 says of the log dir that it takes offline: a rolled segment's files were closed before its flush."""


READ_TIMES = 10
"""A minute in which nothing fails is one in which somebody looked."""


@contextmanager
def no_log_dir_fails(cluster: Cluster, *, expected: Deviation | None = None) -> Iterator[Collection[str]]:
    """Inside the block no broker ever counts a log dir offline, nor says in its log that it stops serving one.

    The MBeans of every broker that runs are read some times a second, at the end until it was often enough; the logs
    have what happened in between. Yields what was counted so far, which should stay empty.

    :param expected: what is known of the build: then a log dir must go offline (or may, if it isn't always so, or the
        build is newer than those that do), and each for that reason
    :raises PromiseBroken: one does, also where the block fails for that reason; or none does where one must
    :raises Inconclusive: a broker's MBeans could hardly ever be read
    """
    start = now()
    samples, counted = collections.Counter[int](), set[str]()

    def sample() -> None:
        for broker in cluster.live_brokers():
            assert broker.mbeans is not None
            with contextlib.suppress(NoAnswer):
                metrics = broker.mbeans.describe_broker()
                samples[broker.id] += 1
                offline = [path for path, is_offline in metrics.log_dir_offline.items() if is_offline]
                if metrics.offline_log_dirs or offline:
                    counted.add(f"{broker} counted {metrics.offline_log_dirs} log dirs offline: {offline}")

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
    finally:
        stopped = LOG_DIR_STOPPED.format(path=r"(\S+)")
        said = {
            f"{broker} said: {line.text[:300]}": broker.log.first(
                FLUSHED_TOO_LATE.format(path=re.escape(str(path[1]))), since=start
            )
            for broker in cluster.brokers
            for line in broker.log.lines(since=start)
            if (path := re.search(stopped, line.text))
        }
        otherwise = [each for each, cause in said.items() if cause is None]
        if (said or counted) and not expected:
            raise PromiseBroken(f"nothing was done to any log dir, and {'; '.join([*sorted(counted), *said])}")
        if expected and (otherwise or (counted and not said)):
            raise PromiseBroken(
                f"a log dir went offline, and not by {expected.issue}: {'; '.join(otherwise or sorted(counted))}"
            )
    if errors:
        raise errors[0]
    if expected and (said or expected.deterministic):
        observe(expected, cluster, deviates=bool(said), seen="; ".join(said) or "all log dirs stay online")
    cluster.journal.write("log_dirs.watched", samples=dict(samples), counted=sorted(counted), said=[*said])


def check_ends(broker: Broker, *, exit_code: int, saying: str) -> LogLine:
    """The broker ends by itself, with this exit code and this message; the line that has it.

    :param saying: a regular expression of a line of its log since its last start
    :raises PromiseBroken: it goes on, or ends otherwise
    """
    broker.node.let_end()
    code = await_until(
        broker.node.exit_code,
        lambda code: code is not None,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{broker} to exit",
        failure=PromiseBroken,
        hint=broker.log.tail,
    )
    line = broker.log.first(saying, since=broker.started_at)
    if code != exit_code or line is None:
        raise PromiseBroken(
            f"{broker} ended with exit code {code} instead of {exit_code} and "
            f"{'said' if line else 'did not say'} /{saying}/; its log ends with:\n{broker.log.tail()}"
        )
    broker.journal.write("broker.ended", broker=broker.id, exit_code=code, line=line.text[:300])
    return line


def refuses_to_start(broker: Broker, *, exit_code: int, saying: str) -> LogLine | None:
    """Whether a broker that was started just now ends by itself, as :func:`check_ends` has it: the line that has the
    message; None where it joins the cluster.

    :raises PromiseBroken: it does neither, or ends otherwise
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
    return None if broker.node.exit_code() is None else check_ends(broker, exit_code=exit_code, saying=saying)


@dataclass(kw_only=True)
class Outcome:
    """What came of a block of :func:`promised`, once it has ended."""

    deviates: bool = False


@contextmanager
def promised(cluster: Cluster, *, unless: Deviation, seen: str) -> Iterator[Outcome]:
    """What the block checks must hold, and on builds with the deviation must be broken as these are known to break it.

    Builds that are newer than those may do either.

    :param seen: how its check then words what it sees, as a regular expression so exact that it fits nothing else
    :raises PromiseBroken: it does not hold, on any other build or in any other way; or it does where it is known not to
    """
    outcome = Outcome()
    broken: PromiseBroken | None = None
    try:
        yield outcome
    except PromiseBroken as error:
        if not re.search(seen, str(error)):
            raise
        broken = error
    told = broken or "the promise is kept"
    outcome.deviates = observe(unless, cluster, deviates=broken is not None, seen=told, broken=broken)


def check_not_noticed(fault: Fault, log_dir: LogDir) -> None:
    """The broker never said that it stopped serving the log dir, and describes it as good.

    :raises PromiseBroken: it took it offline
    """
    broker = log_dir.broker
    line = broker.log.first(LOG_DIR_STOPPED.format(path=re.escape(str(log_dir.path))), since=fault.injected_at)
    if line is not None:
        raise PromiseBroken(f"{log_dir} gave no error, and {broker} took it offline: {line.text[:300]}")
    errors = [state.error for state in broker.describe_log_dirs() if state.path == str(log_dir.path) and state.error]
    if errors:
        raise PromiseBroken(f"{log_dir} gave no error, and {broker} describes it as {errors[0]}")


def check_rebuilt(flip: BitsFlipped) -> None:
    """The flipped bit of an index or a segment is gone: Kafka has made anew what it could not trust.

    :raises PromiseBroken: it is still there
    """
    if flip.still_flipped():
        raise PromiseBroken(f"{flip.broker} loaded {flip.target} as it was, with a bit that had flipped")


def check_delivery(workload: CaseWorkload) -> None:
    """Drain the healed cluster and judge the whole history: nothing lost, nothing twice, nothing out of place.

    What a drain reads is the leaders' logs; so all replicas are compared with them too, byte for byte: one that came
    back with a hole, or with other records, would else be found by the next election.

    The judge's word, and the floors that the load must have reached, bind the case whether or not a scenario heeds them
    (:mod:`harness.runner.case_outcome`); here they end it.

    :raises PromiseBroken: the verdict is invalid, or a replica is not as the others
    :raises Inconclusive: it is unknown
    """
    verdict = workload.drain_and_judge()
    if verdict.verdict != "valid":
        raise {"invalid": PromiseBroken, "unknown": Inconclusive}[verdict.verdict]("; ".join(verdict.reasons))
    check_same_bytes(*(partition for topic in workload.topics for partition in topic.partitions))
    for cluster in {topic.cluster for topic in workload.topics}:
        check_handlers(cluster.brokers)


def check_commits(journal: Journal, *, since: datetime | None = None) -> int:
    """A group's acknowledged commits are kept: whoever is assigned a partition that another gave away goes on at what
    was committed then, or later. Returns how often that was so.

    :param since: when assignments begin to count; None: from the first
    :raises PromiseBroken: an acknowledged commit is gone
    """
    given: dict[str, int] = {}
    went_on = []
    for event in sorted(journal.of(GroupEvent), key=lambda event: event.when):
        if isinstance(event, GroupRevoked):
            given |= {} if event.error else {key: end for key, end in event.committed.items() if end > 0}
        elif since is None or event.when >= since.timestamp():
            went_on += [(key, given[key], at) for key, at in event.committed.items() if key in given]
    if lost := [f"partition {key}: committed {end}, then {at}" for key, end, at in went_on if at < end]:
        raise PromiseBroken(f"the group's commits were acknowledged, and are gone: {'; '.join(lost)}")
    journal.write("group.went_on", times=len(went_on))
    return len(went_on)


HANDLER_DIED = r"\[LogDirFailureHandler\]: Error due to"


def check_handlers(brokers: Iterable[Broker]) -> None:
    """No broker's thread that takes failed log dirs offline has died, as in KAFKA-19289: it would take none any more.

    :raises PromiseBroken: one has
    """
    for broker in brokers:
        if (line := broker.log.first(HANDLER_DIED)) is not None:
            raise PromiseBroken(
                f"the thread of {broker} that takes failed log dirs offline has died: {line.text[:300]}"
            )


T = TypeVar("T")


def check_settings(broker: Broker, wanted: Mapping[str, str | None]) -> None:
    """The broker's own dynamic settings come to be these; None: it has none of that name.

    :raises PromiseBroken: they don't
    """

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
    """Kafka refuses what it is asked, with this error.

    :param saying: a regular expression of its message
    :raises PromiseBroken: it does it, or refuses otherwise
    """
    try:
        ask()
    except Refused as refusal:
        if refusal.error == error and re.search(saying, refusal.message or ""):
            return
        raise PromiseBroken(f"{refusal}, instead of {error} with /{saying}/") from refusal
    raise PromiseBroken(f"it was done, where {error} is promised")


def check_known(deviation: Deviation, cluster: Cluster, seen: T, *, promised: T, known: T) -> bool:
    """What was seen is what the KIP promises; of a build that is known to deviate, what it is known to do; of one that
    is newer, either. Returns whether the build deviates.

    :raises PromiseBroken: it isn't; with "no longer deviates" where such a build keeps the promise
    """
    expected = expectation_of(deviation, cluster)
    either = {Expectation.NONE: [promised], Expectation.CONFIRMED: [known], Expectation.OPEN: [promised, known]}
    wrong = f"{deviation.promised}; seen: {seen}, instead of {' or '.join(map(str, either[expected]))}"
    if seen not in (promised, known):
        raise PromiseBroken(wrong)
    return observe(deviation, cluster, deviates=seen == known, seen=seen, broken=PromiseBroken(wrong))
