"""Which differences are more than noise.

Times of repeats are few, skewed and full of outliers (a lease that is just over, a tick of a full second), and hundreds
are compared at once: one in twenty would differ "significantly" by chance alone. Two questions, two tests, neither of
which assumes a distribution:

* :func:`beyond_chance`: does this time of this case differ? The runs of a case are dealt out anew between the builds,
  2000 times, and what counts is how often *any* of all the times compared then differs by as much: Westfall and Young's
  step-down maxT (1993). It needs no correction for the number of comparisons, and finds with five repeats what a rank
  test with Bonferroni's or Benjamini and Hochberg's correction can't, whose least chance (5 beside 5: 0.8 %) is
  multiplied by hundreds. Runs are dealt out whole, since the times of one run hang together. Three repeats beside three
  can be dealt in too few ways for anything to be rare (1 in 10), which is said and not hidden.
* :func:`signed_rank` (Wilcoxon): do the medians of many cases lie to one side? It finds what is small and everywhere,
  also where each case ran once. It is asked of several figures, each of which may be rare by chance: :func:`holm`
  allows for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_REPEATS = 4
_DEALS = 2000
_TICK_S = 0.01
"""Times are compared as ratios, of times this much longer: so that 0 s has one, and 1 ms is not half of 2 ms."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The times of one case: a row for each run, a column for each time, in seconds; not a number where there is none.

    :ivar kinds: what each column measures; columns of a kind lend each other their usual spread
    """

    ours: np.ndarray
    theirs: np.ndarray
    kinds: tuple[str, ...]


def beyond_chance(cases: Sequence[Runs]) -> list[np.ndarray]:
    """For each case and column, the probability that chance alone makes it, or any that differ less, differ so much.

    Not a number where there are fewer than :data:`LEAST_REPEATS` on a side. The same for the same runs.
    """
    dice = np.random.default_rng(0)
    dealt = [_differences(case, dice) for case in cases]
    kinds = np.array([kind for case in cases for kind in case.kinds])
    if not kinds.size:
        return [np.empty(0) for _ in cases]
    apart = np.concatenate([each[0] for each in dealt], axis=1)
    spread = np.concatenate([each[1] for each in dealt], axis=1)
    usual = np.zeros(len(kinds))
    for kind in set(kinds):
        own = spread[0, kinds == kind]
        usual[kinds == kind] = np.median(own[~np.isnan(own)]) if not np.isnan(own).all() else 0.0
    # Few repeats are at times alike by chance; the kind's usual spread beside their own keeps that from counting.
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.abs(apart) / (spread + usual)
    rates[np.isnan(rates) & ~np.isnan(apart)] = 0.0  # all alike: no difference, and no spread
    chances = _step_down(rates)
    ends = np.cumsum([len(case.kinds) for case in cases])
    return np.split(chances, ends[:-1])


def _differences(case: Runs, dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """How far the builds are apart, and the spread of that, by the real deal (row 0) and by each other one."""
    times = np.log(np.concatenate([case.ours, case.theirs]) + _TICK_S)
    count, runs = len(case.ours), len(times)
    deals = np.zeros((_DEALS + 1, runs), dtype=bool)
    deals[0, :count] = True
    np.put_along_axis(deals[1:], dice.random((_DEALS, runs)).argsort(axis=1)[:, :count], True, axis=1)
    there = ~np.isnan(times)
    filled = np.where(there, times, 0.0)

    def side(dealt: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        many = dealt.astype(float) @ there.astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (dealt.astype(float) @ filled) / many
        return many, mean, np.maximum(dealt.astype(float) @ filled**2 - many * mean**2, 0.0)

    (n, mean, squares), (m, other, others) = side(deals), side(~deals)
    few = (n < 2) | (m < 2) | (n[0] < LEAST_REPEATS) | (m[0] < LEAST_REPEATS)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt((squares + others) / (n + m - 2) * (1 / n + 1 / m))
    return np.where(few, np.nan, mean - other), np.where(few, np.nan, spread)


def _step_down(rates: np.ndarray) -> np.ndarray:
    """Westfall and Young's chances of row 0, by the other rows."""
    chances = np.full(rates.shape[1], np.nan)
    compared = np.flatnonzero(~np.isnan(rates[0]))
    order = compared[np.argsort(rates[0, compared])]  # the least first
    dealt = np.nan_to_num(rates[1:, order], nan=0.0)
    highest = np.maximum.accumulate(dealt, axis=1)
    found = (1 + (highest >= rates[0, order] - 1e-9).sum(axis=0)) / (len(dealt) + 1)
    chances[order] = np.maximum.accumulate(found[::-1])[::-1]
    return chances


def signed_rank(differences: Sequence[float]) -> float:
    """The probability, two-sided, that differences which are as often above as below 0 lie as far to one side as these.

    Exact, ties included. Differences of 0 say nothing and are left out; of none at all it is 1.
    """
    told = [each for each in differences if each]
    ranks = _doubled_ranks([abs(each) for each in told])
    chances = np.zeros(sum(ranks) + 1)
    chances[0] = 1
    for rank in ranks:
        more = np.zeros_like(chances)
        more[rank:] = chances[: len(chances) - rank]
        chances = (chances + more) / 2
    seen = sum(rank for rank, each in zip(ranks, told, strict=True) if each > 0)
    return float(min(1.0, 2 * min(chances[: seen + 1].sum(), chances[seen:].sum())))


def holm(chances: Sequence[float]) -> list[float]:
    """Each chance, allowing for how many are looked at: where nothing differs, any is 0.05 or less once in twenty.

    Holm's step-down correction (1979), which holds however the figures hang together.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    found, highest = [0.0] * len(chances), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[index]))
        found[index] = highest
    return found


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each; of equal ones the mean of theirs."""
    below = [sum(other < each for other in values) for each in values]
    equal = [sum(other == each for other in values) for each in values]
    return [2 * low + same + 1 for low, same in zip(below, equal, strict=True)]
