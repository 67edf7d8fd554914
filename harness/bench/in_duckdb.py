"""Finds lost, duplicated and reordered records of a history with DuckDB, to compare the judge's speed with.

``python -m harness.bench.in_duckdb RUN_DIR SCRATCH_DIR`` prints the counts as JSON. DuckDB gets two threads and 3 GB.
These are three of the judge's kinds, and the queries need to be right only for generated histories: one topic, and
drains that reach the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb

THREADS = 2
MEMORY = "3GB"

_LOST = """
SELECT count(*) FROM produced AS sent
WHERE outcome = 'acked' AND (transaction IS NULL OR transaction_outcome = 'committed')
AND NOT EXISTS (
    SELECT 1 FROM consumed AS read WHERE role = 'drain' AND read.producer = sent.producer AND read.seq = sent.seq
)
"""
_DUPLICATED = """
SELECT count(*) FROM (
    SELECT 1 FROM consumed WHERE producer IS NOT NULL GROUP BY producer, seq
    HAVING min("partition") <> max("partition") OR min("offset") <> max("offset")
)
"""
_REORDERED = """
WITH places AS (
    SELECT producer, seq, "partition", "offset" FROM produced WHERE "offset" IS NOT NULL
    UNION ALL SELECT producer, seq, "partition", "offset" FROM consumed WHERE producer IS NOT NULL
), firsts AS (
    SELECT producer, seq, "partition", min("offset") AS first FROM places GROUP BY ALL
), compared AS (
    SELECT producer, seq, first < max(first) OVER (
        PARTITION BY producer, "partition" ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS is_behind FROM firsts
)
SELECT count(*) FROM (SELECT DISTINCT producer, seq FROM compared WHERE is_behind)
"""
QUERIES: Mapping[str, str] = {"lost": _LOST, "duplicated": _DUPLICATED, "reordered": _REORDERED}


def find(run_dir: Path, scratch: Path) -> dict[str, int]:
    """Return the number of records of each kind.

    :param scratch: an empty folder for what does not fit into memory
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": THREADS,
        "memory_limit": MEMORY,
        "temp_directory": str(scratch),
    }
    with duckdb.connect(config=settings) as connection:
        for table in ("produced", "consumed"):
            parts = str(run_dir / "history" / table / "*.parquet").replace("'", "''")
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{parts}')")
        found = {kind: connection.execute(query).fetchone() for kind, query in QUERIES.items()}
    return {kind: int(row[0]) for kind, row in found.items() if row is not None}


if __name__ == "__main__":
    print(json.dumps(find(Path(sys.argv[1]), Path(sys.argv[2]))))
