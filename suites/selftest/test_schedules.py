"""Random schedules have every kind of step, fault and role, and no step that cannot be played."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from faults.slow import Slow
from harness.errors import BuildLacks, Inconclusive, PromiseBroken
from harness.kafka.points import read_points
from suites.schedules.play import Player
from suites.schedules.schedule import _WAYS, _WEIGHTS, FEWEST, ROLES, Schedule, Step, draw

DRAWN = [draw(seed) for seed in range(200)]
IN_CONTAINERS = [draw(seed, networks=True) for seed in range(200)]
STEPS = [step for schedule in IN_CONTAINERS for step in schedule.steps]


def test_all_that_may_be_drawn_is_and_is_played() -> None:
    assert {step.do for step in STEPS} == {*_WEIGHTS}
    assert {step.role for step in STEPS} == {*ROLES}
    for do, ways in _WAYS.items():
        assert {step.fault for step in STEPS if step.do == do} == {*ways}
    assert all(callable(getattr(Player, do, None)) for do in _WEIGHTS)


def test_a_schedule_begins_with_a_log_dir_that_fails() -> None:
    """Half of the schedules have log dirs on file systems of their own; only these have faults that need them."""
    assert {schedule.steps[0].do for schedule in DRAWN} == {"fail_log_dir"}
    assert {schedule.seed: schedule.volumes for schedule in DRAWN} == {seed: bool(seed % 2) for seed in range(200)}
    for schedule in DRAWN:
        assert schedule.volumes or not schedule.needs
        assert ("volumes" in schedule.cluster) is schedule.volumes


def test_brokers_are_cut_off_only_where_they_have_networks_of_their_own() -> None:
    """All other steps are the same with and without networks of their own."""
    for here, there in zip(DRAWN, IN_CONTAINERS, strict=True):
        assert here.steps == tuple(step for step in there.steps if step.do != "cut_off")
    assert [s for s in IN_CONTAINERS if "own networks" in s.needs] == [
        s for s in IN_CONTAINERS if any(step.do == "cut_off" for step in s.steps)
    ]


def test_one_seed_is_one_schedule() -> None:
    assert [draw(seed) for seed in range(200)] == DRAWN
    assert len({schedule.steps for schedule in DRAWN}) == len(DRAWN)


@pytest.mark.parametrize(
    "wrong",
    [{"do": "dance"}, {"do": "heal", "role": "spectator"}, {"do": "heal", "fault": Slow.name}, {"do": "slow_disk"}],
    ids=str,
)
def test_a_step_that_there_is_not(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such step"):
        Step(**wrong)


@pytest.mark.parametrize(
    ("schedule", "fewest"),
    [
        (draw(7), FEWEST),
        (replace(draw(7), steps=draw(7).steps[:11]), 1),
        (replace(draw(7), seed=None), 1),
        (Schedule(steps=()), 1),
    ],
    ids=["drawn", "shortened", "written by hand", "empty"],
)
def test_a_schedule_of_which_too_little_was_done_shows_nothing(schedule: Schedule, fewest: int) -> None:
    """Of a drawn schedule, some steps must be done; of a shortened one, a single step is enough."""
    schedule.check_done(fewest)
    with pytest.raises(Inconclusive) as raised:
        schedule.check_done(fewest - 1)
    assert str(raised.value) == f"only {fewest - 1} of the schedule's {len(schedule.steps)} steps could be done"
    assert FEWEST > 1


def test_holds_leave_the_steps_as_they_are() -> None:
    held = [draw(seed, holds=True) for seed in range(200)]
    assert [replace(each, steps=tuple(replace(step, hold=None) for step in each.steps)) for each in held] == DRAWN
    assert {step.hold for schedule in held for step in schedule.steps} == {None, *read_points()}
    assert all(schedule.cluster["holds"] for schedule in held)
    assert not any("holds" in schedule.cluster for schedule in DRAWN)
    assert Schedule.from_json(held[0].to_json()) == held[0]


def test_an_error_in_a_step_whose_point_the_build_lacks_is_not_about_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case whose error was raised on top of a lack is skipped or unknown: a broken promise must stand alone."""

    def lacks(*_: object, **__: object) -> None:
        raise BuildLacks("no such point")

    monkeypatch.setattr("suites.schedules.play.Hold", lacks)
    state: Any = SimpleNamespace(live_brokers=lambda: [SimpleNamespace(node=None)])
    nothing: Any = None
    compacted: Any = [None]
    player = Player(nothing, state, nothing, nothing, compacted, nothing, nothing)
    step = Step(do="heal", hold=next(iter(read_points())))
    with pytest.raises(PromiseBroken) as broken, player._held(step):
        raise PromiseBroken("lost")
    assert broken.value.__context__ is None
