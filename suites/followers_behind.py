"""Injects faults while the followers are behind the leader.

On a fast machine every follower has every record when a leader fails. A broker that acks too early, or shows records
too early, then does no harm. Here the followers are held (paused) until the leader has records that they lack. Then
the fault is injected, and the followers go on. They stay in the ISR: a hold is shorter than their sessions and than
``replica.lag.time.max.ms``. etcd and Jepsen pause for longer; that would change the leader.

While a follower in the ISR is held, no record that was sent since then may be acked with ``acks=all``, or read
(:mod:`harness.measure.premature`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from typing import TypeVar

from faults.base import Fault, injected
from faults.log_dir import LogDirFault
from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, Inconclusive
from harness.events import FollowersHeld
from harness.journal import now
from harness.waiting import await_until

_HELD_S = 1.2
"""The most seconds of a hold: less than half of the shortest session (``broker.session.timeout.ms`` of 3 s).

A ZooKeeper client pings each third of its session of 4 s, and gives up its connection after two thirds without an
answer. So 1.3 s is the longest that it may stand still at any moment.
"""
SHRUNK = r"Partition {partition} .*Shrinking ISR"
"""The leader's log line. In ZooKeeper mode metadata has the smaller ISR some seconds later only."""
_KNOWN_AFTER_S = 10.0
"""Seconds after which metadata has an ISR that shrank (``isr.change`` notifications: 5 s at most)."""
_LEAST_S = 0.3
"""Seconds that followers are held at least, so that an ack or a read that comes too early has the time to arrive."""
_TRIES = 4
_SOON_S, _AHEAD_S = 0.5, 1.0
"""Seconds in which a leader must append something; the second is for the last try. Ten batches a second are sent."""
_BETWEEN_S = 2 * _HELD_S
"""The most seconds between two holds."""

F = TypeVar("F", bound=Fault)


class _Hold:
    """Brokers that are paused, until :meth:`end` or for at most :data:`_HELD_S`."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._held: list[Broker] = []
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._timer = threading.Timer(_HELD_S, self.end)
        self._timer.daemon = True
        self._timer.start()
        for broker in brokers:
            with self._lock:
                self._held.append(broker)
                broker.pause()

    def left_s(self) -> float:
        """Seconds until it ends by itself."""
        return max(0.0, self._began + _HELD_S - time.monotonic())

    def held_s(self) -> float:
        """Seconds from its beginning to its end, or until now."""
        return (self._ended or time.monotonic()) - self._began

    def ended_for_s(self) -> float:
        """Seconds since it ended; 0 before that."""
        return 0.0 if self._ended is None else time.monotonic() - self._ended

    def end(self) -> None:
        """Let the brokers continue; also twice."""
        self._timer.cancel()
        with self._lock:
            for broker in self._held:
                broker.resume()
            self._held.clear()
            self._ended = self._ended or time.monotonic()


@contextmanager
def injected_ahead(topic: Topic, *faults: F) -> Iterator[F]:
    """Like :func:`faults.base.injected`, but first the leaders that fail get ahead (:func:`ahead_of_followers`)."""
    with ExitStack() as undone:
        with ahead_of_followers(topic, *faults):
            first = undone.enter_context(injected(*faults))
        yield first


@contextmanager
def ahead_of_followers(topic: Topic, *faults: Fault) -> Iterator[None]:
    """Inside the block, leaders of the topic that the faults will hit have records that their followers do not have.

    Where the faults hit no leader, or no follower can be held, this does nothing. A leader that gets no records in time
    is noted in the journal (``followers.held`` with ``ahead`` false); the block comes all the same.
    """
    led = {partition: log_dir for partition in topic.partitions if (log_dir := _hit(faults, partition))}
    hit = {fault.broker for fault in faults} | {log_dir.broker for log_dir in led.values()}
    able = [broker for broker in topic.cluster.live_brokers() if broker not in hit]
    theirs = {
        partition: [log_dir for broker in able if (log_dir := broker.log_dir_of(partition.topic, partition.index))]
        for partition in led
    }
    followers = {log_dir.broker for log_dirs in theirs.values() for log_dir in log_dirs}
    if not followers or topic.cluster.spec.combined:  # a paused combined node is a controller less
        yield
        return
    hold = _hold_behind(led, theirs, sorted(followers, key=lambda broker: broker.id))
    try:
        yield
    finally:
        hold.end()


def _hold_behind(
    led: Mapping[Partition, LogDir], theirs: Mapping[Partition, Sequence[LogDir]], followers: Sequence[Broker]
) -> _Hold:
    """Hold the followers until a leader has records alone, and note it; after a few tries, whether one has or not.

    A leader that waits for its followers already reads no request of the producer, so nothing would be sent in the
    hold. Then the followers go on until the leader has appended more.
    """
    for left in reversed(range(_TRIES)):
        before = _all_written(led)
        hold = _Hold(followers)
        try:
            if (not left or not _is_any_ahead(led, theirs)) and _get_ahead(led, theirs, hold, is_last=not left):
                return hold
        except BaseException:
            hold.end()
            raise
        if left:
            hold.end()
            _await_appended(led, theirs, before, hold)
    return hold


def _await_appended(
    led: Mapping[Partition, LogDir], theirs: Mapping[Partition, Sequence[LogDir]], before: int, hold: _Hold
) -> None:
    """Wait until the leaders have more bytes than before, and the followers have them, too; not for long.

    The wait is as long as the hold at least, so that the followers can renew their sessions before the next one.
    """
    with suppress(AwaitTimeout):
        await_until(
            lambda: (
                hold.ended_for_s() >= hold.held_s() and _all_written(led) > before and not _is_any_ahead(led, theirs)
            ),
            timeout_s=_BETWEEN_S,
            what="the leaders to append more, and the followers to have it",
        )


def _hit(faults: Sequence[Fault], partition: Partition) -> LogDir | None:
    """The log dir of the partition's leader, if one of the faults hits it or its broker."""
    leader = partition.leader()
    ours = [fault for fault in faults if fault.broker == leader]
    log_dir = partition.log_dir_on(leader) if ours else None
    hit = any(not isinstance(fault, LogDirFault) or fault.log_dir == log_dir for fault in ours)
    return log_dir if hit else None


