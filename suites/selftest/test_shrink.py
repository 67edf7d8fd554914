"""The shrinker finds the smallest failing part, whatever it is, in few rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.runs.shrink import shrink
from suites.schedules.schedule import Schedule, draw


@given(st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_it_finds_exactly_what_it_takes(case: tuple[int, set[int]]) -> None:
    """Where a candidate fails if it has all the culprits, they are what is left, in their order."""
    count, culprits = case
    asked: list[tuple[str, ...]] = []

    def failing(candidates: list[list[str]]) -> list[bool]:
        asked.extend(tuple(candidate) for candidate in candidates)
        return [{str(each) for each in culprits} <= set(candidate) for candidate in candidates]

    items = [str(number) for number in range(count)]
    assert shrink(items, failing) == [str(each) for each in sorted(culprits)]
    assert len(set(asked)) == len(asked)
    assert tuple(items) not in asked


def test_what_fails_now_and_then_still_ends() -> None:
    """Where nothing smaller fails, the whole is returned, after as many trials as it has parts."""
    rounds: list[int] = []
    items = list("abcdefghijkl")

    def failing(candidates: list[list[str]]) -> list[bool]:
        rounds.append(len(candidates))
        return [False] * len(candidates)

    assert shrink(items, failing) == items
    assert sum(rounds) == 2 + 4 * 2 + 6 * 2 + 12 * 2


def test_any_part_of_a_schedule_is_one() -> None:
    """A schedule survives its way through JSON, and so does what is left of it."""
    schedule = draw(7)
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert draw(7) == schedule != draw(9)
    part = Schedule(steps=schedule.steps[3:5], seed=7, volumes=schedule.volumes)
    assert Schedule.from_json(part.to_json()) == part
