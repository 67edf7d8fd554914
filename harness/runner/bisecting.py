"""Finds the first of several releases on which a case comes out differently. Runs nothing itself.

Releases are in numeric order: 3.7.0, 3.7.1, 3.7.2, 3.8.0. Like any bisection, this finds one change. A bug that was
also fixed on an older line changes the verdict more than once; the two ends then decide which change is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.errors import EXIT_INCONCLUSIVE, EXIT_VALID, UsageError
from harness.kafka.versions import KafkaVersion

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ReleaseOutcome:
    """The outcome of a case on one release.

    :ivar verdict: "valid" or "invalid"
    :ivar deviations: the known deviations that the case showed, each as "behaviour (issue)", sorted; empty if
        invalid
    """

    verdict: str
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """One run of the case.

    :ivar deviations: as :attr:`ReleaseOutcome.deviations`
    :ivar earlier: whether the run is from the runs folder, from before this bisection
    """

    verdict: str
    reason: str
    deviations: tuple[str, ...] = ()
    run_dir: str | None = None
    earlier: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A release, and the runs of the case on it.

    :ivar missing: why there are no runs, if no repository has the release; None otherwise
    """

    kafka: KafkaVersion
    runs: tuple[CaseRun, ...]
    missing: str | None = None

    @property
    def outcome(self) -> ReleaseOutcome | None:
        """The outcome over all runs: invalid if any run was invalid, else valid if any was valid, else None.

        A valid outcome has the deviations of all valid runs.
        """
        if any(run.verdict == "invalid" for run in self.runs):
            return ReleaseOutcome(verdict="invalid")
        valid = [run for run in self.runs if run.verdict == "valid"]
        shown = {deviation for run in valid for deviation in run.deviations}
        return ReleaseOutcome(verdict="valid", deviations=tuple(sorted(shown))) if valid else None

    @property
    def came_out(self) -> str:
        """The outcome as text, such as "invalid in 2 of 3 runs"."""
        verdict = self.outcome.verdict if self.outcome else "not judged"
        count = sum(run.verdict == verdict for run in self.runs)
        total = f"{len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"
        return f"{verdict} in {count} of {total}" if self.outcome else verdict

    @property
    def because(self) -> str:
        """Why the case is invalid or could not be judged, or which deviations it shows; may be empty."""
        if self.missing:
            return self.missing
        if self.outcome and self.outcome.verdict == "valid":
            return "; ".join(self.outcome.deviations)
        if self.outcome:
            reasons = [run.reason for run in self.runs if run.verdict == self.outcome.verdict]
        else:
            reasons = [f"{run.verdict}: {run.reason}" for run in self.runs]
        return "; ".join(dict.fromkeys(reasons))

    def to_json(self) -> dict[str, object]:
        """Return this release as ``jbod bisect --json`` has it."""
        return {
            "kafka": str(self.kafka),
            "verdict": self.outcome.verdict if self.outcome else None,
            "deviations": list(self.outcome.deviations) if self.outcome else [],
            "missing": self.missing,
            "runs": [{**vars(run), "deviations": list(run.deviations)} for run in self.runs],
        }


