"""``--hold`` holds threads from a case's first fault on; ``jbod pin`` searches for the hold that makes a case fail."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest

from harness.errors import UsageError
from harness.runner.hold_option import HoldOption
from harness.runner.pinning import Pinning, alike
from harness.runner.subrun import SubRun
from suites.selftest.case_results import case_result

REASON = "broker 3 is in the ISR of orders-0: orders-0 leader 2 replicas [2, 3, 1] isr [1, 2, 3]"


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("move-reads@struck", HoldOption(point="move-reads", where="struck", for_s=0.5)),
        ("isr-change-sent@others/2", HoldOption(point="isr-change-sent", where="others", for_s=2.0)),
        (
            "controller-assigns@controllers/0.25",
            HoldOption(point="controller-assigns", where="controllers", for_s=0.25),
        ),
        ("move-reads@struck/0", HoldOption(point="move-reads", where="struck", for_s=0.0)),
    ],
)
def test_an_option_is_read_and_written(text: str, option: HoldOption) -> None:
    assert HoldOption.parse(text) == option
    assert HoldOption.parse(str(option)) == option


@pytest.mark.parametrize(
    "text", ["move-reads", "move-reads@", "move-reads@struck/-1", "move-reads@struck/x", "no@struck"]
)
def test_another_form_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--hold"):
        HoldOption.parse(text)


def test_the_same_failure_has_another_number_each_time() -> None:
    assert alike(REASON) == alike(REASON.replace("broker 3", "broker 1").replace("[1, 2, 3]", "[3, 2]"))
    assert alike(REASON) != alike("300 records were lost")


def test_the_same_failure_on_a_crowded_machine_is_the_same() -> None:
    """Two failures of which both say how crowded the machine was are not the same for it."""
    crowded = "on a crowded machine (23.2 threads per core were ready to run, and sleeps took 1.1 times as long)"
    assert alike(f"{crowded}: {REASON}") == alike(f"{crowded}, 12.0 s in all: {REASON}") == alike(REASON)
    assert alike(f"{crowded}: {REASON}") != alike(f"{crowded}: 300 records were lost")


class Runs:
    """What ``jbod run`` would answer: the case fails with a hold, or with two of them, always."""

    def __init__(self, fails_with: str | None, verdicts: Mapping[str, Sequence[str]] | None = None) -> None:
        self.fails_with = fails_with.split(" + ") if fails_with else []
        self.holds: list[list[str]] = []
        self.verdicts = {hold: iter(each) for hold, each in (verdicts or {}).items()}

    async def run(self, *arguments: str) -> SubRun:
        """Answer one run."""
        holds = [each.removeprefix("--hold=") for each in arguments if each.startswith("--hold=")]
        self.holds.append(holds)
        verdict = "invalid" if self.fails_with and {*self.fails_with} <= {*holds} else "valid"
        verdict = next(self.verdicts.get(holds[0] if holds else "", iter(())), verdict)
        fails = verdict == "invalid"
        return SubRun(exit_code=int(fails), cases=(case_result(verdict=verdict, reason=REASON if fails else ""),))


def search(monkeypatch: pytest.MonkeyPatch, runs: Runs, passed: Sequence[tuple[str, str]], until: float) -> object:
    """Search with these runs, in which threads came to these places."""
    monkeypatch.setattr("harness.runner.pinning.run_beside", runs.run)
    monkeypatch.setattr(Pinning, "_passed", lambda *_: [*passed])
    pinning = Pinning(["x"], REASON, jobs=2, until=until, say=lambda _line: None)
    return pinning.search(["move-reads"], 3).best


PASSED = (("move-reads", "others"), ("isr-change-sent", "others"))


def test_the_hold_with_which_it_fails_most_often_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs("isr-change-sent@others/0.5")
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == "isr-change-sent@others/0.5: 3 of 3"
    assert runs.holds == [[], [], [], ["move-reads@others/0.5"], *[["isr-change-sent@others/0.5"]] * 7]


def test_longer_holds_are_tried_if_no_short_one_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs("move-reads@others/1")
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == "move-reads@others/1: 3 of 3"


def test_holds_are_tried_again_if_no_time_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race may need luck, even with the right hold."""
    luck = "isr-change-sent@others/0.5"
    runs = Runs(None, {luck: ["valid", *["invalid"] * 7]})
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == f"{luck}: 3 of 3"


