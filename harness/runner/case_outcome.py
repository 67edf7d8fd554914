"""Decides the verdict of a case from everything that happened in it.

Reasons against a case come from the errors of its phases, the judge, the floors of its load, the proofs of its faults,
and its nodes: one that ended by itself, or a failure or a flood in its log. The worst one wins
(:data:`harness.errors.EXIT_PRECEDENCE`). A scenario cannot hide a reason: the judge's verdict and an unproven fault
count even if the scenario ignores or catches them. A case is *valid* if the scenario ran to its end, was judged, and
there is no reason against it.

Two reasons override all others, including broken promises: the run folder could not be written, or the machine's clock
was set during the case. The verdict then names the other reasons too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.cluster.nodes.endings import cause_in_environment
from harness.errors import (
    EXIT_HARNESS,
    EXIT_INCONCLUSIVE,
    EXIT_INVALID,
    EXIT_PRECEDENCE,
    BuildLacks,
    JbodError,
    PromiseBroken,
)
from harness.events import (
    ClusterUnsettled,
    DeviationEvent,
    DeviationMended,
    DeviationSeen,
    FaultInjecting,
    FaultNotProven,
    HoldOver,
    MetadataLogRead,
    NodeEndedByItself,
)
from harness.measure.clean_stops import incomplete_stops, stale_marks, wrong_recoveries
from harness.measure.discarded_logs import discarded_logs
from harness.measure.early_unfencing import early_unfencings
from harness.measure.log_floods import log_floods
from harness.measure.node_failures import node_failures
from harness.runner.case import Case, Outcome
from harness.runner.deviation import Deviation, NotedDeviation, State

_OUTCOMES: dict[int, Outcome] = {EXIT_INVALID: "invalid", EXIT_INCONCLUSIVE: "unknown"}


@dataclass(kw_only=True)
class CaseLog:
    """What pytest reported about one case.

    :ivar called: whether the scenario itself ran and passed
    :ivar skipped: why it was skipped; None if it was not
    :ivar troubles: the errors of set-up, call and teardown, in this order
    """

    called: bool = False
    skipped: str | None = None
    troubles: list[BaseException] = field(default_factory=list)

    @property
    def came_to_an_end(self) -> bool:
        """Whether pytest reported the case. It reports nothing for an interrupted one, for example by Ctrl-C.

        The user then sees no failure, and does not expect a kept cluster.
        """
        return self.called or self.skipped is not None or bool(self.troubles)


def conclude(
    case_log: CaseLog,
    case: Case | None,
    *,
    must_be_judged: bool,
    test_file: Path,
    deviations: Sequence[Deviation] = (),
    in_logs: Sequence[Deviation] = (),
) -> tuple[Outcome, str]:
    """Return the verdict of a case and the reason for it.

    :param case: None if the case never began
    :param must_be_judged: whether the scenario requires a verdict of the judge
    :param deviations: those that the scenario declares for this build; each deterministic one must have been seen or
        found fixed
    :param in_logs: those that the nodes' logs may show on this build, also the undeclared ones
    :param test_file: a failed ``assert`` in this file breaks a promise; one elsewhere is an error of the harness
    """
    reasons = [*_raised(case_log.troubles, test_file), *(_judged(case) if case else ())]
    if case is not None and case_log.came_to_an_end:
        reasons += _unexpected_ends(case, called=case_log.called)
    if case_log.called and case is not None:
        reasons += _unsettled(case)
    if case is not None:
        undeclared = [each for each in in_logs if each not in deviations]
        reasons += _logged(case, deviations, undeclared, called=case_log.called)
        reasons += [(EXIT_INVALID, each) for event in case.journal.of(MetadataLogRead) for each in event.irregular]
    if not reasons and case_log.skipped is not None:
        if case is None or not any(case.journal.of(FaultInjecting)):
            return "skipped", case_log.skipped
        reasons.append((EXIT_INCONCLUSIVE, f"skipped after a fault: {case_log.skipped}"))
    if not reasons and not case_log.called:
        reasons.append((EXIT_HARNESS, "the scenario itself never ran"))
    if not reasons and must_be_judged and (case is None or case.verdict is None):
        reasons.append((EXIT_INCONCLUSIVE, "the scenario ended without a verdict of the judge"))
    if not reasons and case is not None:
        noted = {each.actual for each in deviations_of(case, deviations)}
        if unseen := [each.actual for each in deviations if each.deterministic and each.actual not in noted]:
            reasons.append((EXIT_INCONCLUSIVE, f"the known deviation of this build was not seen: {'; '.join(unseen)}"))
    if case is not None and (long := _long_holds(case)):
        if not reasons:
            reasons = [(EXIT_INCONCLUSIVE, f"{long}; the race may have gone another way")]
        elif any(code == EXIT_INVALID for code, _ in reasons):
            reasons = [(EXIT_INCONCLUSIVE, f"{long}; it might be why: {'; '.join(reason for _, reason in reasons)}")]
    if overriding := _overriding_reason(case) if case else None:
        code, reason = overriding
        return _OUTCOMES.get(code, "error"), "; besides: ".join([reason, *(other for _, other in reasons)])
    if not reasons:
        return "valid", ""
    code, reason = min(reasons, key=lambda found: EXIT_PRECEDENCE.index(found[0]))
    return _OUTCOMES.get(code, "error"), reason


def deviations_of(case: Case, declared: Sequence[Deviation]) -> list[NotedDeviation]:
    """Return the deviations of a case, each with its state.

    Declared deviations that were seen or found mended come first, then undeclared ones that were seen. A deviation that
    was seen at least once is not mended, even if it was absent at another time.
    """
    seen, mended = _noted(case, DeviationSeen), _noted(case, DeviationMended)
    known = {each.actual: each for each in declared}
    states: dict[str, State] = {does: "seen" if does in seen else "mended" for does in known if does in seen | mended}
    undeclared = [replace(each, state="undeclared") for does, each in seen.items() if does not in known]
    return [*(known[does].noted(state) for does, state in states.items()), *undeclared]


def _noted(case: Case, kind: type[DeviationEvent]) -> dict[str, NotedDeviation]:
    """Return the deviations in the journal's events of this class, by what builds with them do."""
    return {event.does: NotedDeviation.from_json(event.details()) for event in case.journal.of(kind)}


