"""The index page of a run: one answer, what is wrong, what did not run, and what each fault cost.

Of several runs of a case the newest counts. If their verdicts differ, the page says so and the run does not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.measure.fault_costs import FaultCosts
from reports.costs import COSTS
from reports.curves import Curve, curves_of_builds
from reports.deviations import DeviationRuns, deviation_runs
from reports.rows import VERDICTS, Row, RunsRead, count_cases, grouped, newest


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The one answer to a run.

    :ivar verdict: the worst of all verdicts
    :ivar says: the counts behind the headline
    """

    verdict: str
    headline: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one fault cost on one build, in one mode, on brokers of one role, over all runs.

    :ivar role: as :attr:`harness.measure.fault_costs.FaultCosts.role`; "–" for none
    :ivar times: how often the fault was proven
    :ivar costs: by figure, the median and the longest; None if it was never measured
    :ivar measured: by figure, how often it was measured
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
        """How often a figure was measured, such as "8 of 28", if not each time; and how often it never came."""
        some = [f"{self.measured[cost]} of {self.times}"] if 0 < self.measured[cost] < self.times else []
        return ", ".join(some + ([f"never: {self.never}"] if cost == "other_leader_s" and self.never else []))


@dataclass(frozen=True, kw_only=True)
class BackendComparison:
    """One case on one build in several backends.

    :ivar runs: by backend, the run to compare (:func:`compare_backends`)
    """

    id: str
    kafka: str
    runs: Mapping[str, Row]

    @property
    def differs(self) -> bool:
        """Whether its verdicts or deviations differ from backend to backend. With the same seed they must not."""
        standings = {row.standing for row in self.runs.values() if row.verdict != "skipped"}
        return len(standings) > 1 or bool(self.seen_in_some)

    @property
    def seen_in_some(self) -> Mapping[str, Sequence[str]]:
        """The deviations seen in some backends only, with these backends. Only deterministic ones count."""
        ran = {backend: row.seen for backend, row in self.runs.items() if row.run_id is not None}
        must = dict.fromkeys(does for seen in ran.values() for does, always in seen.items() if always)
        found = {does: [backend for backend, seen in ran.items() if does in seen] for does in must}
        return {does: backends for does, backends in found.items() if len(backends) < len(ran)}

    @property
    def says(self) -> str:
        """How it came out in each backend."""
        verdicts = ", ".join(f"{row.verdict} in {backend}" for backend, row in self.runs.items())
        apart = "".join(f"; in {', '.join(names)} alone: {does}" for does, names in self.seen_in_some.items())
        return f"{verdicts}, with {'the same seed' if self.seeds == 1 else 'different seeds'}{apart}"

    @property
    def seeds(self) -> int:
        """The number of different seeds of its runs."""
        return len({row.seed for row in self.runs.values() if row.run_id is not None})

    def cost(self, backend: str, name: str) -> float | None:
        """The highest figure of this name among its faults in a backend."""
        row = self.runs.get(backend)
        return max(_known(row.faults, name), default=None) if row else None


@dataclass(frozen=True, kw_only=True)
class Index:
    """The data of the index page.

    :ivar cases: the newest run of each case, with all of its runs; by suite
    :ivar not_run: by reason, the cases that could not run when they were last asked for
    :ivar wavering: the cases whose verdicts differ from run to run
    :ivar backends: the backends of the cases that ran in several
    :ivar backend_comparisons: these cases, the differing ones first
    :ivar suites: name, number of cases by standing, and seconds of each suite
    """

    answer: Answer
    totals: Mapping[str, int]
    cases: Sequence[tuple[Row, Sequence[Row]]]
    wrong: Sequence[Row]
    not_run: Sequence[tuple[str, Sequence[str]]]
    deviations: Sequence[DeviationRuns]
    measured: Sequence[Row]
    curves: Sequence[Curve]
    wavering: Sequence[tuple[Row, Sequence[Row]]]
    cells: Sequence[Cell]
    backends: Sequence[str]
    backend_comparisons: Sequence[BackendComparison]
    suites: Sequence[tuple[str, Mapping[str, int], float]]
    notes: Sequence[str]
    kafka: Sequence[str]
    began: str


