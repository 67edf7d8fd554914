"""One row a case: how it came out, from its run folder or, where it left none, from its run's results.

A case that was skipped, or never got its turn, has no folder; ``jbod run`` leaves ``results-….json`` beside the run
folders, which names it. So what did not run can be said, and why.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.events import DeviationSeen
from harness.measure.fault_costs import FaultCosts
from harness.runner.case import rerun_command
from harness.runner.deviation import NotedDeviation, State
from harness.runner.results import RESULTS_FILES
from harness.runner.suite_kinds import is_control, must_be_valid, suite_of
from reports.folder import Damaged, RunFolder, read_folder, run_folders

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
class Row:
    """How one run of one case came out.

    :ivar run_id: of its run folder; None where it left none
    :ivar faults: what each cost
    :ivar deviations: what it says of known deviations
    :ivar seen: what the build was seen to do other than a KIP says, however the case came out, and whether it must show
        it each time: else that is Kafka's choice
    :ivar measured: figures by name, of scenarios that take any
    """

    id: str
    kip: int
    plan: str
    issue: str | None
    mode: str
    kafka: str
    backend: str
    verdict: str
    reason: str
    duration_s: float
    began: str
    run_id: str | None
    faults: tuple[FaultCosts, ...]
    deviations: Sequence[NotedDeviation]
    rerun: str
    seed: int | None = None
    errors_logged: Sequence[Mapping[str, Any]] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, bool] = field(default_factory=dict)

    @property
    def is_control(self) -> bool:
        """Whether it shows that harm is found, and must be red but for its green twin (suites/controls)."""
        return is_control(self.id)

    def deviations_in(self, *states: State) -> list[NotedDeviation]:
        """Those of its deviations that are in any of these states."""
        return [each for each in self.deviations if each.state in states]

    @property
    def standing(self) -> str:
        """What the verdict counts as."""
        return standing(self.id, self.verdict)

    @property
    def headline(self) -> str:
        """The verdict, for the top of its page."""
        return (
            f"{self.verdict}, as this control must be" if self.is_control and self.standing == "valid" else self.verdict
        )

    @property
    def says(self) -> str:
        """The reason, or what the verdict means."""
        if self.is_control and self.verdict == "invalid" and self.standing == "valid":
            return f"harm was done on purpose: {self.reason}"
        if self.is_control and self.standing == "error" and self.verdict != "error":
            return f"a control that should have come out otherwise: {self.verdict} {self.reason}"
        return self.reason or self.meaning

    @property
    def meaning(self) -> str:
        """What the verdict means."""
        return _MEANS.get(self.verdict, "")

    @property
    def page(self) -> str | None:
        """Its page, from the index page."""
        return f"cases/{self.run_id}.html" if self.run_id else None

    @property
    def kip_link(self) -> str | None:
        """The KIP's text."""
        name = _KIPS.get(self.kip)
        return f"https://cwiki.apache.org/confluence/display/KAFKA/{name}" if name else None

    @property
    def build(self) -> str:
        """The Kafka that it ran on, and in what, where that is no process."""
        return self.kafka if self.backend in ("process", "?") else f"{self.kafka} in {self.backend}"

    @property
    def suite(self) -> str:
        """What its id begins with."""
        return suite_of(self.id)

    @property
    def scenario(self) -> str:
        """Its id without the parameters."""
        return self.id.partition("[")[0]


def standing(case: str, verdict: str) -> str:
    """What a verdict counts as: a control that came out as it must is ``valid``, one that didn't ``error``."""
    if not is_control(case) or verdict not in ("valid", "invalid"):
        return verdict
    return "valid" if verdict == ("valid" if must_be_valid(case) else "invalid") else "error"


def row_of(folder: RunFolder) -> Row:
    """The row of a case that left a folder."""
    run = folder.run
    verdict, reason = folder.outcome
    return Row(
        id=_id(run),
        kip=run["kip"],
        plan=run.get("plan") or "",
        issue=run.get("issue"),
        mode=run["mode"],
        kafka=str((run.get("kafka") or {}).get("version", "?")),
        backend=run.get("backend") or "?",
        verdict=verdict if verdict in VERDICTS else "error",
        reason=reason,
        duration_s=folder.ended,
        began=run["started_at"],
        run_id=folder.name,
        faults=folder.faults,
        deviations=[NotedDeviation.from_json(each) for each in run.get("deviations") or ()],
        rerun=rerun_command(folder.path),
        seed=run.get("seed"),
        errors_logged=run.get("errors_logged") or (),
        measured=run.get("measured") or {},
        seen={event.does: event.always for event in folder.events if isinstance(event, DeviationSeen)},
    )


