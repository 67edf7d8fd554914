"""One row for each run of a case: how it came out.

The row comes from the run folder. A case that was skipped or never began has no folder. Its row comes from the
``results-….json`` that ``jbod run`` leaves beside the run folders; that has the reason.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.crowding import CrowdedTime
from harness.events import DeviationSeen
from harness.measure.fault_costs import FaultCosts
from harness.runner.case import rerun_command
from harness.runner.deviation import NotedDeviation, State
from harness.runner.results import RESULTS_FILES
from harness.runner.set_option import options_of
from harness.runner.subrun import arguments_of
from harness.runner.suite_kinds import is_control, must_be_valid, suite_of
from reports.folder import Damaged, RunFolder, read_folder, run_folders

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

VERDICTS = ("invalid", "error", "unknown", "skipped", "valid")
"""The worst first."""

_MEANS = {
    "valid": "every guarantee held",
    "invalid": "a guarantee was broken",
    "unknown": "nothing was shown, either way",
    "error": "the harness or its environment failed",
    "skipped": "it did not run",
}
_KIPS = {
    18: "KIP-18+-+JBOD+Support",
    36: "KIP-36+Rack+aware+replica+assignment",
    112: "KIP-112%3A+Handle+disk+failure+for+JBOD",
    113: "KIP-113%3A+Support+replicas+movement+between+log+directories",
    455: "KIP-455%3A+Create+an+Administrative+API+for+Replica+Reassignment",
    858: "KIP-858%3A+Handle+JBOD+broker+disk+failure+in+KRaft",
    1066: "KIP-1066%3A+Mechanism+to+cordon+brokers+and+log+directories",
}


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What the run folder of a case and its entry in a results file both have."""

    id: str
    kip: int
    plan: str
    mode: str
    kafka: str
    backend: str
    verdict: str
    reason: str
    issue: str | None = None
    duration_s: float = 0.0
    rerun: str = ""


@dataclass(frozen=True, kw_only=True)
class Row(_Result):
    """How one run of one case came out.

    :ivar began: ISO 8601; of a case without a run folder, when its session began
    :ivar run_id: None if the case left no run folder
    :ivar crowding: how crowded the machine was; None if it is not known
    :ivar seen: the deviations that the build showed, whatever the verdict: for each behaviour, whether the build must
        show it in each run
    :ivar measured: figures of the scenario, by name
    """

    began: str
    run_id: str | None = None
    faults: Sequence[FaultCosts] = ()
    deviations: Sequence[NotedDeviation] = ()
    seed: int | None = None
    errors_logged: Sequence[Mapping[str, object]] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    crowding: CrowdedTime | None = None
    seen: Mapping[str, bool] = field(default_factory=dict)

    def deviations_in(self, state: State) -> list[NotedDeviation]:
        """Its deviations in this state."""
        return [each for each in self.deviations if each.state == state]

    @property
    def is_crowded(self) -> bool:
        """Whether its times were measured on a crowded machine."""
        return self.crowding is not None and self.crowding.marks_times

    @property
    def standing(self) -> str:
        """What the verdict counts as (:func:`standing`)."""
        return standing(self.id, self.verdict)

    @property
    def headline(self) -> str:
        """The verdict, for the top of the case's page."""
        as_it_must = is_control(self.id) and self.standing == "valid"
        return f"{self.verdict}, as this control must be" if as_it_must else self.verdict

    @property
    def says(self) -> str:
        """The reason, or what the verdict means."""
        if is_control(self.id) and self.verdict == "invalid" and self.standing == "valid":
            return f"harm was done on purpose: {self.reason}"
        if is_control(self.id) and self.standing == "error" and self.verdict != "error":
            return f"this control must not be {self.verdict}. {self.reason}".rstrip()
        return self.reason or _MEANS.get(self.verdict, "")

    @property
    def page(self) -> str | None:
        """The case's page, relative to the index page."""
        return f"cases/{self.run_id}.html" if self.run_id else None

    @property
    def kip_link(self) -> str | None:
        """The address of the KIP."""
        name = _KIPS.get(self.kip)
        return f"https://cwiki.apache.org/confluence/display/KAFKA/{name}" if name else None

    @property
    def build(self) -> str:
        """The Kafka version, with the backend unless it is processes."""
        return self.kafka if self.backend in ("process", "?") else f"{self.kafka} in {self.backend}"

    @property
    def suite(self) -> str:
        """The first part of its id."""
        return suite_of(self.id)

    @property
    def scenario(self) -> str:
        """Its id without the parameters."""
        return self.id.partition("[")[0]


def standing(case: str, verdict: str) -> str:
    """What a verdict counts as. A control counts as ``valid`` if it came out as it must, and else as ``error``."""
    if not is_control(case) or verdict not in ("valid", "invalid"):
        return verdict
    return "valid" if verdict == ("valid" if must_be_valid(case) else "invalid") else "error"


def row_of(folder: RunFolder) -> Row:
    """The row of a run folder."""
    run = folder.run
    verdict, reason = folder.outcome
    return Row(
        id=_id(folder),
        kip=run.kip,
        plan=run.plan,
        issue=run.issue,
        mode=run.mode,
        kafka=run.kafka.version,
        backend=run.backend or "?",
        verdict=verdict if verdict in VERDICTS else "error",
        reason=reason,
        duration_s=folder.ended,
        began=run.started_at,
        run_id=folder.name,
        faults=folder.faults,
        deviations=folder.deviations,
        rerun=rerun_command(folder.path),
        seed=run.seed,
        errors_logged=run.errors_logged,
        measured=run.measured,
        crowding=run.crowding,
        seen={event.does: event.always for event in folder.events if isinstance(event, DeviationSeen)},
    )