def _get_ahead(
    led: Mapping[Partition, LogDir], theirs: Mapping[Partition, Sequence[LogDir]], hold: _Hold, *, is_last: bool
) -> bool:
    """Wait until a leader has records alone, and note for which partitions a held broker is in the ISR.

    One batch is all that it gets: a broker reads a client's next request when it has answered the one before.

    :raises Inconclusive: a partition had held followers in its ISR, and has none there any more
    """
    held_at, began = now(), time.monotonic()
    held = {log_dir.broker.id for log_dirs in theirs.values() for log_dir in log_dirs}
    in_sync = _with_in_sync(led, held, held_at)

    def ahead_for_long() -> bool:
        return _is_any_ahead(led, theirs) and time.monotonic() - began >= _LEAST_S

    ahead = True
    try:
        await_until(
            ahead_for_long,
            timeout_s=min(_AHEAD_S if is_last else _SOON_S, hold.left_s()),
            what="a leader to append a record that its followers do not have",
        )
    except AwaitTimeout:
        if not is_last:
            return False
        ahead = False
    behind = _with_in_sync(led, held, held_at)
    if lost := {*in_sync} - {*behind}:
        raise Inconclusive(
            f"while their brokers were held for {time.monotonic() - began:.1f} s, all followers of "
            f"{', '.join(map(str, lost))} left the ISR"
        )
    until = now()
    if hold.left_s() > 0:  # else they may have fetched meanwhile
        first = next(iter(led))
        first.cluster.journal.write(
            FollowersHeld.kind,
            brokers=sorted(held),
            topic=first.topic,
            partitions=[partition.index for partition in behind],
            held_at=held_at.isoformat(),
            until=until.isoformat(),
            seconds=time.monotonic() - began,
            ahead=ahead,
        )
    return ahead


def _is_any_ahead(led: Mapping[Partition, LogDir], theirs: Mapping[Partition, Sequence[LogDir]]) -> bool:
    """Whether a leader has bytes that none of the followers has."""
    return any(
        _written(partition, log_dir) > max(_written(partition, each) for each in theirs[partition])
        for partition, log_dir in led.items()
        if theirs[partition]
    )


def _all_written(led: Mapping[Partition, LogDir]) -> int:
    return sum(_written(partition, log_dir) for partition, log_dir in led.items())


def _written(partition: Partition, log_dir: LogDir) -> int:
    """The bytes in a replica's segments."""
    folder = log_dir.replica_dir(partition.topic, partition.index)
    return sum(segment.stat().st_size for segment in folder.glob("*.log"))


def _with_in_sync(led: Mapping[Partition, LogDir], held: set[int], at: datetime) -> list[Partition]:
    """The partitions that have held brokers in their ISR."""
    return [
        partition
        for partition, log_dir in led.items()
        if _in_sync(partition, log_dir.broker) & held and not _shrank(partition, log_dir.broker, at)
    ]


def _in_sync(partition: Partition, leader: Broker) -> set[int]:
    """The other members of the ISR, by the leader itself."""
    return {*partition.describe(leader).isr} - {leader.id}


def _shrank(partition: Partition, leader: Broker, at: datetime) -> bool:
    """Whether the leader shrank the ISR since shortly before."""
    return (
        leader.log.first(SHRUNK.format(partition=partition), since=at - timedelta(seconds=_KNOWN_AFTER_S)) is not None
    )