def _id(run: Mapping[str, Any]) -> str:
    """The case's id; of a random schedule, which is numbered anew in each run, by what it was drawn from or holds."""
    schedule = run.get("schedule")
    if not isinstance(schedule, Mapping):
        return str(run["case"])
    content = json.dumps(schedule, sort_keys=True)
    drawn = f"seed {schedule['seed']}" if schedule.get("seed") is not None else "steps"
    return f"{run['case'].partition('[')[0]}[{run['mode']}, {drawn}, {zlib.crc32(content.encode()):08x}]"


@dataclass(frozen=True, kw_only=True)
class RunsRead:
    """All that a runs folder tells.

    :ivar folders: those that can be read, by their run id
    :ivar rows: of every case, in order of time
    :ivar notes: what is damaged, and what never got its turn, a sentence each
    """

    runs_dir: Path
    folders: Mapping[str, RunFolder]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def read_runs(paths: Iterable[Path], runs_dir: Path) -> RunsRead:
    """Read run folders, and what the runs' own results say of cases that left none."""
    folders, notes = {}, []
    rows: list[Row] = []
    ran = _Ran()
    for path in paths:
        try:
            folder = read_folder(path)
            row = row_of(folder)
        except Damaged as damage:
            notes.append(str(damage))
            continue
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            notes.append(f"{path} is damaged: {error!r}")
            continue
        folders[folder.name] = folder
        rows.append(row)
        for name in (folder.run["case"], folder.run.get("nodeid", "")):
            ran.note(name, row.kafka, row.backend, row.began)
    without: dict[tuple[str, str, str], Row] = {}  # the last of each; a night says each night what it can't run
    overdue: dict[str, str] = {}
    for path, session in _sessions(runs_dir, notes):
        began = str(session.get("started_at", ""))
        try:
            for entry in session.get("scenarios", ()):
                on = entry["kafka"], entry["backend"]
                if entry.get("run_dir") is None and not ran.since(began, entry["id"], *on):
                    without[entry["id"], *on] = _row_of_entry(entry, began)
            for nodeid in session.get("not_reached", ()):
                mode = nodeid.rpartition("[")[2].rstrip("]").partition("-")[0]
                if not ran.since(began, nodeid, session.get("kafka", {}).get(mode), session.get("backend")):
                    notes.append(f"{nodeid} was selected and never got its turn")
            for id, last in session.get("overdue", {}).items():
                if not ran.since(began, id, **session.get("overdue_on", {}).get(id, {})):
                    overdue[id] = f"{id} had to run by now, and didn't: it last ran {(last or 'never')[:16]}"
        except (KeyError, TypeError, AttributeError) as error:
            notes.append(f"{path.name} is damaged: {error!r}")
    rows += without.values()
    notes += overdue.values()
    return RunsRead(
        runs_dir=runs_dir, folders=folders, rows=tuple(sorted(rows, key=lambda r: r.began)), notes=tuple(notes)
    )


class _Ran:
    """When each case, or node id, was last run so that a folder was left; one that was skipped has not run."""

    def __init__(self) -> None:
        self._last: dict[str, dict[tuple[str, str], str]] = {}

    def note(self, name: str, kafka: str, backend: str, began: str) -> None:
        last = self._last.setdefault(name, {})
        last[kafka, backend] = max(began, last.get((kafka, backend), ""))

    def since(self, began: str, name: str, kafka: str | None = None, backend: str | None = None) -> bool:
        """Whether it ran then or later; on any version, in any backend, where an old file doesn't tell them."""
        return any(
            last >= began and kafka in (on, None) and backend in (within, None)
            for (on, within), last in self._last.get(name, {}).items()
        )


def read_runs_dir(runs_dir: Path) -> RunsRead:
    """Everything in a runs folder."""
    return read_runs(run_folders(runs_dir), runs_dir)


def _sessions(runs_dir: Path, notes: list[str]) -> Iterable[tuple[Path, Mapping[str, Any]]]:
    for path in sorted(runs_dir.glob(RESULTS_FILES)):
        try:
            content = json.loads(path.read_text())
            if isinstance(content, dict):
                yield path, content
        except (OSError, ValueError) as error:
            notes.append(f"{path.name} can't be read: {error}")


def _row_of_entry(entry: Mapping[str, Any], began: str) -> Row:
    fields = {name: entry[name] for name in ("id", "kip", "plan", "mode", "kafka", "backend", "verdict", "reason")}
    return Row(
        **fields,
        issue=entry.get("issue"),
        duration_s=entry.get("duration_s", 0.0),
        began=began,
        run_id=None,
        faults=(),
        deviations=(),
        rerun=entry.get("rerun", ""),
    )


def newest(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Of each case, build and backend the newest run, with all of its runs, oldest first.

    That it could not be run since takes nothing back: such a row is the newest only where the case never ran.
    """
    by_case: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        by_case.setdefault((row.id, row.kafka, row.backend), []).append(row)
    return [(next((row for row in reversed(of) if row.verdict != "skipped"), of[-1]), of) for of in by_case.values()]


def so_many_cases(count: int) -> str:
    """Such as "1 case"."""
    return f"{count} case{'' if count == 1 else 's'}"
