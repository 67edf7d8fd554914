"""Decides the outcome of a mutant from its trials and those of its twin, the unchanged build."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from suites.mutants.mutant import Mutant
from suites.mutants.trial import Trial

_NO_EVIDENCE = ("error", "unknown")
BLAMED_AFTER = 2
"""Runs of a case, all of them an error or unknown, after which the harness has blamed itself."""


class Outcome(StrEnum):
    """What became of a mutant."""

    CAUGHT = "caught"
    OTHER_REASON = "caught for another reason"
    BLAMED = "blamed on us"
    THROUGH = "got through"
    NOT_REACHED = "not reached"
    STILLBORN = "stillborn"
    EQUIVALENT = "equivalent"
    NOT_MEASURED = "not measured"

    @property
    def counts(self) -> bool:
        """Whether it is in the score's denominator. A build on which no cluster comes up tests no suite."""
        return self not in (Outcome.STILLBORN, Outcome.EQUIVALENT, Outcome.NOT_MEASURED)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The outcome of a mutant on one build in one mode.

    :ivar case: the case that showed it; None if none did
    :ivar seconds: the median time of that case until it was red; None if it was not
    :ivar says: why
    """

    outcome: Outcome
    says: str = ""
    case: str | None = None
    seconds: float | None = None


def score(decisions: Sequence[Decision]) -> tuple[int, int]:
    """How many mutants were caught, and of how many that count."""
    counted = [each.outcome for each in decisions if each.outcome.counts]
    return counted.count(Outcome.CAUGHT), len(counted)


def decide(mutant: Mutant, trials: Sequence[Trial], twins: Mapping[str, Trial], times: int) -> Decision:
    """Decide the outcome.

    :param trials: on the mutant
    :param twins: the trial of each case on the unchanged build, if there was one
    :param times: how often a case must be invalid for the right reason, in each of its runs
    """
    if mutant.equivalent:
        return Decision(outcome=Outcome.EQUIVALENT, says=mutant.equivalent)
    ran = [trial for trial in trials if trial.verdict != "skipped"]
    if not ran:
        why = next((trial.reason for trial in trials), "none of its scenarios is for this build and mode")
        return Decision(outcome=Outcome.NOT_MEASURED, says=why)
    if not any(trial.came_up for trial in ran):
        return Decision(outcome=Outcome.STILLBORN, says=ran[0].reason)
    of = {case: [trial for trial in ran if trial.case == case] for case in dict.fromkeys(each.case for each in ran)}
    notes: list[str] = []
    shown = {case: runs for case, runs in of.items() if _twin_is_valid(case, runs, twins, notes)}
    for case, runs in shown.items():
        red = [trial for trial in runs if trial.is_red_for(mutant)]
        if len(red) == len(runs) >= times:
            seconds = statistics.median(trial.duration_s for trial in red)
            return Decision(outcome=Outcome.CAUGHT, says=red[0].reason, case=case, seconds=seconds)
        if red:
            notes.append(f"{case} was red for the right reason in {len(red)} of {len(runs)} runs")
    for case, runs in shown.items():
        other = [trial for trial in runs if trial.verdict == "invalid" and not trial.is_red_for(mutant)]
        if len(other) == len(runs):
            return Decision(outcome=Outcome.OTHER_REASON, says="; ".join((other[0].reason, *notes)), case=case)
        if other:
            notes.append(f"{case} was invalid for another reason in {len(other)} of {len(runs)} runs")
    for case, runs in shown.items():
        if len(runs) >= BLAMED_AFTER and all(trial.verdict in _NO_EVIDENCE for trial in runs):
            return Decision(outcome=Outcome.BLAMED, says="; ".join((runs[0].reason, *notes)), case=case)
    if not any(trial.reached for trial in ran):
        return Decision(outcome=Outcome.NOT_REACHED, says="; ".join(notes) or f"not by {', '.join(of)}")
    return Decision(outcome=Outcome.THROUGH, says="; ".join(notes) or f"valid: {', '.join(of)}")


def _twin_is_valid(case: str, runs: Sequence[Trial], twins: Mapping[str, Trial], notes: list[str]) -> bool:
    """Whether the runs of a case say something about the mutant, as the unchanged build is valid."""
    if all(trial.verdict == "valid" for trial in runs):
        return True
    twin = twins.get(case)
    if twin is None or twin.verdict != "valid":
        notes.append(f"{case} says nothing: on the unchanged build it is {twin.verdict if twin else 'not measured'}")
        return False
    return True
