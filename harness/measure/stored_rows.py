"""Reads columns of a run's stored history, as Arrow tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.history.tables import SCHEMAS, TableName, table_dir


def stored_rows(run_dir: Path, name: TableName, *columns: str, where: pc.Expression | None = None) -> pa.Table:
    """The rows of a table in a run folder, in no order; empty if the table has no part.

    :param where: only these rows, which are then the only ones in memory
    :raises OSError: a part is not readable
    """
    # Spark's parts differ in nullability.
    schema = pa.schema([SCHEMAS[name].field(column).with_nullable(True) for column in columns])
    parts = sorted(table_dir(run_dir, name).glob("*.parquet"))
    read = [pq.read_table(part, columns=list(columns), filters=where).cast(schema) for part in parts]
    return pa.concat_tables([schema.empty_table(), *read])
