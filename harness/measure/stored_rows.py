"""Reads columns of a run's stored history, as Arrow tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.history.tables import SCHEMAS, TableName, table_dir


def stored_rows(
    run_dir: Path, name: TableName, *columns: str, where: pc.Expression | None = None, encoded: bool = False
) -> pa.Table:
    """The rows of a table in a run folder, in no order; empty if the table has no part.

    :param where: only these rows, which are then the only ones in memory
    :param encoded: text becomes dictionaries, because plain text would take most of the memory
    :raises OSError: a part is not readable
    """
    # Spark's parts differ in nullability.
    fields = [SCHEMAS[name].field(column).with_nullable(True) for column in columns]
    words = [field.name for field in fields if encoded and pa.types.is_string(field.type)]
    schema = pa.schema(
        [field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in words else field for field in fields]
    )
    parts = sorted(table_dir(run_dir, name).glob("*.parquet"))
    read = [pq.read_table(part, columns=list(columns), filters=where, read_dictionary=words) for part in parts]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in read)])
