"""What was really run, and when last: the memory of a runs folder over all its runs.

``ledger.jsonl`` in the runs folder, one line for each case that ended, appended as it ends; the run folders themselves
may be thrown away. It answers what no single run can: which cases have not run for long (:func:`longest_ago`), how
often one comes out how (flakes), and how long one takes. A skipped case was not run and has no line.
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
from harness.runner.case import CaseResult
from harness.runner.suite_kinds import is_random

NAME = "ledger.jsonl"
_SHOWN = ("valid", "invalid")
CLOCKS_DIFFER = timedelta(minutes=5)
"""So far ahead of this machine's clock another's may be that has written here, or this one's before it was set."""
UNKNOWN_S = 40.0
"""What a case is thought to take that never ran."""


@dataclass(frozen=True, kw_only=True)
class Struck:
    """Whom a proven fault hit.

    :ivar role: what its broker was, and ``also`` besides (:class:`harness.measure.roles.Role`)
    :ivar acked: records acked while it was in force, and ``read`` records read; None if no pair ran
    """

    fault: str
    role: str | None
    also: tuple[str, ...] = ()
    acked: int | None
    read: int | None

    def roles(self) -> Sequence[str | None]:
        """All that the broker was; None alone if it was nothing."""
        return [role for role in (self.role, *self.also) if role] or [None]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One case that ran.

    :ivar faults: those that were proven, each as "name on target"
    :ivar struck: whom each of these hit, and under what load; empty in older lines
    :ivar sha256: of the build's jars; empty in lines of old
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
        """One line of the file."""
        return {**vars(self), "at": self.at.isoformat(), "struck": [asdict(each) for each in self.struck]}


def note(runs_dir: Path, result: CaseResult) -> None:
    """Append a case that ended, unless it was skipped."""
    if result.verdict == "skipped" or result.run_dir is None:
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
    with suppress(OSError), (runs_dir / NAME).open("a+b") as file:  # a full disk is no word on Kafka
        if file.tell() and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
            line = b"\n" + line  # what was cut off spoils one line only
        file.write(line)  # at once: two runs don't mix theirs


def read(runs_dir: Path) -> list[Entry]:
    """All lines, oldest first; none where there is no ledger yet.

    A line that is none, cut off by a full disk or a kill, is passed over, and so is one of a clock that was ahead: its
    case then runs the sooner.
    """
    path = runs_dir / NAME
    if not path.exists():
        return []
    entries, latest = [], now() + CLOCKS_DIFFER
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(msgspec.MsgspecError, TypeError):  # a clock without a time zone
            if (entry := msgspec.json.decode(line, type=Entry)).at <= latest:
                entries.append(entry)
    return entries


def last_run(entries: Iterable[Entry]) -> dict[str, datetime]:
    """When each case last showed something, be it good or bad: a fault not proven or too little load shows nothing."""
    return {entry.id: entry.at for entry in entries if entry.verdict in _SHOWN}


def longest_ago(cases: Collection[str], entries: Collection[Entry]) -> list[str]:
    """The cases, those that never ran first, then those that ran longest ago."""
    last = last_run(entries)
    never = [case for case in cases if case not in last]
    return never + sorted((case for case in cases if case in last), key=lambda case: last[case])


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A case that is there to be run, and the Kafka version that it would run on."""

    kip: int
    plan: str
    mode: str
    kafka: str


@dataclass(frozen=True, kw_only=True)
class Cell(Planned):
    """One case on one build in one backend, and what is known of its runs.

    :ivar is_overdue: it has not shown anything for too long, or never
    """

    id: str
    backend: str
    runs: int
    valid: int
    last: Entry | None
    is_overdue: bool

    def to_json(self) -> dict[str, object]:
        """As ``jbod ledger --json`` has it."""
        return {**vars(self), "last": self.last.to_json() if self.last else None}


def alike(entries: Iterable[Entry], cases: Mapping[str, Planned], backend: str) -> list[Entry]:
    """Those that ran in this backend and, where the case is one of these, on the Kafka version that it would run on.

    A build counts by its version: nights of a snapshot, which is another build each night, go on from one to the next.
    """
    here = (each for each in entries if each.backend == backend)
    return [each for each in here if each.id not in cases or cases[each.id].kafka == each.kafka]


def cells(cases: Mapping[str, Planned], backend: str, entries: Iterable[Entry], every: timedelta) -> list[Cell]:
    """What is known of each of these cases in a backend; an error is no run."""
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
    """A way of failing that was proven at brokers of a role, and what came of it.

    :ivar role: "leader", "follower", "controller" or "coordinator"; None: beside the load
    :ivar runs: of cases; it may have struck more than once in each
    :ivar acked: the fewest records that a strike's load had acked, None where no pair ran at any
    :ivar read: and read
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
        """As ``jbod ledger --by-role --json`` has it."""
        return {**vars(self), "last": self.last.isoformat()}


def strikes(cases: Mapping[str, Planned], backend: str, entries: Iterable[Entry]) -> list[Strike]:
    """What these cases really struck in a backend, and random schedules on the same builds: by KIP, plan item, mode,
    version, fault and role.

    A broker with two roles counts in both; an error is no run.
    """
    builds = {(planned.mode, planned.kafka) for planned in cases.values()}
    found: dict[tuple[Planned, str, str | None], list[tuple[Entry, Struck]]] = {}
    for entry in alike(entries, cases, backend):
        planned = cases.get(entry.id)
        if is_random(entry.id) and (entry.mode, entry.kafka) in builds:  # drawn anew each time
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
    """How long a case, or any one of a scenario, takes: the median of the last five runs, in seconds."""
    took = [entry.duration_s for entry in entries if name in (entry.id, entry.id.partition("[")[0])][-5:]
    return statistics.median(took) if took else UNKNOWN_S
