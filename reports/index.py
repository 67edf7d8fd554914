"""What a run comes to: one answer, what is wrong, what did not run, and what each fault cost.

Of a case that ran several times the newest run counts; that its verdicts differ is said beside it, because a case that
wavers has not been shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.measure.fault_costs import FaultCosts
from reports.costs import COSTS
from reports.deviations import Noted, noted
from reports.rows import VERDICTS, Row, RunsRead, newest, so_many_cases


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The one answer.

    :ivar verdict: the worst of all, which decides
    """

    verdict: str
    headline: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one way of failing cost in one mode at brokers of one role, over all of its runs.

    :ivar role: "leader" or "follower" of what the pair was at work on; "–" where the broker was neither
    :ivar times: how often it was proven
    :ivar costs: by name, the median and the longest; None where it was never measured
    :ivar measured: by name, how often it was
    :ivar never: how often a partition never had another leader
    """

    fault: str
    role: str
    mode: str
    build: str
    times: int
    costs: Mapping[str, tuple[float, float] | None]
    measured: Mapping[str, int]
    never: int

    def of(self, cost: str) -> str:
        """What a figure is of, where that isn't every time: "8 of 28", and how often it never came."""
        told = [f"{self.measured[cost]} of {self.times}"] if 0 < self.measured[cost] < self.times else []
        return ", ".join(told + ([f"never: {self.never}"] if cost == "other_leader_s" and self.never else []))


@dataclass(frozen=True, kw_only=True)
class Beside:
    """One case on one build in every backend that it was to run in.

    :ivar runs: by backend, the newest, of equal seed where there are such; of one that it was skipped in, that
    """

    id: str
    kafka: str
    runs: Mapping[str, Row]

    @property
    def differs(self) -> bool:
        """Whether it came out differently where it ran, or showed other deviations; with the same seed it must not."""
        standings = {row.standing for row in self.runs.values() if row.verdict != "skipped"}
        return len(standings) > 1 or bool(self.seen_in_some)

    @property
    def seen_in_some(self) -> Mapping[str, Sequence[str]]:
        """Deviations that were seen in some of the backends that it ran in and not in all, each with these; but none
        that a build shows or not as it happens.
        """
        ran = {backend: row.seen for backend, row in self.runs.items() if row.run_id is not None}
        must = dict.fromkeys(does for seen in ran.values() for does, always in seen.items() if always)
        found = {does: [backend for backend, seen in ran.items() if does in seen] for does in must}
        return {does: backends for does, backends in found.items() if len(backends) < len(ran)}

    @property
    def says(self) -> str:
        """How it came out in each."""
        told = ", ".join(f"{row.verdict} in {backend}" for backend, row in self.runs.items())
        apart = "".join(f"; in {', '.join(names)} alone {does}" for does, names in self.seen_in_some.items())
        return f"{told}, with {'the same seed' if self.seeds == 1 else 'different seeds'}{apart}"

    @property
    def seeds(self) -> int:
        """How many seeds it was run with: 1, where it was the same in all."""
        return len({row.seed for row in self.runs.values() if row.run_id is not None})

    def cost(self, backend: str, name: str) -> float | None:
        """The longest of what its faults cost there."""
        row = self.runs.get(backend)
        return max(_known(row.faults, name), default=None) if row else None


@dataclass(frozen=True, kw_only=True)
class Index:
    """The index page, as data.

    :ivar cases: the newest run of each case with all of its runs, the worst first within a KIP
    :ivar not_run: by reason, the cases that it kept from running, the last time or ever
    :ivar wavering: cases whose runs differ in verdict
    :ivar backends: of the cases that were to run in several, in order; empty where there is none
    :ivar beside: these cases, those that came out differently first
    """

    answer: Answer
    totals: Mapping[str, int]
    cases: Sequence[tuple[Row, Sequence[Row]]]
    wrong: Sequence[Row]
    not_run: Sequence[tuple[str, Sequence[str]]]
    deviations: Sequence[Noted]
    measured: Sequence[Row]
    wavering: Sequence[tuple[Row, Sequence[Row]]]
    cells: Sequence[Cell]
    backends: Sequence[str]
    beside: Sequence[Beside]
    suites: Sequence[tuple[str, Mapping[str, int], float]]
    notes: Sequence[str]
    kafka: Sequence[str]
    began: str
    took_s: float


def make_index(run: RunsRead) -> Index:
    """Put it together."""
    cases = sorted(newest(run.rows), key=lambda each: (each[0].suite, each[0].id, each[0].build))
    rows = [row for row, _ in cases]
    totals = {word: sum(row.standing == word for row in rows) for word in VERDICTS}
    wavering = [(row, runs) for row, runs in cases if len({each.verdict for each in runs} - {"skipped"}) > 1]
    reasons: dict[str, list[str]] = {}
    for last in (runs[-1] for _, runs in cases):
        if last.verdict == "skipped":
            reasons.setdefault(last.reason, []).append(last.id)
    beside = in_several_backends(run.rows)
    not_run = sorted(reasons.items(), key=lambda item: -len(item[1]))
    return Index(
        answer=answer(
            totals,
            len(wavering),
            len(run.notes),
            [each for each in beside if each.differs],
            sum(map(len, reasons.values())) - totals["skipped"],
        ),
        totals=totals,
        cases=cases,
        wrong=sorted((r for r in rows if r.standing in VERDICTS[:3]), key=lambda r: VERDICTS.index(r.standing)),
        not_run=not_run,
        deviations=noted(rows),
        measured=[row for row in rows if row.measured],
        wavering=wavering,
        cells=cells(run.rows),
        backends=sorted(
            {backend for each in beside for backend in each.runs}, key=lambda name: (name != "process", name)
        ),
        beside=beside,
        suites=_suites(rows),
        notes=run.notes,
        kafka=sorted({f"{row.kafka} {row.mode}" for row in rows}),
        began=min((row.began for row in run.rows), default=""),
        took_s=sum(row.duration_s for row in run.rows),
    )


