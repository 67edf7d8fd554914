"""What goes on beside a scenario: steps done again and again by threads, while the scenario does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness import timeouts
from harness.errors import Inconclusive


@contextmanager
def in_background(*steps: Callable[[], object], every_s: float) -> Iterator[list[Exception]]:
    """Each step is done again and again inside the block, by a thread of its own, with so long a pause after each time.

    Yields the errors: a step that raised is not done again. What they mean is for the caller to say, after the block.
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
            errors.append(Inconclusive(f"a step that went on meanwhile has not ended for {timeouts.RECOVERY_S:g} s"))
