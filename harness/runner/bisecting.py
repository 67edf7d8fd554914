"""Between two releases, the first on which a case comes out differently: the search, and what it found. Runs nothing.

Releases are in numeric order: 3.7.0, 3.7.1, 3.7.2, 3.8.0. As any bisection this finds one change. A bug that was mended
on an older line as well changes the verdict more often than once; the two ends then decide which change is found.
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
class Look:
    """How a case comes out on a release.

    :ivar verdict: "valid" or "invalid"
    :ivar deviations: what it shows of known deviations, each as "does (issue)", sorted; none where it is invalid
    """

    verdict: str
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """One run of the case.

    :ivar deviations: as :attr:`Look.deviations`
    :ivar earlier: it was run before, and found in the runs folder
    """

    verdict: str
    reason: str
    deviations: tuple[str, ...]
    run_dir: str | None
    earlier: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A release, and the case's runs on it.

    :ivar missing: why there are none: no repository has the release; None otherwise
    """

    kafka: KafkaVersion
    runs: tuple[CaseRun, ...]
    missing: str | None = None

    @property
    def look(self) -> Look | None:
        """Invalid if any run was, else valid if any run was, with all deviations that they showed; else None."""
        if any(run.verdict == "invalid" for run in self.runs):
            return Look(verdict="invalid")
        valid = [run for run in self.runs if run.verdict == "valid"]
        shown = {deviation for run in valid for deviation in run.deviations}
        return Look(verdict="valid", deviations=tuple(sorted(shown))) if valid else None

    @property
    def came_out(self) -> str:
        """In a few words: "invalid in 2 of 3 runs"."""
        verdict = self.look.verdict if self.look else "not judged"
        count = sum(run.verdict == verdict for run in self.runs)
        total = f"{len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"
        return f"{verdict} in {count} of {total}" if self.look else verdict

    @property
    def because(self) -> str:
        """Why it is invalid or could not be judged, or which deviations it shows; may be empty."""
        if self.missing:
            return self.missing
        if self.look and self.look.verdict == "valid":
            return "; ".join(self.look.deviations)
        if self.look:
            reasons = [run.reason for run in self.runs if run.verdict == self.look.verdict]
        else:
            reasons = [f"{run.verdict}: {run.reason}" for run in self.runs]
        return "; ".join(dict.fromkeys(reasons))

    def to_json(self) -> dict[str, object]:
        """As ``--json`` has it."""
        return {
            "kafka": str(self.kafka),
            "verdict": self.look.verdict if self.look else None,
            "deviations": list(self.look.deviations) if self.look else [],
            "missing": self.missing,
            "runs": [{**vars(run), "deviations": list(run.deviations)} for run in self.runs],
        }


