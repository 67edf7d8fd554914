"""How cases came out from run to run and from night to night: what the ledger of the runs folder remembers.

The run folders of earlier nights may be gone, and what a report shows is the newest of each. What a single run can't
show is here: what fails now and then, and what has become slower. Random schedules are another thing each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.runner.ledger import Entry
from harness.runner.suite_kinds import is_random
from reports.rows import standing

LATEST = 20
"""So many runs of a case are shown."""
DAYS = 30
SLOWER = 1.5
"""So many times what it took before is worth a word."""
_FEW = 3


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One case on one build in one backend, over its runs.

    :ivar latest: the last runs, oldest first: day, and what the verdict counts as (:func:`reports.rows.standing`)
    :ivar took_s: the median of the last runs' seconds, and of those before; None where there are too few of either
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
        """Whether it came out differently, an error of the harness left aside."""
        return len({verdict for _, verdict in self.latest if verdict != "error"}) > 1

    @property
    def is_slower(self) -> bool:
        """Whether it takes much longer than it did."""
        return self.took_s is not None and self.took_s[0] > SLOWER * self.took_s[1]


@dataclass(frozen=True, kw_only=True)
class Trends:
    """All that is worth a look.

    :ivar days: the last days on which anything ran, oldest first, with how often each verdict was come to
    :ivar telling: the cases that waver, fail or have become slower, the worst first
    :ivar steady: how many others ran more than once, and came out valid each time
    """

    days: Sequence[tuple[str, Mapping[str, int]]]
    telling: Sequence[Trend]
    steady: int


def make_trends(entries: Iterable[Entry]) -> Trends:
    """Put them together.

    :param entries: oldest first
    """
    cases: dict[tuple[str, str, str], list[Entry]] = {}
    days: dict[str, Counter[str]] = {}
    for entry in entries:
        if not is_random(entry.id):
            cases.setdefault((entry.id, entry.kafka, entry.backend), []).append(entry)
        days.setdefault(f"{entry.at:%Y-%m-%d}", Counter())[standing(entry.id, entry.verdict)] += 1
    trends = [_trend(runs) for runs in cases.values() if len(runs) > 1]
    telling = [each for each in trends if each.valid < each.runs or each.is_slower]
    return Trends(
        days=[*days.items()][-DAYS:],
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
        latest=[(f"{entry.at:%Y-%m-%d}", verdict) for entry, verdict in zip(runs, verdicts, strict=True)][-LATEST:],
        took_s=(median(took[-half:]), median(took[:-half])) if half >= _FEW else None,
    )
