"""The poll loop returns the value that it saw, fails at once if waiting is pointless, and names what it waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from harness.crowding import PATIENCE
from harness.errors import AwaitTimeout, Inconclusive, NodeDied, PromiseBroken, ToolFailed
from harness.events import Note
from harness.journal import Journal
from harness.waiting import NOTED_AFTER_S, await_until


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


@pytest.fixture(scope="module")
def crowded() -> Iterator[None]:
    """Twenty busy processes on each core."""
    with ExitStack() as busy:
        for _ in range(20 * len(os.sched_getaffinity(0))):
            process = busy.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            busy.callback(process.kill)
        yield


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