def first_change(
    releases: Sequence[T], ask: Callable[[T], Hashable | None], step: Callable[[T, T, int], None] = lambda *_: None
) -> tuple[T, T]:
    """Return the last release that comes out like the first one, and the first release that differs.

    Releases between these two cannot be judged. The last release is known to differ, so ``ask`` is not called for it.
    It is called at most once for each other release.

    :param ask: returns the outcome on a release; None if it cannot be judged, and another release is tried then
    :param step: called before each step with both ends and the number of releases between them that can still be tried
    """
    low, high = 0, len(releases) - 1
    before = ask(releases[low])
    unjudged: set[int] = set()
    while candidates := [each for each in range(low + 1, high) if each not in unjudged]:
        step(releases[low], releases[high], len(candidates))
        middle = min(candidates, key=lambda each: abs(2 * each - low - high))
        found = ask(releases[middle])
        if found is None:
            unjudged.add(middle)
        elif found == before:
            low = middle
        else:
            high = middle
    return releases[low], releases[high]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference between the two ends of a bisection.

    The ends differ in their verdicts or, if both are valid, in deviations that only one of them shows. A deviation that
    both ends show, or neither, does not count.
    """

    low: ReleaseOutcome
    high: ReleaseOutcome

    @property
    def by_deviations(self) -> frozenset[str]:
        """The deviations that only one end shows; empty if the verdicts differ."""
        if self.low.verdict != self.high.verdict:
            return frozenset()
        return frozenset(self.low.deviations) ^ frozenset(self.high.deviations)

    @property
    def differs(self) -> bool:
        """Whether the two ends differ."""
        return self.low.verdict != self.high.verdict or bool(self.by_deviations)

    def key(self, outcome: ReleaseOutcome) -> tuple[str, frozenset[str]]:
        """Return the part of an outcome that is compared."""
        return outcome.verdict, self.by_deviations & frozenset(outcome.deviations)

    def words(self, outcome: ReleaseOutcome) -> str:
        """Return :meth:`key` as text."""
        verdict, shown = self.key(outcome)
        return f"{verdict} with “{'; '.join(sorted(shown))}”" if shown else verdict


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The result of a bisection.

    :ivar trials: all releases that were tried, in numeric order
    :ivar comparison: None if an end could not be judged
    :ivar problem: why there was no search: an end could not be judged or is not as given; empty if there was one
    :ivar last: the last release like the first one; None if there is a problem
    :ivar first: the first release that differs; None if there is a problem
    :ivar notes: releases whose earlier runs contradict the result, a sentence each
    """

    trials: tuple[Trial, ...]
    comparison: Comparison | None = None
    problem: str = ""
    last: Trial | None = None
    first: Trial | None = None
    notes: tuple[str, ...] = ()

    @property
    def unjudged(self) -> tuple[Trial, ...]:
        """All releases that could not be judged."""
        return tuple(trial for trial in self.trials if trial.outcome is None and not trial.missing)

    @property
    def between(self) -> tuple[Trial, ...]:
        """The unjudged releases between ``last`` and ``first``, which may be the first with the change."""
        if not (self.last and self.first):
            return ()
        return tuple(trial for trial in self.unjudged if self.last.kafka < trial.kafka < self.first.kafka)

    @property
    def exit_code(self) -> int:
        """The exit code of ``jbod bisect``."""
        return EXIT_INCONCLUSIVE if self.problem or self.between else EXIT_VALID

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.problem or not (
            self.comparison and self.last and self.first and self.last.outcome and self.first.outcome
        ):
            return f"undecided: {self.problem}"
        before, after = map(self.comparison.words, (self.last.outcome, self.first.outcome))
        found = f"{before} up to {self.last.kafka}, {after} from {self.first.kafka}"
        if not self.between:
            return found
        return f"{found} at the latest; {_listed(self.between)} could not be judged"

    @property
    def sides(self) -> str:
        """How many runs there were on each side of the change; empty if there is no result."""
        if not (self.last and self.first):
            return ""
        low = [trial for trial in self.trials if trial.outcome and trial.kafka <= self.last.kafka]
        high = [trial for trial in self.trials if trial.outcome and trial.kafka >= self.first.kafka]
        return f"{_runs(low)} up to {self.last.kafka}, {_runs(high)} from {self.first.kafka}"

    def to_json(self) -> dict[str, object]:
        """Return the result as ``jbod bisect --json`` has it."""
        return {
            "found": not self.problem and not self.between,
            "last": str(self.last.kafka) if self.last else None,
            "first": str(self.first.kafka) if self.first else None,
            "sentence": self.sentence,
            "compared": "deviations" if self.comparison and self.comparison.by_deviations else "verdicts",
            "unjudged": {str(trial.kafka): trial.because for trial in self.unjudged},
            "left_out": {str(trial.kafka): trial.missing for trial in self.trials if trial.missing},
            "notes": list(self.notes),
            "releases": [trial.to_json() for trial in self.trials],
        }


def bisect(
    releases: Sequence[KafkaVersion],
    *,
    good: KafkaVersion,
    bad: KafkaVersion,
    trial_of: Callable[[KafkaVersion], Trial],
    known: Callable[[KafkaVersion], Trial | None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Bisection:
    """Judge both ends, then search between them.

    :param releases: in numeric order; the first and the last are ``good`` and ``bad``, in either order
    :param trial_of: runs the case on a release
    :param known: returns the earlier runs on a release, or None; runs nothing
    :param say: shows a line of progress
    :raises UsageError: no repository has one of the ends
    """
    trials = {each: trial_of(each) for each in (releases[0], releases[-1])}
    if problem := _problem(trials[good], trials[bad]):
        return Bisection(trials=tuple(trials.values()), problem=problem)
    low, high = (trials[each].outcome for each in (releases[0], releases[-1]))
    assert low is not None  # _problem() would have returned a text
    assert high is not None
    comparison = Comparison(low=low, high=high)

    def key(release: KafkaVersion) -> Hashable | None:
        if release not in trials:
            trials[release] = trial_of(release)
        outcome = trials[release].outcome
        return comparison.key(outcome) if outcome else None

    def step(low: KafkaVersion, high: KafkaVersion, left: int) -> None:
        say(f"between {low} and {high}: {left} not tried yet, about {math.ceil(math.log2(left + 1))} to run")

    last, first = first_change(releases, key, step)
    notes = []
    for release in releases:
        earlier = known(release) if release not in trials else None
        if earlier and earlier.outcome and comparison.key(earlier.outcome) != key(last if release < first else first):
            notes.append(f"{release} was {earlier.came_out} earlier: the outcome changes more than once")
    return Bisection(
        trials=tuple(trials[each] for each in sorted(trials)),
        comparison=comparison,
        last=trials[last],
        first=trials[first],
        notes=tuple(notes),
    )


def _problem(good: Trial, bad: Trial) -> str:
    """Return why the search cannot begin: an end could not be judged or is not as given. Empty if it can begin.

    :raises UsageError: no repository has one of the ends
    """
    for word, trial in (("good", good), ("bad", bad)):
        if trial.missing:
            raise UsageError(trial.missing)
        if trial.outcome is None:
            return f"{trial.kafka}, given as {word}, could not be judged: {trial.because}"
    assert good.outcome is not None
    assert bad.outcome is not None
    if good.outcome.verdict == "invalid":
        return f"{good.kafka}, given as good, is {good.came_out}: {good.because}"
    if not Comparison(low=good.outcome, high=bad.outcome).differs:
        return (
            f"{bad.kafka}, given as bad, is {bad.came_out}, and shows nothing that {good.kafka} does not; see --repeats"
        )
    return ""


def _listed(trials: Iterable[Trial]) -> str:
    return ", ".join(str(trial.kafka) for trial in trials)


def _runs(trials: Sequence[Trial]) -> str:
    count = sum(len(trial.runs) for trial in trials)
    return f"{count} run{'' if count == 1 else 's'} on {len(trials)} release{'' if len(trials) == 1 else 's'}"