def _id(folder: RunFolder) -> str:
    """The case's id, with the options that change its settings: so it is not the newest run of the ordinary case.

    Random schedules get new numbers in each run, so their names come from their content.
    """
    run = folder.run
    unusual = "".join(
        f" {option}" for option in arguments_of(options_of(run.profile, run.settings, run.listener_security))
    )
    if run.schedule is None:
        return run.case + unusual
    content = json.dumps(run.schedule, sort_keys=True)
    drawn = "steps" if run.schedule.get("seed") is None else f"seed {run.schedule['seed']}"
    return f"{run.case.partition('[')[0]}[{run.mode}, {drawn}, {zlib.crc32(content.encode()):08x}]{unusual}"


@dataclass(frozen=True, kw_only=True)
class RunsRead:
    """The content of a runs folder.

    :ivar folders: the folders that can be read, by run id
    :ivar rows: all runs of all cases, oldest first
    :ivar notes: one sentence for each thing that is damaged, and for each case that never began
    """

    runs_dir: Path
    folders: Mapping[str, RunFolder]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def read_runs_dir(runs_dir: Path) -> RunsRead:
    """Read everything in a runs folder."""
    return read_runs(run_folders(runs_dir), runs_dir)


def read_runs(paths: Iterable[Path], runs_dir: Path) -> RunsRead:
    """Read run folders, and the results in ``runs_dir`` for the cases that left none."""
    folders, notes = {}, []
    rows: list[Row] = []
    ran = _Ran()
    for path in paths:
        try:
            folder = read_folder(path)
        except Damaged as damage:
            notes.append(str(damage))
            continue
        row = row_of(folder)
        folders[folder.name] = folder
        rows.append(row)
        for name in (folder.run.case, folder.run.nodeid):
            ran.note(name, row)
    without: dict[tuple[str, str, str], Row] = {}  # the newest; each night lists again what it cannot run
    overdue: dict[str, str] = {}
    for session in _sessions(runs_dir, notes):
        began = session.started_at
        for entry in session.scenarios:
            if entry.run_dir is None and not ran.since(began, entry.id, entry.kafka, entry.backend):
                without[entry.id, entry.kafka, entry.backend] = entry.row(began)
        for nodeid in session.not_reached:
            mode = nodeid.rpartition("[")[2].rstrip("]").partition("-")[0]
            if not ran.since(began, nodeid, session.kafka.get(mode), session.backend):
                notes.append(f"{nodeid} was selected and never began")
        for id, last in session.overdue.items():
            if not ran.since(began, id, **session.overdue_on.get(id, {})):
                overdue[id] = f"{id} was due and did not run; last run: {(last or 'never')[:16]}"
    rows += without.values()
    notes += overdue.values()
    return RunsRead(
        runs_dir=runs_dir, folders=folders, rows=tuple(sorted(rows, key=lambda r: r.began)), notes=tuple(notes)
    )


class _Ran:
    """When each case, by its id or node id, last left a run folder. A case that was skipped has not run."""

    def __init__(self) -> None:
        self._last: dict[str, dict[tuple[str, str], str]] = {}

    def note(self, name: str, row: Row) -> None:
        last = self._last.setdefault(name, {})
        on = row.kafka, row.backend
        last[on] = max(row.began, last.get(on, ""))

    def since(self, began: str, name: str, kafka: str | None = None, backend: str | None = None) -> bool:
        """Whether it ran then or later. Old files lack version and backend; then any will do."""
        return any(
            last >= began and kafka in (on, None) and backend in (within, None)
            for (on, within), last in self._last.get(name, {}).items()
        )


@dataclass(frozen=True, kw_only=True)
class _Entry(_Result):
    """An entry of ``scenarios`` (:meth:`harness.runner.case_result.CaseResult.to_json`)."""

    run_dir: str | None = None

    def row(self, began: str) -> Row:
        fields = {name: value for name, value in vars(self).items() if name != "run_dir"}
        return Row(**fields, began=began)


@dataclass(frozen=True, kw_only=True)
class _Session:
    """One of :data:`RESULTS_FILES`. Files of old versions lack fields.

    :ivar kafka: the version, by metadata mode
    :ivar overdue: when each overdue case last ran
    :ivar overdue_on: the ``kafka`` and ``backend`` on which it was due
    """

    started_at: str = ""
    scenarios: Sequence[_Entry] = ()
    not_reached: Sequence[str] = ()
    kafka: Mapping[str, str] = field(default_factory=dict)
    backend: str | None = None
    overdue: Mapping[str, str | None] = field(default_factory=dict)
    overdue_on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def _sessions(runs_dir: Path, notes: list[str]) -> Iterable[_Session]:
    for path in sorted(runs_dir.glob(RESULTS_FILES)):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=_Session)
        except msgspec.ValidationError as error:
            notes.append(f"{path.name} is damaged: {error}")
        except (OSError, msgspec.DecodeError) as error:
            notes.append(f"{path.name} can't be read: {error}")


def newest(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """For each case on each build and backend, its newest run, and all of its runs, oldest first.

    A skipped run counts as the newest only if the case never ran: a later skip does not replace an earlier result.
    """
    cases = grouped(rows, lambda row: (row.id, row.kafka, row.backend)).values()
    return [(next((row for row in reversed(of) if row.verdict != "skipped"), of[-1]), of) for of in cases]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their keys; both in the order in which they come."""
    found: dict[K, list[T]] = {}
    for each in items:
        found.setdefault(key(each), []).append(each)
    return found


def count_cases(count: int) -> str:
    """Such as "1 case"."""
    return f"{count} case{'' if count == 1 else 's'}"
