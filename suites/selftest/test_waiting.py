"""The poll loop returns the value that it saw, fails at once if waiting is pointless, and names what it waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from harness.crowding import PATIENCE
from harness.errors import AwaitTimeout, Inconclusive, NodeDied, PromiseBroken, ToolFailed
from harness.events import Note
from harness.journal import Journal
from harness.waiting import NOTED_AFTER_S, await_until, awaited_s, let_pass


def test_it_returns_the_value_that_it_saw() -> None:
    numbers = count()
    assert await_until(lambda: next(numbers), lambda n: n >= 3, timeout_s=5, what="three", poll_s=0.001) == 3


def test_a_time_out_says_what_and_the_last_value() -> None:
    with pytest.raises(AwaitTimeout, match=r"waited 0\.0 s for a leader; last seen: none yet; see the log"):
        await_until(lambda: "none yet", lambda _: False, timeout_s=0.02, what="a leader", hint="see the log")


def test_a_long_wait_is_in_the_journal_of_the_case() -> None:
    """It has the beginning and the end of the wait; short waits are in no journal, and a closed one gets nothing."""
    journal, start = Journal(None), time.monotonic()
    journal.follow_process()

    def wait(seconds: float, what: str) -> None:
        began = time.monotonic()
        await_until(lambda: time.monotonic() > began + seconds, timeout_s=30.0, what=what)

    wait(0.1, "a moment")
    wait(NOTED_AFTER_S + 0.2, "a leader")
    journal.close()
    wait(NOTED_AFTER_S + 0.2, "another leader")
    notes = [event for event in journal.events if isinstance(event, Note)]
    assert [(note.kind, note.fields["what"]) for note in notes] == [
        ("wait.long", "a leader"),
        ("wait.over", "a leader"),
    ]
    waited_s = notes[1].fields["waited_s"]
    assert isinstance(waited_s, float)
    assert NOTED_AFTER_S < waited_s < time.monotonic() - start


def test_the_hint_is_made_after_the_wait() -> None:
    state = {"hint": "early"}

    def observe() -> bool:
        state["hint"] = "late"
        return False

    with pytest.raises(AwaitTimeout, match="late"):
        await_until(observe, timeout_s=0.01, what="nothing", hint=lambda: state["hint"])


def test_what_a_time_out_means_is_the_callers_choice() -> None:
    with pytest.raises(PromiseBroken):
        await_until(lambda: False, timeout_s=0.01, what="a promise", failure=PromiseBroken)


def test_an_expected_error_is_not_yet_and_any_other_is_raised() -> None:
    answers = iter([ConnectionError("no"), ValueError("bad")])

    def observe() -> None:
        raise next(answers)

    with pytest.raises(ValueError, match="bad"):
        await_until(observe, timeout_s=5, what="an answer", retry_on=(ConnectionError,), poll_s=0.001)


def test_a_dead_broker_ends_the_wait_at_once() -> None:
    def watch() -> None:
        raise NodeDied("broker-1 ended")

    with pytest.raises(NodeDied):
        await_until(lambda: False, timeout_s=60, what="anything", watch=watch)


class Looks:
    """An observation that takes a tenth of a second and is right from the nth time on; keeps when each began."""

    def __init__(self, right_from: int) -> None:
        self.began: list[float] = []
        self._right_from = right_from

    def __call__(self) -> bool:
        self.began.append(time.monotonic())
        while time.monotonic() < self.began[-1] + 0.1:
            pass
        return len(self.began) >= self._right_from


def test_a_wait_for_kafka_counts_until_the_observation_that_ends_it() -> None:
    before_s, start, looks = awaited_s(), time.monotonic(), Looks(3)
    await_until(looks, timeout_s=60, what="the third look")
    assert looks.began[2] - looks.began[0] - 0.1 < awaited_s() - before_s <= looks.began[2] - start


def test_what_is_right_at_once_was_not_awaited() -> None:
    before_s, start, looks = awaited_s(), time.monotonic(), Looks(1)
    await_until(looks, timeout_s=60, what="the first look")
    assert awaited_s() - before_s <= looks.began[0] - start


def test_a_wait_within_a_wait_counts_once() -> None:
    before_s, start, looks = awaited_s(), time.monotonic(), Looks(2)

    def outer() -> bool:
        await_until(lambda: time.monotonic() > start + 0.2, timeout_s=60, what="a moment")
        return looks()

    await_until(outer, timeout_s=60, what="the second look")
    assert 0.2 <= awaited_s() - before_s <= looks.began[1] - start


def test_a_time_out_and_a_pause_count_and_other_waits_do_not() -> None:
    before_s = awaited_s()
    with pytest.raises(AwaitTimeout):
        await_until(lambda: False, timeout_s=0.2, what="nothing")
    let_pass(0.1)
    waited_s = awaited_s() - before_s
    assert waited_s > 0.29
    await_until(Looks(2), timeout_s=60, what="a lock", for_kafka=False)
    other = threading.Thread(target=let_pass, args=(0.1,))  # of a watcher, for example
    other.start()
    other.join()
    assert awaited_s() - before_s == waited_s


@pytest.fixture(scope="module")
def crowded() -> Iterator[None]:
    """Twenty busy processes on each core."""
    with ExitStack() as busy:
        for _ in range(20 * len(os.sched_getaffinity(0))):
            process = busy.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            busy.callback(process.kill)
        await_until(are_ready, timeout_s=60, what="the processes to be busy", for_kafka=False)
        yield


def are_ready() -> bool:
    """Whether ten threads are ready to run on each core."""
    [_, after] = Path("/proc/stat").read_text().split("\nprocs_running ")
    return int(after.split()[0]) > 10 * len(os.sched_getaffinity(0))


@pytest.mark.usefixtures("crowded")
def test_on_a_crowded_machine_a_tool_that_did_not_end_proves_nothing() -> None:
    def observe() -> bool:
        raise ToolFailed("kafka-topics did not end within 20 s")

    with pytest.raises(
        Inconclusive, match=r"^on a crowded machine .*: waited 1\.0 s for leaders; last seen: ToolFailed: "
    ):
        await_until(observe, timeout_s=1, what="leaders", retry_on=(ToolFailed,), failure=PromiseBroken)


@pytest.mark.usefixtures("crowded")
def test_on_a_crowded_machine_a_wrong_value_is_a_broken_promise_still() -> None:
    start = time.monotonic()
    with pytest.raises(PromiseBroken, match=r"^on a crowded machine \(.* threads per core .*last seen: no leader$"):
        await_until(lambda: "no leader", lambda _: False, timeout_s=0.5, what="a leader", failure=PromiseBroken)
    assert time.monotonic() - start >= 0.5 * PATIENCE


@pytest.mark.usefixtures("crowded")
def test_on_a_crowded_machine_what_comes_late_is_seen() -> None:
    comes = time.monotonic() + 1
    assert await_until(lambda: time.monotonic() > comes, timeout_s=0.5, what="it", failure=PromiseBroken)
