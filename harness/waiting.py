"""The only poll loop and the only sleep.

Over tenacity, which is imported nowhere else. A wait returns the value that it saw, does not sleep after success,
runs on the monotonic clock, and ends at once when a process that it watches has died. Its error says what was
awaited, for how long and the last value seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from harness.errors import AwaitTimeout, JbodError

T = TypeVar("T")

POLL_S = 0.05


def _is_true(value: object) -> bool:
    return bool(value)


def let_pass(seconds: float, *, since: float | None = None) -> None:
    """Wait until this much time has passed; only where time itself is the fault (a pause of a given length).

    :param since: an instant on the monotonic clock; None is now
    """
    start = time.monotonic() if since is None else since
    tenacity.nap.sleep(max(0.0, start + seconds - time.monotonic()))


def await_until(
    observe: Callable[[], T],
    until: Callable[[T], bool] = _is_true,
    *,
    timeout_s: float,
    what: str,
    poll_s: float = POLL_S,
    retry_on: tuple[type[BaseException], ...] = (),
    watch: Callable[[], object] | None = None,
    failure: Callable[[str], JbodError] = AwaitTimeout,
    hint: str | Callable[[], str] = "",
) -> T:
    """Call ``observe`` until ``until`` holds of its answer, and return that answer.

    :param observe: reads the value once; must itself be bounded in time
    :param timeout_s: seconds on the monotonic clock
    :param what: what is awaited, as the end of the sentence "waited 3.0 s for …"
    :param poll_s: seconds between two observations; longer where one takes longer, so that what is awaited gets its
        share of the processor
    :param retry_on: errors of ``observe`` that mean "not yet"; any other error is raised as it is
    :param watch: called before each observation; raises (say :class:`~harness.errors.NodeDied`) to end the wait
    :param failure: what a time-out means here: :class:`~harness.errors.AwaitTimeout` for the harness's own
        affairs, :class:`~harness.errors.PromiseBroken` for something that Kafka promises, or whoever can tell
    :param hint: where to look next; appended to the error
    """
    last: object = "nothing seen yet"
    took_s = 0.0

    def step() -> tuple[bool, T | None]:
        nonlocal took_s
        began = time.monotonic()
        try:
            return look()
        finally:
            took_s = time.monotonic() - began

    def look() -> tuple[bool, T | None]:
        nonlocal last
        if watch is not None:
            watch()
        try:
            value = observe()
        except retry_on as error:
            last = f"{type(error).__name__}: {error}"
            return False, None
        last = value
        return until(value), value

    try:
        _, value = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda answer: not answer[0]),
            wait=lambda _state: max(poll_s, took_s),
            stop=tenacity.stop_after_delay(timeout_s),
        )(step)
    except tenacity.RetryError as error:
        more = hint() if callable(hint) else hint
        raise failure(f"waited {timeout_s:.1f} s for {what}; last seen: {last}{'; ' + more if more else ''}") from error
    return value  # type: ignore[return-value]