def _overriding_reason(case: Case) -> tuple[int, str] | None:
    """Return why all other observations of the case are unreliable; None if they are not."""
    if failure := case.journal.failure:
        why = f"cannot write to the run folder {case.run_dir}: {failure.strerror}; see --runs-dir"
        return EXIT_HARNESS, why
    if step := case.journal.clock_stepped_s():
        why = f"this machine's clock was set by {step:+.2f} s during the case: its time stamps cannot be compared"
        return EXIT_INCONCLUSIVE, why
    return None


def _long_holds(case: Case) -> str:
    """Return the holds that lasted as long as they may; "" if there are none.

    A longer hold outlasts a session or the time-out of a request. That is no slow thread any more, and proves nothing.
    """
    return "; ".join(
        f"{event.thread} of {event.node} was held at {event.point} for {event.held_ms / 1000:.1f} s, its limit"
        for event in case.journal.of(HoldOver)
        if event.why == "limit"
    )


def _raised(troubles: list[BaseException], test_file: Path) -> Iterator[tuple[int, str]]:
    """Yield each error and the errors that it was raised on top of: a failed undo must not hide a broken promise.

    An error that was raised ``from`` another one restates that one, and replaces it.
    """
    for trouble in troubles:
        error: BaseException | None = _lack_in(trouble) or trouble  # errors raised on top of a lack follow from it
        while error is not None:
            if error is trouble or isinstance(error, JbodError):
                yield _code(error, test_file), _text(error)
            error = _before(error)


def _before(error: BaseException) -> BaseException | None:
    """Return the error that an error was raised on top of, without those that it replaces."""
    before = error.__context__
    while before is not None and before is error.__cause__:
        error, before = before, before.__context__
    return before


def _lack_in(trouble: BaseException) -> BuildLacks | None:
    """Return the :class:`BuildLacks` that an error was raised on top of, if there is one."""
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


