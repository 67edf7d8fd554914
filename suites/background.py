"""Repeats steps in threads while a scenario runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness import timeouts
from harness.errors import Inconclusive


@contextmanager
def in_background(*steps: Callable[[], object], every_s: float) -> Iterator[list[Exception]]:
    """Inside the block, run each step again and again in a thread of its own.

    A step that raises is not run again. Its error is added to the list that this yields; the caller looks at the list
    after the block.

    :param every_s: seconds between the end of a step and its next run
    """
    ended, errors = threading.Event(), list[Exception]()

    def again_and_again(step: Callable[[], object]) -> None:
        try:
            step()
            while not ended.wait(every_s):
                step()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=again_and_again, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        ended.set()
        for thread in threads:
            thread.join(timeouts.RECOVERY_S)
        if any(thread.is_alive() for thread in threads):
            errors.append(Inconclusive(f"a step in the background has not ended for {timeouts.RECOVERY_S:g} s"))