def make_index(run: RunsRead) -> Index:
    """Make the data of the index page."""
    cases = sorted(newest(run.rows), key=lambda each: (each[0].suite, each[0].id, each[0].build))
    rows = [row for row, _ in cases]
    totals = {word: sum(row.standing == word for row in rows) for word in VERDICTS}
    wavering = [(row, runs) for row, runs in cases if len({each.verdict for each in runs} - {"skipped"}) > 1]
    skipped = [runs[-1] for _, runs in cases if runs[-1].verdict == "skipped"]
    reasons = [(reason, [row.id for row in of]) for reason, of in grouped(skipped, lambda row: row.reason).items()]
    comparisons = compare_backends(run.rows)
    backends = {backend for each in comparisons for backend in each.runs}
    return Index(
        answer=_answer(
            totals,
            wavering=len(wavering),
            damaged=len(run.notes),
            differing=[each for each in comparisons if each.differs],
            not_since=len(skipped) - totals["skipped"],
        ),
        totals=totals,
        cases=cases,
        wrong=sorted((r for r in rows if r.standing in VERDICTS[:3]), key=lambda r: VERDICTS.index(r.standing)),
        not_run=sorted(reasons, key=lambda item: -len(item[1])),
        deviations=deviation_runs(rows),
        measured=[row for row in rows if row.measured],
        curves=curves_of_builds(run.rows),
        wavering=wavering,
        cells=cells(run.rows),
        backends=sorted(backends, key=lambda name: (name != "process", name)),
        backend_comparisons=comparisons,
        suites=_suites(rows),
        notes=run.notes,
        kafka=sorted({f"{row.kafka} {row.mode}" for row in rows}),
        began=min((row.began for row in run.rows), default=""),
    )


_COUNTED = {
    "invalid": "broken",
    "error": "failed in the harness or its environment",
    "unknown": "inconclusive",
    "skipped": "did not run",
    "valid": "held",
}


def _answer(
    totals: Mapping[str, int], *, wavering: int, damaged: int, differing: Sequence[BackendComparison], not_since: int
) -> Answer:
    """The worst verdict decides. The answer names everything that is missing.

    :param differing: the cases that differ from backend to backend
    :param not_since: how many cases ran, but could not run when they were last asked for
    """
    ran = sum(count for word, count in totals.items() if word != "skipped")
    counts = [(totals[word], words) for word, words in _COUNTED.items()]
    counts += [
        (wavering, "came out differently from run to run"),
        (len(differing), "came out differently from backend to backend"),
        (damaged, "damaged or missing"),
        (not_since, "of them did not run the last time"),
    ]
    says = ", ".join(f"{count} {words}" for count, words in counts if count)
    torn = sum(each.seeds == 1 for each in differing)
    for verdict, count, headline in (
        ("invalid", totals["invalid"], f"Kafka broke a guarantee in {{}} of {ran}"),
        ("error", totals["error"], f"The harness or its environment failed in {{}} of {ran}"),
        ("unknown", totals["unknown"], f"Nothing was shown in {{}} of {ran}"),
        ("unknown", not ran, "Nothing ran"),
        ("unknown", wavering, "{} came out differently from run to run"),
        ("unknown", torn, "{} came out differently from backend to backend with the same seed"),
        (
            "unknown",
            damaged,
            f"{damaged} of the run folders and cases {'is' if damaged == 1 else 'are'} damaged or missing",
        ),
    ):
        if count:
            return Answer(verdict=verdict, headline=headline.format(count_cases(count)), says=says or "no run folders")
    if totals["skipped"]:
        headline = f"Every guarantee held in the {count_cases(ran)} that ran; {totals['skipped']} did not run"
        return Answer(verdict="valid", headline=headline, says=says)
    since = f"; {not_since} of them did not run the last time" if not_since else ""
    return Answer(verdict="valid", headline=f"Every guarantee held in {count_cases(ran)}{since}", says=says)


def cells(rows: Sequence[Row]) -> list[Cell]:
    """What each proven fault cost, by role, mode and build."""
    proven = [(row, fault) for row in rows for fault in row.faults if fault.proven]
    found = grouped(proven, lambda each: (each[1].name, each[1].role or "–", each[0].mode, each[0].build))
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
        for (name, role, mode, build), pairs in sorted(found.items(), key=lambda item: item[0])
        for faults in [[fault for _, fault in pairs]]
    ]


def _known(faults: Sequence[FaultCosts], cost: str) -> list[float]:
    return [figure for fault in faults if (figure := fault.figure(cost)) is not None]


def compare_backends(rows: Sequence[Row]) -> list[BackendComparison]:
    """The cases with runs in several backends on one build, the differing ones first; without those that ran nowhere.

    The newest runs with the same seed are compared, if there are any, and else the newest runs.

    :param rows: all, oldest first
    """
    several = [
        BackendComparison(id=id, kafka=kafka, runs=_to_compare(runs))
        for (id, kafka), of in grouped(rows, lambda row: (row.id, row.kafka)).items()
        if len(runs := grouped(of, lambda row: row.backend)) > 1
    ]
    ran = [each for each in several if any(row.verdict != "skipped" for row in each.runs.values())]
    return sorted(ran, key=lambda each: (not each.differs, each.id))


def _to_compare(runs: Mapping[str, Sequence[Row]]) -> Mapping[str, Row]:
    """One run for each backend: of the same seed, if all have one, and of the seed that all have run most recently."""
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
    return [
        (name, Counter(row.standing for row in own), sum(row.duration_s for row in own))
        for name, own in grouped(rows, lambda row: row.suite).items()
    ]