def first_change(
    releases: Sequence[T], ask: Callable[[T], Hashable | None], step: Callable[[T, T, int], None] = lambda *_: None
) -> tuple[T, T]:
    """The last release that is like the first one, and the next that is judged; between them none can be.

    No release is asked twice, but for the first one, and the last one is not asked: it is known to differ.

    :param ask: what a release is like; None where it can't be judged, for which the one nearest to it is asked
    :param step: is told between which two the change is, and how many releases between them may be asked
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
    """What tells the two ends apart: their verdicts or, where both are valid, deviations that only one of them shows.

    A deviation that both ends show, or neither, says nothing of the change that is searched for.
    """

    low: Look
    high: Look

    @property
    def by_deviations(self) -> frozenset[str]:
        """The deviations; none where the verdicts differ."""
        if self.low.verdict != self.high.verdict:
            return frozenset()
        return frozenset(self.low.deviations) ^ frozenset(self.high.deviations)

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return self.low.verdict != self.high.verdict or bool(self.by_deviations)

    def key(self, look: Look) -> tuple[str, frozenset[str]]:
        """The part of a look that counts."""
        return look.verdict, self.by_deviations & frozenset(look.deviations)

    def words(self, look: Look) -> str:
        """The same, for people."""
        verdict, shown = self.key(look)
        return f"{verdict} with “{'; '.join(sorted(shown))}”" if shown else verdict


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """What was found.

    :ivar trials: of all releases that were asked, in numeric order
    :ivar comparison: None where an end could not be judged
    :ivar problem: why nothing was searched for; empty where the ends are as they were said to be
    :ivar last: the last release like the first one; None where there is a problem
    :ivar first: the first one that isn't
    :ivar notes: what else is to be known
    """

    trials: tuple[Trial, ...]
    comparison: Comparison | None = None
    problem: str = ""
    last: Trial | None = None
    first: Trial | None = None
    notes: tuple[str, ...] = ()

    @property
    def unjudged(self) -> tuple[Trial, ...]:
        """Releases that could not be judged, wherever they are."""
        return tuple(trial for trial in self.trials if trial.look is None and not trial.missing)

    @property
    def between(self) -> tuple[Trial, ...]:
        """Those of them on which the change may be."""
        if not (self.last and self.first):
            return ()
        return tuple(trial for trial in self.unjudged if self.last.kafka < trial.kafka < self.first.kafka)

    @property
    def exit_code(self) -> int:
        """Of ``jbod bisect``."""
        return EXIT_INCONCLUSIVE if self.problem or self.between else EXIT_VALID

    @property
    def sentence(self) -> str:
        """What it comes to."""
        if self.problem or not (self.comparison and self.last and self.first and self.last.look and self.first.look):
            return f"undecided: {self.problem}"
        before, after = map(self.comparison.words, (self.last.look, self.first.look))
        found = f"{before} up to {self.last.kafka}, {after} from {self.first.kafka}"
        if not self.between:
            return found
        return f"{found} at the latest; {_listed(self.between)} could not be judged"

    @property
    def sides(self) -> str:
        """How often each side was run; empty where there are no sides."""
        if not (self.last and self.first):
            return ""
        low = [trial for trial in self.trials if trial.look and trial.kafka <= self.last.kafka]
        high = [trial for trial in self.trials if trial.look and trial.kafka >= self.first.kafka]
        return f"{_runs(low)} up to {self.last.kafka}, {_runs(high)} from {self.first.kafka}"

    def to_json(self) -> dict[str, object]:
        """As ``--json`` has it."""
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
    :param known: what is known of a release without a run
    :param say: is told how much is left
    :raises UsageError: no repository has one of the ends
    """
    trials = {each: trial_of(each) for each in (releases[0], releases[-1])}
    if problem := _problem(trials[good], trials[bad]):
        return Bisection(trials=tuple(trials.values()), problem=problem)
    low, high = (trials[each].look for each in (releases[0], releases[-1]))
    assert low is not None  # else there was a problem
    assert high is not None
    comparison = Comparison(low=low, high=high)

    def key(release: KafkaVersion) -> Hashable | None:
        if release not in trials:
            trials[release] = trial_of(release)
        look = trials[release].look
        return comparison.key(look) if look else None

    def step(low: KafkaVersion, high: KafkaVersion, left: int) -> None:
        say(f"between {low} and {high}: {left} to choose from, about {math.ceil(math.log2(left + 1))} to run")

    last, first = first_change(releases, key, step)
    notes = []
    for release in releases:
        earlier = known(release) if release not in trials else None
        if earlier and earlier.look and comparison.key(earlier.look) != key(last if release < first else first):
            notes.append(f"{release} was {earlier.came_out} before: what it shows changes more than once")
    return Bisection(
        trials=tuple(trials[each] for each in sorted(trials)),
        comparison=comparison,
        last=trials[last],
        first=trials[first],
        notes=tuple(notes),
    )


def _problem(good: Trial, bad: Trial) -> str:
    """Why the ends are not what they were said to be; empty if they are."""
    for word, trial in (("good", good), ("bad", bad)):
        if trial.missing:
            raise UsageError(trial.missing)
        if trial.look is None:
            return f"{trial.kafka}, given as {word}, could not be judged: {trial.because}"
    assert good.look is not None
    assert bad.look is not None
    if good.look.verdict == "invalid":
        return f"{good.kafka}, given as good, is {good.came_out}: {good.because}"
    if not Comparison(low=good.look, high=bad.look).differs:
        return (
            f"{bad.kafka}, given as bad, is {bad.came_out}, and shows nothing that {good.kafka} doesn't; see --repeats"
        )
    return ""


def _listed(trials: Iterable[Trial]) -> str:
    return ", ".join(str(trial.kafka) for trial in trials)


def _runs(trials: Sequence[Trial]) -> str:
    count = sum(len(trial.runs) for trial in trials)
    return f"{count} run{'' if count == 1 else 's'} on {len(trials)} release{'' if len(trials) == 1 else 's'}"
