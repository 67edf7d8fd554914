"""What a case comes out as: one verdict from all that happened in it.

Several reasons speak of a case: what its phases raised, the judge, the floors of its load, the proofs of its faults.
The worst wins (:data:`harness.errors.EXIT_PRECEDENCE`), and none can be talked over: a scenario that ignores the
judge's verdict, or swallows the error of an unproven fault, has it counted here all the same. *Valid* is what is left
when the scenario ran to its end, was judged, and nobody objects.

Two things make all other reasons void, those of broken promises too: that what happened could not be written down, and
that the clock by which it was dated was set meanwhile. What the others say is told along with it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import EXIT_HARNESS, EXIT_INCONCLUSIVE, EXIT_INVALID, EXIT_PRECEDENCE, BuildLacks, JbodError
from harness.events import (
    DeviationEvent,
    DeviationMended,
    DeviationSeen,
    FaultInjecting,
    FaultNotProven,
    NodeEndedByItself,
)
from harness.runner.case import Case, Outcome
from harness.runner.deviation import Deviation, NotedDeviation, State

_OUTCOMES: dict[int, Outcome] = {EXIT_INVALID: "invalid", EXIT_INCONCLUSIVE: "unknown"}


@dataclass(kw_only=True)
class CaseLog:
    """What pytest saw of one case.

    :ivar called: the scenario itself ran, and passed
    :ivar skipped: why it was skipped, if it was
    :ivar troubles: what set-up, call and teardown raised, in that order
    """

    called: bool = False
    skipped: str | None = None
    troubles: list[BaseException] = field(default_factory=list)

    @property
    def came_to_an_end(self) -> bool:
        """It was not interrupted, by Ctrl-C say: pytest then reports nothing more, and whoever reads of no failure
        would not look for the cluster of one.
        """
        return self.called or self.skipped is not None or bool(self.troubles)


def conclude(
    seen: CaseLog,
    case: Case | None,
    *,
    must_be_judged: bool,
    test_file: Path,
    deviations: Sequence[Deviation] = (),
) -> tuple[Outcome, str]:
    """The verdict and the reason for it.

    :param case: None where it never began
    :param must_be_judged: the scenario is nothing without a verdict of the judge
    :param deviations: that the scenario declares of this build: each must have been seen or found mended, but those
        that don't always show
    :param test_file: an ``assert`` in this file is a promise of the scenario; one elsewhere is the harness's own
    """
    reasons = [*_raised(seen.troubles, test_file), *(_judged(case) if case else ())]
    if seen.called and case is not None:
        reasons += _unmissed(case)
    if not reasons and seen.skipped is not None:
        if case is None or not any(case.journal.of(FaultInjecting)):
            return "skipped", seen.skipped
        reasons.append((EXIT_INCONCLUSIVE, f"skipped in the midst of it: {seen.skipped}"))
    if not reasons and not seen.called:
        reasons.append((EXIT_HARNESS, "the scenario itself never ran"))
    if not reasons and must_be_judged and (case is None or case.verdict is None):
        reasons.append((EXIT_INCONCLUSIVE, "the scenario ended without a verdict of the judge"))
    if not reasons and case is not None:
        noted = {each.actual for each in deviations_of(case, deviations)}
        if unseen := [each.actual for each in deviations if each.deterministic and each.actual not in noted]:
            reasons.append((EXIT_INCONCLUSIVE, f"nothing showed what this build is known for: {'; '.join(unseen)}"))
    if void := _overriding_reason(case) if case else None:
        code, reason = void
        return _OUTCOMES.get(code, "error"), "; besides: ".join([reason, *(said for _, said in reasons)])
    if not reasons:
        return "valid", ""
    code, reason = min(reasons, key=lambda found: EXIT_PRECEDENCE.index(found[0]))
    return _OUTCOMES.get(code, "error"), reason


def deviations_of(case: Case, declared: Sequence[Deviation]) -> list[NotedDeviation]:
    """What the case says of deviations: first those that its scenario declares of this build, then others it has seen.

    A deviation that was seen once is not mended, though a part of it may be.
    """
    seen, mended = _noted(case, DeviationSeen), _noted(case, DeviationMended)
    known = {each.actual: each for each in declared}
    states: dict[str, State] = {does: "seen" if does in seen else "mended" for does in known if does in seen | mended}
    undeclared = [replace(each, state="undeclared") for does, each in seen.items() if does not in known]
    return [*(known[does].noted(state) for does, state in states.items()), *undeclared]


def _noted(case: Case, kind: type[DeviationEvent]) -> dict[str, NotedDeviation]:
    """The deviations of which the journal has an event of this kind, by what builds with them do."""
    return {event.does: NotedDeviation.from_json(event.details()) for event in case.journal.of(kind)}


def _overriding_reason(case: Case) -> tuple[int, str] | None:
    """Why nothing that was seen of the case counts."""
    if failure := case.journal.failure:
        why = f"the run folder {case.run_dir} could not be written: {failure.strerror}; see --runs-dir"
        return EXIT_HARNESS, why
    if step := case.journal.clock_stepped_s():
        why = f"this machine's clock was set by {step:+.2f} s while the case ran: what is dated by it can't be compared"
        return EXIT_INCONCLUSIVE, why
    return None


def _raised(troubles: list[BaseException], test_file: Path) -> Iterator[tuple[int, str]]:
    """Each error, and what it was raised on top of: an undo that fails must not hide a broken promise."""
    for trouble in troubles:
        error: BaseException | None = _lack_in(trouble) or trouble  # what came of a lack is its consequence
        while error is not None:
            if error is trouble or isinstance(error, JbodError):
                yield _code(error, test_file), _text(error)
            error = error.__context__


def _lack_in(trouble: BaseException) -> BuildLacks | None:
    """What the build lacks, where that is what an error was raised on top of."""
    error: BaseException | None = trouble
    while error is not None and not isinstance(error, BuildLacks):
        error = error.__context__
    return error


def _code(error: BaseException, test_file: Path) -> int:
    if isinstance(error, BuildLacks):
        return EXIT_INCONCLUSIVE
    if isinstance(error, JbodError):
        return error.exit_code
    if isinstance(error, AssertionError):
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        if frame is not None and Path(frame.tb_frame.f_code.co_filename) == test_file:
            return EXIT_INVALID
    return EXIT_HARNESS


def _text(error: BaseException) -> str:
    known = isinstance(error, JbodError | AssertionError) and str(error).strip()
    return str(error).strip() if known else f"{type(error).__name__}: {error}"


def _unmissed(case: Case) -> Iterator[tuple[int, str]]:
    """Nodes that ended by themselves while the scenario looked elsewhere, and ran to its end.

    One that was broken off may have left a broker without what it needs. What a broken broker means, and one that was
    killed: :meth:`harness.cluster.cluster.Cluster.check_nodes`.
    """
    for event in case.journal.of(NodeEndedByItself):
        code = event.exit_code
        promised = event.node.startswith("broker-") and code != -signal.SIGKILL
        reason = f"{event.node} ended by itself with exit code {code}, and the scenario went on: its log is in brokers/"
        yield EXIT_INVALID if promised else EXIT_HARNESS, reason


def _judged(case: Case) -> Iterator[tuple[int, str]]:
    if case.verdict is not None and case.verdict.verdict != "valid":
        code = EXIT_INVALID if case.verdict.verdict == "invalid" else EXIT_INCONCLUSIVE
        yield code, "; ".join(case.verdict.reasons)
    if case.shortfalls:
        yield EXIT_INCONCLUSIVE, "; ".join(case.shortfalls)
    for event in case.journal.of(FaultNotProven):
        yield EXIT_INCONCLUSIVE, f"{event.fault} on {event.target} was not proven to have taken effect"
