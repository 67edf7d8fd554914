"""Tells which differences in time between two builds are more than noise.

Times of repeated runs are few and skewed, with outliers (a lease just missed, a tick of a full second). Hundreds of
them are compared at once, and one in twenty would differ "significantly" by chance alone. So there are two tests, and
neither assumes a distribution:

* :func:`beyond_chance`: does this time of this case differ? The runs of a case are permuted between the builds 2000
  times. The chance is the share of permutations whose largest difference is at least as large (step-down maxT of
  Westfall and Young, 1993). So it needs no correction for the number of comparisons. Whole runs are permuted, because
  the times of one run are not independent. A rank test would need Bonferroni's or Benjamini and Hochberg's correction,
  and so more than five runs: its lowest chance (5 against 5: 0.8 %) is multiplied by hundreds. Three runs against three
  have too few permutations for any result to be rare (1 in 10).
* :func:`signed_rank` (Wilcoxon): do the medians of many cases lie to one side? It finds small differences that are
  everywhere, even if each case ran once. It is asked for several figures, so :func:`holm` corrects for their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_REPEATS = 4
_PERMUTATIONS = 2000
_TICK_S = 0.01
"""Added to each time before times are compared as ratios: 0 s then has a ratio, and 1 ms is not half of 2 ms."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The times of one case in seconds: a row for each run, a column for each measure; NaN for a missing one.

    :ivar kinds: what each column measures; columns of one kind share their usual spread
    """

    ours: np.ndarray
    theirs: np.ndarray
    kinds: tuple[str, ...]


def beyond_chance(cases: Sequence[Runs]) -> list[np.ndarray]:
    """For each case and column, the probability of a difference as large by chance alone, among all that are compared.

    It is NaN with fewer than :data:`LEAST_REPEATS` runs on a side. The same runs give the same result.
    """
    dice = np.random.default_rng(0)
    permuted = [_differences(case, dice) for case in cases]
    kinds = np.array([kind for case in cases for kind in case.kinds])
    if not kinds.size:
        return [np.empty(0) for _ in cases]
    apart = np.concatenate([each[0] for each in permuted], axis=1)
    spread = np.concatenate([each[1] for each in permuted], axis=1)
    usual = np.zeros(len(kinds))
    for kind in set(kinds):
        own = spread[0, kinds == kind]
        usual[kinds == kind] = np.median(own[~np.isnan(own)]) if not np.isnan(own).all() else 0.0
    # A few runs may be alike by chance. The usual spread of the kind, added to theirs, keeps that from counting.
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.abs(apart) / (spread + usual)
    rates[np.isnan(rates) & ~np.isnan(apart)] = 0.0  # all equal: no difference, and no spread
    chances = _step_down(rates)
    ends = np.cumsum([len(case.kinds) for case in cases])
    return np.split(chances, ends[:-1])


def _differences(case: Runs, dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The difference between the builds and its spread, for the real runs (row 0) and for each permutation."""
    times = np.log(np.concatenate([case.ours, case.theirs]) + _TICK_S)
    count, runs = len(case.ours), len(times)
    is_ours = np.zeros((_PERMUTATIONS + 1, runs), dtype=bool)
    is_ours[0, :count] = True
    np.put_along_axis(is_ours[1:], dice.random((_PERMUTATIONS, runs)).argsort(axis=1)[:, :count], True, axis=1)
    there = ~np.isnan(times)
    filled = np.where(there, times, 0.0)

    def side(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        many = chosen.astype(float) @ there.astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (chosen.astype(float) @ filled) / many
        return many, mean, np.maximum(chosen.astype(float) @ filled**2 - many * mean**2, 0.0)

    (n, mean, squares), (m, other, others) = side(is_ours), side(~is_ours)
    few = (n < 2) | (m < 2) | (n[0] < LEAST_REPEATS) | (m[0] < LEAST_REPEATS)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt((squares + others) / (n + m - 2) * (1 / n + 1 / m))
    return np.where(few, np.nan, mean - other), np.where(few, np.nan, spread)


def _step_down(rates: np.ndarray) -> np.ndarray:
    """The step-down chances of row 0, from the other rows."""
    chances = np.full(rates.shape[1], np.nan)
    compared = np.flatnonzero(~np.isnan(rates[0]))
    order = compared[np.argsort(rates[0, compared])]  # the smallest first
    highest = np.maximum.accumulate(np.nan_to_num(rates[1:, order], nan=0.0), axis=1)
    found = (1 + (highest >= rates[0, order] - 1e-9).sum(axis=0)) / len(rates)
    chances[order] = np.maximum.accumulate(found[::-1])[::-1]
    return chances


def signed_rank(differences: Sequence[float]) -> float:
    """The two-sided chance of Wilcoxon's signed-rank test, exact also with ties.

    Differences of 0 are left out. Without any others the chance is 1.
    """
    kept = [each for each in differences if each]
    ranks = _doubled_ranks([abs(each) for each in kept])
    chances = np.zeros(sum(ranks) + 1)
    chances[0] = 1
    for rank in ranks:
        more = np.zeros_like(chances)
        more[rank:] = chances[: len(chances) - rank]
        chances = (chances + more) / 2
    seen = sum(rank for rank, each in zip(ranks, kept, strict=True) if each > 0)
    return float(min(1.0, 2 * min(chances[: seen + 1].sum(), chances[seen:].sum())))


def holm(chances: Sequence[float]) -> list[float]:
    """The chances, corrected for their number (Holm's step-down correction, 1979, valid for any dependence).

    If nothing differs, the probability that any of them is 0.05 or less is at most 0.05.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    found, highest = [0.0] * len(chances), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[index]))
        found[index] = highest
    return found


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value; equal values have the mean of their ranks."""
    below = [sum(other < each for other in values) for each in values]
    equal = [sum(other == each for other in values) for each in values]
    return [2 * low + same + 1 for low, same in zip(below, equal, strict=True)]
