"""Measures the judge: all kinds of anomaly, beside DuckDB, which only finds lost, duplicated and reordered records.

Both read the same generated history, each in a process of its own, one after the other. The seconds are those of the
whole process: for ``jbod check`` they include the start of Spark.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from harness.bench.figures import Figure, LoadWatch, Measured, Part, at_least, at_most
from harness.bench.histories import Load, generate
from harness.bench.memory import PeakMemory
from harness.errors import HarnessError
from harness.runner.subrun import call_apart

USUAL = 10_000
"""Records in the history of a usual case."""
USUAL_S = 3.0
RATIO = 1.2
RATIO_FROM = 20_000_000
"""With fewer records, the start of Spark is most of the judge's time, and the ratio has no goal."""
RATE = 1_500_000
RATE_FROM = 100_000_000
MEMORY_MB = 3 << 10
WITHOUT_DUCKDB = "DuckDB is not installed; in a checkout of jbod: pip install -e '.[bench]'"
_DUCKDB_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The time and memory that judging one generated history took.

    :ivar records: the number of records sent in the history
    :ivar rows: the number of rows in all of its tables
    :ivar peak_mb: peak memory (PSS, in MiB) of all processes of ``jbod check`` together
    :ivar duckdb_s: the seconds that DuckDB took; None if it is not installed, or for a usual history
    """

    records: int
    rows: int
    seconds: float
    peak_mb: int
    duckdb_s: float | None = None

    @property
    def records_per_s(self) -> float:
        """Records sent per second of judging."""
        return self.records / self.seconds

    def figures(self) -> list[Figure]:
        """Return its rows of the table."""
        what = f"{self.records:,} records"
        if self.records <= USUAL:
            name = f"jbod check of a usual history, {what}"
            return [Figure(part=Part.JUDGE, name=name, unit="s", value=self.seconds, goal=at_most(USUAL_S))]
        ratio = Figure(
            part=Part.JUDGE,
            name=f"{what}, all kinds, against DuckDB with three",
            unit="×",
            goal=at_least(RATIO) if self.records >= RATIO_FROM else None,
            value=None if self.duckdb_s is None else round(self.duckdb_s / self.seconds, 3),
            why=WITHOUT_DUCKDB if self.duckdb_s is None else "",
            skipped=self.duckdb_s is None,
        )
        rate_goal = at_least(RATE) if self.records >= RATE_FROM else None
        rate = Figure(
            part=Part.JUDGE, name=f"{what}, all kinds", unit="/s", value=round(self.records_per_s), goal=rate_goal
        )
        memory = Figure(
            part=Part.JUDGE, name=f"{what}, memory", unit="MiB", value=self.peak_mb, goal=at_most(MEMORY_MB)
        )
        return [ratio, rate, memory]


def measure_judge(scratch: Path, sizes: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Judge a usual history and one of each of these sizes.

    :param sizes: numbers of records
    """
    found: list[Judged] = []
    rows: list[Figure] = []
    for records in (USUAL, *sizes):
        watch = LoadWatch()
        found.append(_judge(scratch / f"history-{records}", records, say))
        rows += watch.marked(found[-1].figures())
    return Measured(
        figures=rows, details={"judge": [asdict(each) | {"records_per_s": round(each.records_per_s)} for each in found]}
    )


def _judge(run_dir: Path, records: int, say: Callable[[str], None]) -> Judged:
    say(f"generating a history of {records:,} records")
    rows = generate(run_dir, Load(records=records))
    try:
        say(f"judging {records:,} records")
        with PeakMemory() as memory:
            began = time.monotonic()
            code = call_apart("check", str(run_dir), quiet=True)
            seconds = time.monotonic() - began
        if code:
            raise HarnessError(
                f"jbod check of a generated history of {records:,} records: exit code {code}, expected 0"
            )
        duckdb_s = None
        if records > USUAL and find_spec("duckdb") is not None:
            say(f"finding lost, duplicated and reordered ones of {records:,} records with DuckDB")
            duckdb_s = duckdb_seconds(run_dir)
    finally:
        shutil.rmtree(run_dir)
    return Judged(
        records=records,
        rows=rows,
        seconds=round(seconds, 3),
        peak_mb=memory.peak_mb,
        duckdb_s=None if duckdb_s is None else round(duckdb_s, 3),
    )


def duckdb_seconds(run_dir: Path) -> float:
    """Return the seconds that DuckDB takes for a history without anomalies.

    :raises HarnessError: it failed, found something, or took more than an hour
    """
    spill = run_dir / "spilled"
    spill.mkdir()
    command = [sys.executable, "-P", "-m", "harness.bench.in_duckdb", str(run_dir), str(spill)]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DUCKDB_S, check=False)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"DuckDB did not end within {_DUCKDB_S:.0f} s") from None
    seconds = time.monotonic() - began
    if done.returncode:
        last = next(reversed(done.stderr.strip().splitlines()), "")
        raise HarnessError(f"DuckDB failed with exit code {done.returncode}: {last}")
    if any(json.loads(done.stdout).values()):
        raise HarnessError(f"DuckDB found anomalies in a history without any: {done.stdout.strip()}")
    return seconds
