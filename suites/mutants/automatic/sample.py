"""Draws a sample of automatic mutants from the places that the suites reach, and chooses the cases to try on each."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

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
    reaching: dict[int, list[Reached]] = defaultdict(list)
    for each in reached.values():
        for number in each.places:
            reaching[number].append(each)
    judged = {(each.place, each.operator): each.why for each in read_judged()}
    all_ = [(place, operator) for place in places if place.number in reaching for operator in place.operators]
    of_class: dict[str, dict[int, float]] = defaultdict(dict)
    for place in places:
        if place.number in reaching:
            of_class[place.class_][place.number] = 1 / len(reaching[place.number])
    drawn = random.Random(seed).sample(all_, min(count, len(all_)))
    return [
        place.mutant(
            operator,
            cases_for(reaching[place.number], of_class[place.class_]),
            judged.get((place.key, operator), ""),
        )
        for place, operator in drawn
    ]


def cases_for(reaching: Sequence[Reached], weights: Mapping[int, float]) -> tuple[str, ...]:
    """The cases to try on a mutant, in this order: each has the most weight for its time.

    A case that runs much of the class that other cases do not run is about that class, and checks what it does.

    :param reaching: the cases that reach the place
    :param weights: of each place of its class: the fewer cases reach it, the more. The weight of a place falls with
        each chosen case that reaches it, so that the next one runs other parts of the class
    """
    weights = dict(weights)
    within = {each.case: [number for number in each.places if number in weights] for each in reaching}
    left = list(reaching)
    chosen: list[str] = []
    while left and len(chosen) < MOST_CASES:
        best = max(left, key=lambda each: sum(weights[n] for n in within[each.case]) / max(each.duration_s, 1.0))
        left.remove(best)
        chosen.append(best.case)
        for number in within[best.case]:
            weights[number] /= 2
    return tuple(chosen)


def read_judged(file: Path = JUDGED) -> tuple[Judged, ...]:
    """The mutants that were judged equivalent."""
    return msgspec.toml.decode(file.read_bytes(), type=_File).judged