def answer(
    totals: Mapping[str, int], wavering: int, damaged: int, differing: Sequence[Beside] = (), not_since: int = 0
) -> Answer:
    """One answer from all verdicts: what is worst decides, and nothing that is missing is left out.

    :param differing: the cases that came out differently from backend to backend
    :param not_since: how many ran, and could not be run the last time
    """
    ran = sum(count for word, count in totals.items() if word != "skipped")
    beside = [
        f"{totals[word]} {words}"
        for word, words in (
            ("invalid", "broken"),
            ("error", "failed in the harness or its environment"),
            ("unknown", "inconclusive"),
            ("skipped", "did not run"),
            ("valid", "held"),
        )
        if totals[word]
    ]
    beside += [f"{wavering} came out differently from run to run"] if wavering else []
    beside += [f"{len(differing)} came out differently from backend to backend"] if differing else []
    beside += [f"{damaged} damaged or never reached"] if damaged else []
    beside += [f"{not_since} of them did not run the last time"] if not_since else []
    says = ", ".join(beside)
    if totals["invalid"]:
        many = totals["invalid"]
        return Answer(
            verdict="invalid", headline=f"Kafka broke a guarantee in {so_many_cases(many)} of {ran}", says=says
        )
    if totals["error"]:
        return Answer(
            verdict="error",
            headline=f"The harness or its environment failed in {so_many_cases(totals['error'])} of {ran}",
            says=says,
        )
    if totals["unknown"]:
        return Answer(
            verdict="unknown", headline=f"Nothing was shown in {so_many_cases(totals['unknown'])} of {ran}", says=says
        )
    if not ran:
        return Answer(verdict="unknown", headline="Nothing ran", says=says or "there is no run folder here")
    torn = sum(each.seeds == 1 for each in differing)
    for many, headline in (
        (wavering, f"{so_many_cases(wavering)} came out differently from run to run"),
        (torn, f"{so_many_cases(torn)} came out differently from backend to backend with the same seed"),
        (damaged, f"{damaged} of the folders and cases asked for tell{'s' if damaged == 1 else ''} nothing"),
    ):
        if many:
            return Answer(verdict="unknown", headline=headline, says=says)
    if totals["skipped"]:
        headline = f"Every guarantee held in the {so_many_cases(ran)} that ran; {totals['skipped']} did not run"
        return Answer(verdict="valid", headline=headline, says=says)
    since = f"; {not_since} of them did not run the last time" if not_since else ""
    return Answer(verdict="valid", headline=f"Every guarantee held in {so_many_cases(ran)}{since}", says=says)


def cells(rows: Sequence[Row]) -> list[Cell]:
    """What each way of failing cost in each role and mode, over all times that it was proven and the cost measured."""
    found: dict[tuple[str, str, str, str], list[FaultCosts]] = {}
    for row in rows:
        for fault in row.faults:
            if fault.proven:
                role = fault.role or "–"
                found.setdefault((fault.name, role, row.mode, row.build), []).append(fault)
    return [
        Cell(
            fault=name,
            role=role,
            mode=mode,
            build=build,
            times=len(faults),
            costs={cost: _spread(_known(faults, cost)) for cost in COSTS},
            measured={cost: len(_known(faults, cost)) for cost in COSTS},
            never=sum(fault.never_came("other_leader_s") for fault in faults),
        )
        for (name, role, mode, build), faults in sorted(found.items())
    ]


def _known(faults: Sequence[FaultCosts], cost: str) -> list[float]:
    return [figure for fault in faults if (figure := fault.figure(cost)) is not None]


def in_several_backends(rows: Sequence[Row]) -> list[Beside]:
    """The cases that were to run in several backends on one build and did in one, those that came out differently
    first.

    :param rows: all, in order of time
    """
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault((row.id, row.kafka), {}).setdefault(row.backend, []).append(row)
    several = [
        Beside(id=id, kafka=kafka, runs=_to_compare(runs)) for (id, kafka), runs in found.items() if len(runs) > 1
    ]
    ran = [each for each in several if any(row.verdict != "skipped" for row in each.runs.values())]
    return sorted(ran, key=lambda each: (not each.differs, each.id))


def _to_compare(runs: Mapping[str, Sequence[Row]]) -> Mapping[str, Row]:
    """Of each backend one run: the newest with a seed that all have that ran it, or else the newest.

    Of several such seeds it is that of the newest pair: the one whose older run is the newest.
    """
    by_seed = {name: {row.seed: row for row in rows if row.seed is not None} for name, rows in runs.items()}
    ran = [seeds for seeds in by_seed.values() if seeds]
    shared = set.intersection(*({*seeds} for seeds in ran)) if ran else set()
    if not shared:
        return {name: rows[-1] for name, rows in runs.items()}
    best = max(shared, key=lambda seed: min(seeds[seed].began for seeds in ran))
    return {name: by_seed[name].get(best, rows[-1]) for name, rows in runs.items()}


def _spread(values: Sequence[float]) -> tuple[float, float] | None:
    return (median(values), max(values)) if values else None


def _suites(rows: Sequence[Row]) -> list[tuple[str, Mapping[str, int], float]]:
    """Each suite's verdicts and seconds."""
    names = list(dict.fromkeys(row.suite for row in rows))
    found: list[tuple[str, Mapping[str, int], float]] = []
    for name in names:
        own = [row for row in rows if row.suite == name]
        found.append((name, Counter(row.standing for row in own), sum(row.duration_s for row in own)))
    return found