def _unexpected_ends(case: Case, *, called: bool) -> Iterator[tuple[int, str]]:
    """Yield the nodes that ended by themselves.

    Kafka must keep brokers and controllers running, unless the end has a cause outside Kafka
    (:mod:`harness.cluster.nodes.endings`). A scenario that was aborted may have left a node without its disks. So there
    a node counts only if no fault struck it.
    """
    struck = set() if called else {event.struck for event in case.journal.of(FaultInjecting)}
    for event in case.journal.of(NodeEndedByItself):
        promised = event.node.startswith(("broker-", "controller-")) and event.cause is None
        if event.node in struck or not (called or promised):
            continue
        reason = (
            f"{event.node} ended by itself with exit code {event.exit_code}{f' ({event.cause})' if event.cause else ''}"
            f"{', and the scenario went on' if called else ''}: see its log in brokers/"
        )
        yield EXIT_INVALID if promised else EXIT_HARNESS, reason


def _logged(
    case: Case, declared: Sequence[Deviation], undeclared: Sequence[Deviation], *, called: bool
) -> Iterator[tuple[int, str]]:
    """Yield what the nodes' logs show.

    These are good replicas thrown away, brokers unfenced too early, incomplete stops, wrong recoveries, stale marks,
    failures, and floods. All but the last two count only if the scenario ran to its end. A log that cannot be read is
    an error of the case.
    """
    try:
        if called:
            for find in (discarded_logs, early_unfencings, incomplete_stops, wrong_recoveries, stale_marks):
                yield from ((EXIT_INVALID, str(each)) for each in find(case.journal.events, case.run_dir))
        yield from _node_failures(case, [*_shown(case, declared, called=called), *undeclared])
        yield from _log_floods(case, declared, called=called)
    except OSError as error:
        yield EXIT_HARNESS, f"cannot read the run folder {case.run_dir}: {error}; see --runs-dir"


def _node_failures(case: Case, deviations: Sequence[Deviation]) -> Iterator[tuple[int, str]]:
    """Yield the failures in the nodes' logs, except those that one of these deviations explains.

    Kafka is to blame, unless the error has a cause outside Kafka. A full disk is no such cause: a fault fills a log
    dir. If the run's own disk is full, that overrides everything.
    """
    known = [each.failures for each in deviations if each.failures]
    for failure in node_failures(case.journal.events, case.run_dir):
        if not all(any(re.search(pattern, line.text) for pattern in known) for line in failure.lines):
            yield _blamed(case, str(failure), failure.lines[0].text)


def _log_floods(case: Case, declared: Sequence[Deviation], *, called: bool) -> Iterator[tuple[int, str]]:
    """Yield the floods in the nodes' logs, except lines that a declared deviation explains, if the case showed it."""
    known = [each.floods for each in _shown(case, declared, called=called) if each.floods]
    for flood in log_floods(case.run_dir, known):
        is_kafka = flood.node != "zookeeper"
        yield _blamed(case, str(flood), flood.line) if is_kafka else (EXIT_HARNESS, str(flood))


def _shown(case: Case, declared: Sequence[Deviation], *, called: bool) -> list[Deviation]:
    """Return the declared deviations that the case showed; all if it did not run to its end, where their checks are."""
    seen = {each.actual for each in deviations_of(case, declared) if each.state == "seen"}
    return [each for each in declared if not called or each.actual in seen]


def _blamed(case: Case, what: str, text: str) -> tuple[int, str]:
    """Return the reason with its code: Kafka is to blame unless the logged text has a cause outside Kafka."""
    own_build = case.extra.get("kafka", {}).get("source") == "home"
    cause = cause_in_environment(None, text, may_be_full=True, starting=False, own_build=own_build)
    return EXIT_INVALID if cause is None else EXIT_HARNESS, f"{what}{f' ({cause})' if cause else ''}"


def _unsettled(case: Case) -> Iterator[tuple[int, str]]:
    """Yield what was still under way at the end (:mod:`harness.cluster.under_way`)."""
    for event in case.journal.of(ClusterUnsettled):
        yield EXIT_INVALID if event.error == PromiseBroken.__name__ else EXIT_INCONCLUSIVE, event.says


def _judged(case: Case) -> Iterator[tuple[int, str]]:
    if case.verdict is not None and case.verdict.verdict != "valid":
        code = EXIT_INVALID if case.verdict.verdict == "invalid" else EXIT_INCONCLUSIVE
        yield code, "; ".join(case.verdict.reasons)
    if case.shortfalls:
        yield EXIT_INCONCLUSIVE, "; ".join(case.shortfalls)
    for event in case.journal.of(FaultNotProven):
        yield EXIT_INCONCLUSIVE, f"{event.fault} on {event.target} was not proven to have taken effect"
