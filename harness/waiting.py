"""The only poll loop, and the only sleep except the sampler's in :mod:`harness.crowding`.

It does not use tenacity, which neither keeps the last value nor watches a process; wrapping tenacity took more code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from harness.crowding import Deadline
from harness.errors import AwaitTimeout, Inconclusive, JbodError, PromiseBroken
from harness.journal import note

T = TypeVar("T")

POLL_S = 0.05
CROWDED = "on a crowded machine"
"""Begins the message of a time-out on a crowded machine, with the figures."""
TOO_SLOW = "this machine is too slow"
"""Part of the reason of an unknown case in which a broker lost its session, or clients did not get through."""
NOTED_AFTER_S = 1.0
"""Seconds after which a wait is in the journal. Most waits are shorter."""


class _Awaited(threading.local):
    """The seconds that each thread has waited for Kafka."""

    seconds = 0.0


_awaited = _Awaited()
_longer_s = 0.0


def awaited_s() -> float:
    """Return the seconds that this thread has waited for Kafka so far.

    A wait counts until the observation that ends it begins, because that observation is the harness's own work. The
    observations before it count: Kafka was not yet done. A wait within a wait does not count twice.
    """
    return _awaited.seconds


def let_pass(seconds: float, *, since: float | None = None) -> None:
    """Sleep until this much time has passed; only where the time itself is wanted, such as a pause of a given length.

    The sleep counts in :func:`awaited_s`: a session expires, or a fault lasts.

    :param since: an instant on the monotonic clock; None is now
    """
    start = time.monotonic() if since is None else since
    began = time.monotonic()
    time.sleep(max(0.0, start + seconds - began))
    _awaited.seconds += time.monotonic() - began


@contextmanager
def waiting_longer(seconds: float) -> Iterator[None]:
    """Inside the block, in every thread, each wait for Kafka may take so many seconds longer.

    Time-outs allow for the fast settings of brokers (:mod:`harness.cluster.profile`).
    """
    global _longer_s
    before, _longer_s = _longer_s, seconds
    try:
        yield
    finally:
        _longer_s = before


def await_until(
    observe: Callable[[], T],
    until: Callable[[T], bool] = bool,
    *,
    timeout_s: float,
    what: str,
    poll_s: float = POLL_S,
    retry_on: tuple[type[BaseException], ...] = (),
    watch: Callable[[], object] | None = None,
    failure: Callable[[str], JbodError] = AwaitTimeout,
    hint: str | Callable[[], str] = "",
    for_kafka: bool = True,
) -> T:
    """Call ``observe`` until ``until`` is true of its value, and return that value.

    A wait that is longer than :data:`NOTED_AFTER_S` is in the journal of the case, so that a reader sees what the
    scenario awaits: ``wait.long`` when it becomes long, and ``wait.over`` with its seconds.

    :param observe: reads the value once; must itself be bounded in time
    :param timeout_s: seconds on the monotonic clock, and more on a crowded machine (:mod:`harness.crowding`) or with
        slow settings of brokers (:func:`waiting_longer`); a value that is observed later still counts
    :param what: what is awaited, as the end of the sentence "waited 3.0 s for …"
    :param poll_s: seconds between two observations. If an observation takes longer, the pause after it is as long, so
        that what is awaited gets its share of the processor
    :param retry_on: errors of ``observe`` that mean "not yet"; any other error is raised as it is
    :param watch: called before each observation; raises, for example :class:`~harness.errors.NodeDied`, to end the wait
    :param failure: the error of a time-out: :class:`~harness.errors.AwaitTimeout` for what the harness does,
        :class:`~harness.errors.PromiseBroken` for what Kafka promises under a fault, and
        :meth:`harness.cluster.own_part.OwnPart.undone` for what it must do by itself
    :param hint: where to look next, appended to the error; a function is called after the wait
    :param for_kafka: whether Kafka must do what is awaited, so that the wait counts in :func:`awaited_s`
    :raises JbodError: what ``failure`` makes, with ``what``, ``timeout_s``, the last value seen and the hint
    :raises Inconclusive: ``failure`` makes a :class:`~harness.errors.PromiseBroken`, but on a crowded machine the last
        observation failed: a tool that did not get to run proves nothing about Kafka
    """
    if for_kafka:
        timeout_s += _longer_s
    deadline = Deadline(timeout_s)
    start, before_s = time.monotonic(), _awaited.seconds
    last: object = "nothing seen yet"
    noted = False
    try:
        while True:
            began, answered = time.monotonic(), False
            if for_kafka:
                _awaited.seconds = before_s + began - start
            if watch is not None:
                watch()
            try:
                value = observe()
            except retry_on as error:
                last = f"{type(error).__name__}: {error}"
            else:
                if until(value):
                    return value
                last, answered = value, True
            if (crowding := deadline.passed()) is not None:
                if for_kafka:
                    _awaited.seconds = before_s + time.monotonic() - start
                break
            if not noted and deadline.waited_s > NOTED_AFTER_S:
                noted = True
                note("wait.long", what=what, timeout_s=timeout_s)
            time.sleep(max(poll_s, time.monotonic() - began))
    finally:
        if noted:
            note("wait.over", what=what, waited_s=round(deadline.waited_s, 3))
    waited_s = deadline.waited_s
    more = hint() if callable(hint) else hint
    message = f"waited {timeout_s:.1f} s for {what}; last seen: {last}{'; ' + more if more else ''}"
    if crowding.stretch == 1.0:
        raise failure(message)
    # The crowding comes first in the text: known deviations are recognised by the last value seen, at its end.
    late = failure(f"{CROWDED} ({crowding}), {waited_s:.1f} s in all: {message}")
    raise late if answered or not isinstance(late, PromiseBroken) else Inconclusive(str(late))