def test_the_search_goes_on_after_a_failure_that_was_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rare failure may come in the run of a hold that has nothing to do with it."""
    runs = Runs("isr-change-sent@others/1", {"move-reads@others/0.5": ["invalid"]})
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == "isr-change-sent@others/1: 3 of 3"


def test_the_best_hold_is_tried_for_all_longer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a time is no better than the one before; up to one with which the case fails in each run."""
    some, best = "move-reads@others/0.5", "move-reads@others/2"
    runs = Runs(best, {some: ["invalid", "valid", "invalid", "valid"]})
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == f"{best}: 3 of 3"
    tried = [holds[0] for holds in runs.holds if holds and holds[0].startswith("move-reads")]
    assert tried == [*[some] * 4, *["move-reads@others/1"] * 3, *[best] * 6]


def test_longer_times_are_tried_if_a_few_runs_were_lucky(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few runs in which the case always failed end the search for a time. More runs may show that it was short."""
    short, longer = "move-reads@others/0.5", "move-reads@others/1"
    runs = Runs(longer, {short: [*["invalid"] * 6, "valid"]})
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == f"{longer}: 3 of 3"
    assert runs.holds[-9:] == [*[[short]] * 3, *[[longer]] * 6]


def test_two_holds_are_tried_if_one_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold with which it failed twice is tried beside one at each other point."""
    for seconds in ((2, 1), (1, 2)):
        both = "isr-change-sent@others/{} + move-reads@others/{}".format(*seconds)
        runs = Runs(both, {"isr-change-sent@others/0.5": ["invalid", "valid", "invalid"]})
        assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == f"{both}: 3 of 3"
        assert runs.holds[-6:] == [both.split(" + ")] * 6


def test_a_hold_is_confirmed_in_new_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed in each of a few runs, and then in few, is not better than what fails in most."""
    some, longer = "move-reads@others/0.5", "move-reads@others/1"
    lucky = ["invalid", "invalid", "invalid", "valid", *["invalid"] * 2, "valid"]
    runs = Runs(None, {some: lucky, longer: ["invalid", "invalid", "invalid", "valid", "valid", "invalid"]})
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == f"{some}: 2 of 3"


def test_a_longer_hold_stops_fewer_threads() -> None:
    """Threads of one node are held no longer than the point allows, all together: 8 s here."""
    option: HoldOption | None = HoldOption(point="move-reads", where="struck", for_s=1.0)
    seen = []
    while option is not None:
        seen.append((option.for_s, option.threads))
        option = option.longer()
    assert seen == [(1.0, 3), (2.0, 3), (4.0, 2), (8.0, 1)]


def test_no_hold_is_found_without_time_or_without_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(monkeypatch, Runs(None), PASSED, time.monotonic() + 0.5) is None
    assert search(monkeypatch, Runs(None), (), time.monotonic() + 60.0) is None


def test_one_run_shows_less_than_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold with which the case failed in 3 of 3 runs is better than one with 1 of 1; unknown runs show nothing."""
    often, once = "move-reads@others/0.5", "isr-change-sent@others/0.5"
    once_only = ["invalid", *["invalid", "unknown", "unknown"] * 2]
    runs = Runs(None, {often: ["invalid"] * 7, once: once_only})
    assert str(search(monkeypatch, runs, PASSED, time.monotonic() + 60.0)) == f"{often}: 3 of 3"
    runs = Runs(None, {"": ["invalid", "invalid", "valid"], once: once_only})
    assert search(monkeypatch, runs, PASSED, time.monotonic() + 60.0) is None
