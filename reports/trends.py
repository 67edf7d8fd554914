"""How cases came out over time, from the ledger of the runs folder.

Run folders of earlier nights may be deleted, and the index shows the newest run of each case. The ledger shows what a
single run cannot: cases that fail now and then, and cases that became slower. Random schedules are left out, because
each run has other ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.runner.ledger import Entry
from harness.runner.suite_kinds import is_random
from reports.rows import grouped, standing

_LATEST = 20  # runs of a case that are shown
_DAYS = 30
_SLOWER = 1.5  # times the earlier median
_FEWEST = 3  # runs whose median is compared


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The runs of one case on one build and backend.

    :ivar latest: day and standing (:func:`reports.rows.standing`) of the latest runs, oldest first
    :ivar took_s: the median duration of the latest valid runs and of those before; None if there are too few
    """

    id: str
    kafka: str
    backend: str
    runs: int
    valid: int
    latest: Sequence[tuple[str, str]]
    took_s: tuple[float, float] | None

    @property
    def wavers(self) -> bool:
        """Whether its verdicts differ. Errors of the harness do not count."""
        return len({verdict for _, verdict in self.latest if verdict != "error"}) > 1

    @property
    def is_slower(self) -> bool:
        """Whether it takes much longer than before."""
        return self.took_s is not None and self.took_s[0] > _SLOWER * self.took_s[1]


@dataclass(frozen=True, kw_only=True)
class Trends:
    """The trends of all cases.

    :ivar days: the latest days with runs, oldest first, and the number of runs by standing
    :ivar telling: the cases that waver, fail or became slower, the worst first
    :ivar steady: how many other cases ran more than once; they were valid each time
    """

    days: Sequence[tuple[str, Mapping[str, int]]]
    telling: Sequence[Trend]
    steady: int


def make_trends(entries: Sequence[Entry]) -> Trends:
    """Find the trends.

    :param entries: the ledger, oldest first
    """
    fixed = [entry for entry in entries if not is_random(entry.id)]
    cases = grouped(fixed, lambda entry: (entry.id, entry.kafka, entry.backend))
    days = grouped(entries, lambda entry: f"{entry.at:%Y-%m-%d}")
    trends = [_trend(runs) for runs in cases.values() if len(runs) > 1]
    telling = [each for each in trends if each.valid < each.runs or each.is_slower]
    return Trends(
        days=[(day, Counter(standing(e.id, e.verdict) for e in of)) for day, of in [*days.items()][-_DAYS:]],
        telling=sorted(telling, key=lambda each: (each.valid / each.runs, each.id)),
        steady=len(trends) - len(telling),
    )


def _trend(runs: Sequence[Entry]) -> Trend:
    verdicts = [standing(entry.id, entry.verdict) for entry in runs]
    took = [entry.duration_s for entry, verdict in zip(runs, verdicts, strict=True) if verdict == "valid"]
    half = min(len(took) // 2, 5)
    return Trend(
        id=runs[0].id,
        kafka=runs[0].kafka,
        backend=runs[0].backend,
        runs=len(runs),
        valid=verdicts.count("valid"),
        latest=[(f"{entry.at:%Y-%m-%d}", verdict) for entry, verdict in zip(runs, verdicts, strict=True)][-_LATEST:],
        took_s=(median(took[-half:]), median(took[:-half])) if half >= _FEWEST else None,
    )
