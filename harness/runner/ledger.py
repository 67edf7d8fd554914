"""The ledger of a runs folder: which cases ran, when, and how they came out, over all runs.

``ledger.jsonl`` in the runs folder has one line for each case, appended when the case ends. Run folders may be deleted
without loss. The ledger shows which cases have not run for long (:func:`longest_ago`), which are flaky, and how long
each takes. A skipped case has no line, and neither has a case on a mutant, with ``--set`` or
with another profile than the fast one.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from harness.journal import now
from harness.runner.case_result import CaseResult
from harness.runner.suite_kinds import is_random

NAME = "ledger.jsonl"
_SHOWN = ("valid", "invalid")
CLOCKS_DIFFER = timedelta(minutes=5)
"""Entries dated further ahead of this machine's clock are ignored: another machine wrote them, or this clock
was set."""
UNKNOWN_S = 40.0
"""The assumed duration in seconds of a case that never ran."""


@dataclass(frozen=True, kw_only=True)
class Struck:
    """What a proven fault hit, and under what load.

    :ivar role: the role of the broker that it hit; ``also`` has its other roles (:class:`harness.measure.roles.Role`)
    :ivar acked: the records acked while it was in force, and ``read`` the records read; None if no pair ran
    """

    fault: str
    role: str | None
    also: tuple[str, ...] = ()
    acked: int | None
    read: int | None

    def roles(self) -> Sequence[str | None]:
        """Return all roles of the broker; ``[None]`` if it had none."""
        return [role for role in (self.role, *self.also) if role] or [None]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One case that ran.

    :ivar faults: the proven faults, each as "name on target"
    :ivar struck: what each of them hit; empty in old lines
    :ivar sha256: of the build's jars; empty in old lines
    """

    at: datetime
    id: str
    kip: int
    plan: str
    mode: str
    kafka: str
    backend: str
    verdict: str
    duration_s: float
    run_id: str
    seed: int
    faults: tuple[str, ...]
    sha256: str = ""
    struck: tuple[Struck, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the content of one line of the file."""
        return {**vars(self), "at": self.at.isoformat(), "struck": [asdict(each) for each in self.struck]}


def note(runs_dir: Path, result: CaseResult) -> None:
    """Append a case that ended, unless it was skipped or is no ordinary run. A full disk raises no error."""
    if result.verdict == "skipped" or result.run_dir is None or not result.is_ordinary:
        return
    proven = [fault for fault in result.faults if fault.proven]
    entry = Entry(
        at=now(),
        id=result.case.id,
        kip=result.case.kip,
        plan=result.case.plan,
        mode=result.case.mode,
        kafka=result.kafka,
        backend=result.backend,
        verdict=result.verdict,
        duration_s=round(result.duration_s, 1),
        run_id=result.run_dir.name,
        seed=result.case.seed,
        faults=tuple(f"{fault.name} on {fault.target}" for fault in proven),
        sha256=result.sha256,
        struck=tuple(
            Struck(fault=fault.name, role=fault.role, also=fault.also, acked=fault.acked_during, read=fault.read_during)
            for fault in proven
        ),
    )
    line = json.dumps(entry.to_json()).encode() + b"\n"
    with suppress(OSError), (runs_dir / NAME).open("a+b") as file:  # a full disk says nothing about Kafka
        if file.tell() and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
            line = b"\n" + line  # a truncated line must not spoil this one
        file.write(line)  # one write, so that lines of two runs do not mix


def read(runs_dir: Path) -> list[Entry]:
    """Return all entries, oldest first; none if there is no ledger yet.

    Lines that were truncated by a full disk or a kill are ignored. So are lines dated in the future
    (:data:`CLOCKS_DIFFER`): their cases run again sooner.
    """
    path = runs_dir / NAME
    if not path.exists():
        return []
    entries, latest = [], now() + CLOCKS_DIFFER
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(msgspec.MsgspecError, TypeError):  # TypeError: an instant without a time zone
            if (entry := msgspec.json.decode(line, type=Entry)).at <= latest:
                entries.append(entry)
    return entries


def last_run(entries: Iterable[Entry]) -> dict[str, datetime]:
    """Return when each case was last valid or invalid. Unknown and error do not count."""
    return {entry.id: entry.at for entry in entries if entry.verdict in _SHOWN}


def longest_ago(cases: Collection[str], entries: Collection[Entry]) -> list[str]:
    """Return the cases that never ran, then the others, longest ago first."""
    last = last_run(entries)
    never = [case for case in cases if case not in last]
    return never + sorted((case for case in cases if case in last), key=lambda case: last[case])


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A case to be run, and the Kafka version that it would run on."""

    kip: int
    plan: str
    mode: str
    kafka: str


@dataclass(frozen=True, kw_only=True)
class Cell(Planned):
    """One case on one build and backend, with a summary of its runs.

    :ivar last: the last run; None if it never ran
    :ivar is_overdue: it has not been valid or invalid for too long, or never was
    """

    id: str
    backend: str
    runs: int
    valid: int
    last: Entry | None
    is_overdue: bool

    def to_json(self) -> dict[str, object]:
        """Return the cell as ``jbod ledger --json`` has it."""
        return {**vars(self), "last": self.last.to_json() if self.last else None}


def alike(entries: Iterable[Entry], cases: Mapping[str, Planned], backend: str) -> list[Entry]:
    """Return the entries on this backend. A planned case counts only on its planned Kafka version.

    Builds are compared by version only, so that nightly runs of a changing snapshot continue from one another.

    :param cases: the planned cases, by id
    """
    here = (each for each in entries if each.backend == backend)
    return [each for each in here if each.id not in cases or cases[each.id].kafka == each.kafka]


def cells(cases: Mapping[str, Planned], backend: str, entries: Iterable[Entry], every: timedelta) -> list[Cell]:
    """Return a summary of the runs of each case on a backend. Runs that ended in an error do not count.

    :param every: a case is overdue after this long without a run
    """
    ran: dict[str, list[Entry]] = {}
    for entry in alike(entries, cases, backend):
        if entry.verdict != "error":
            ran.setdefault(entry.id, []).append(entry)
    found = []
    for id, planned in cases.items():
        runs = ran.get(id, [])
        valid = sum(entry.verdict == "valid" for entry in runs)
        found.append(
            Cell(
                **vars(planned),
                id=id,
                backend=backend,
                runs=len(runs),
                valid=valid,
                last=runs[-1] if runs else None,
                is_overdue=not any(entry.verdict in _SHOWN and now() - entry.at <= every for entry in runs),
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Strike(Planned):
    """A fault that was proven at brokers of one role, with a summary of the runs.

    :ivar role: "leader", "follower", "controller" or "coordinator"; None if the broker had no role under the load
    :ivar runs: the number of cases; each may have had the fault more than once
    :ivar acked: the fewest records that were acked during one of these faults; None if no pair ran during any
    :ivar read: the fewest records that were read during one of these faults; None if no pair ran during any
    """

    fault: str
    role: str | None
    backend: str
    runs: int
    valid: int
    last: datetime
    acked: int | None
    read: int | None

    def to_json(self) -> dict[str, object]:
        """Return the strike as ``jbod ledger --by-role --json`` has it."""
        return {**vars(self), "last": self.last.isoformat()}


def strikes(cases: Mapping[str, Planned], backend: str, entries: Iterable[Entry]) -> list[Strike]:
    """Return the proven faults of these cases, and of random schedules on the same builds, on a backend.

    There is one entry for each KIP, plan item, mode, version, fault and role. A broker with two roles counts in both.
    Runs that ended in an error do not count.
    """
    builds = {(planned.mode, planned.kafka) for planned in cases.values()}
    found: dict[tuple[Planned, str, str | None], list[tuple[Entry, Struck]]] = {}
    for entry in alike(entries, cases, backend):
        planned = cases.get(entry.id)
        if is_random(entry.id) and (entry.mode, entry.kafka) in builds:  # never planned: each is a new schedule
            planned = Planned(kip=entry.kip, plan=entry.plan, mode=entry.mode, kafka=entry.kafka)
        if planned is None or entry.verdict == "error":
            continue
        for struck in entry.struck:
            for role in struck.roles():
                found.setdefault((planned, struck.fault, role), []).append((entry, struck))
    return [_strike(*what, backend, of) for what, of in found.items()]


def _strike(planned: Planned, fault: str, role: str | None, backend: str, of: Sequence[tuple[Entry, Struck]]) -> Strike:
    runs = {entry.run_id: entry for entry, _ in of}.values()
    return Strike(
        **vars(planned),
        fault=fault,
        role=role,
        backend=backend,
        runs=len(runs),
        valid=sum(entry.verdict == "valid" for entry in runs),
        last=max(entry.at for entry in runs),
        acked=min((struck.acked for _, struck in of if struck.acked is not None), default=None),
        read=min((struck.read for _, struck in of if struck.read is not None), default=None),
    )


def usual_s(name: str, entries: Iterable[Entry]) -> float:
    """Return the median duration, in seconds, of the last five runs of a case or scenario.

    If there were none, it is :data:`UNKNOWN_S`.
    """
    took = [entry.duration_s for entry in entries if name in (entry.id, entry.id.partition("[")[0])][-5:]
    return statistics.median(took) if took else UNKNOWN_S
