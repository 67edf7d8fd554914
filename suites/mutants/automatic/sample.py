"""Draws a sample of automatic mutants from the places that the suites reach, and chooses the cases to try on each."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness.runner.suite_kinds import suite_of
from suites.mutants.automatic.places import Operator, Place
from suites.mutants.automatic.reach import Reached
from suites.mutants.mutant import Mutant

JUDGED = Path(__file__).parent / "judged.toml"
MOST_CASES = 24
"""How many cases are tried on a mutant, at most. Nearly every case reaches some places."""


class Judged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mutant that a reader judged equivalent.

    :ivar place: the key of its place
    :ivar why: why no test can see it
    """

    place: str
    operator: Operator
    why: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    judged: tuple[Judged, ...] = ()


def draw(places: Sequence[Place], reached: Mapping[str, Reached], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of places that at least one case reaches; fewer if there are not so many.

    :param reached: what each case reached, by case
    """
    by_place: dict[int, list[Reached]] = defaultdict(list)
    for each in reached.values():
        for number in each.places:
            by_place[number].append(each)
    judged = {(each.place, each.operator): each.why for each in read_judged()}
    all_ = [(place, operator) for place in places if place.number in by_place for operator in place.operators]
    drawn = random.Random(seed).sample(all_, min(count, len(all_)))
    return [
        place.mutant(operator, cases_for(by_place[place.number]), judged.get((place.key, operator), ""))
        for place, operator in drawn
    ]


def cases_for(reaching: Sequence[Reached]) -> tuple[str, ...]:
    """The cases to try: the suites take turns, each with its shortest case first."""
    of: dict[str, list[Reached]] = defaultdict(list)
    for each in sorted(reaching, key=lambda each: each.duration_s):
        of[suite_of(each.case)].append(each)
    turns = sorted((turn, at.duration_s, at.case) for cases in of.values() for turn, at in enumerate(cases))
    return tuple(case for _, _, case in turns[:MOST_CASES])


def read_judged(file: Path = JUDGED) -> tuple[Judged, ...]:
    """The mutants that were judged equivalent."""
    return msgspec.toml.decode(file.read_bytes(), type=_File).judged
