"""A run's stored history: three Parquet tables, and how they are written and read.

The clients only write what they observe; the judge reads it and needs no cluster. Parquet suits this better
than a database or JSON lines: Spark's workers write parts side by side without a lock, and ``jbod check`` reads a run
years later.

A reader must notice any loss of rows, because it would take them for records that Kafka lost:

* A part appears under its name when it is complete: it is written to a name that starts with a dot, then renamed. So a
  part without a readable footer is a cut-off history, not an empty one.
* A table's folder without any part is an error. A table without rows has a part without rows.
* A writer numbers its parts without gaps, so a part that is missing between others is noticed.
* A writer that ends leaves a note of its parts (``_closed-*.json``; Parquet readers ignore it), so missing last parts
  are noticed too, for example in a folder that was copied in part. If another tool has rewritten a table with other
  parts, its notes are ignored.
* Pages have checksums, so that a bit flipped in the stored history is not taken for one that Kafka flipped.

Histories of other tools can be read. Columns must have the right names; their types need only hold the same values:
integers of any width, whole floating-point numbers, timestamps of any unit. A value that can't be cast without loss is
refused.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, takewhile
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import HistoryError
from harness.host.atomic_write import write_atomically

TableName = Literal["produced", "consumed", "drained"]

_TIMESTAMP = pa.timestamp("us", tz="UTC")

PRODUCED = pa.schema(
    [
        pa.field("producer", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("crc32", pa.int64(), nullable=False),
        pa.field("sent_at", _TIMESTAMP),
        pa.field("ended_at", _TIMESTAMP),
        pa.field("transaction", pa.string()),
        pa.field("transaction_outcome", pa.string()),
    ]
)
"""One row per record that a producer tried to send; (producer, seq) names the record."""

CONSUMED = pa.schema(
    [
        pa.field("consumer", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("session", pa.int32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("producer", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("crc32", pa.int64()),
        pa.field("isolation", pa.string(), nullable=False),
        pa.field("read_at", _TIMESTAMP),
    ]
)
"""One row per record that a consumer read."""

DRAINED = pa.schema(
    [
        pa.field("consumer", pa.string(), nullable=False),
        pa.field("isolation", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
)
"""One row per partition that a drain read."""

SCHEMAS: dict[TableName, pa.Schema] = {"produced": PRODUCED, "consumed": CONSUMED, "drained": DRAINED}


def table_dir(run_dir: Path, table: TableName) -> Path:
    """The folder with the parts of one table."""
    return run_dir / "history" / table


_NUMBERED = re.compile(r"(.+)-(\d{6})\.parquet")
_NOTE = re.compile(r"_closed-(.+)\.json")


def part_name(stem: str, number: int) -> str:
    """The file name of a part."""
    return f"{stem}-{number:06d}.parquet"


class HistoryWriter:
    """Appends parts to one table of a run's history, in the driver or in a worker process.

    ``stem`` starts the name of every part; concurrent writers of one table need different stems. A writer that restarts
    under an old stem numbers its parts after those that exist.
    """

    def __init__(self, run_dir: Path, table: TableName, stem: str) -> None:
        if not stem or stem[0] in "._" or "/" in stem:
            raise ValueError(f"stem of a history part must not be empty, hold '/' or start with '.' or '_': {stem!r}")
        self._schema = SCHEMAS[table]
        self._dir = table_dir(run_dir, table)
        self._stem = stem
        self._part = 0

    def write(self, batch: pa.RecordBatch | pa.Table) -> Path:
        """Write ``batch`` as one part and return its path; columns in any order, values cast if nothing is lost.

        :raises ValueError: a column is missing, a value doesn't fit, or a value is null in a column without nulls
        """
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        missing = [name for name in self._schema.names if name not in table.column_names]
        if missing:
            raise ValueError(f"a part of history/{self._dir.name} needs the columns {', '.join(missing)}")
        table = table.select(self._schema.names).cast(self._schema)
        self._dir.mkdir(parents=True, exist_ok=True)
        hidden = self._dir / f".{self._stem}-{uuid.uuid4().hex}.tmp"
        try:
            pq.write_table(table, hidden, compression="zstd", row_group_size=1 << 20, write_page_checksum=True)
            while (part := self._dir / part_name(self._stem, self._part)).exists():
                self._part += 1
            hidden.rename(part)
            self._part += 1
            return part
        finally:
            hidden.unlink(missing_ok=True)

    def close(self) -> None:
        """Write the note of all parts (:func:`note_parts`); no part may follow."""
        note_parts(self._dir, self._stem)


def note_parts(folder: Path, stem: str) -> int:
    """Write the note of a finished writer: how many rows each part has. Returns the number of all rows."""
    parts = (folder / part_name(stem, number) for number in count())
    rows = [pq.read_metadata(part).num_rows for part in takewhile(Path.exists, parts)]
    write_atomically(folder / f"_closed-{stem}.json", json.dumps({"rows": rows}) + "\n")
    return sum(rows)


def load_table(run_dir: Path, table: TableName, columns: Sequence[str] | None = None) -> pa.Table:
    """Load one whole table into this process: strings as dictionaries, every number an int64.

    It does not use Spark, which takes ten times as long. It ignores names that start with ``.`` or ``_``.

    :param columns: only these, in this order; all are checked either way
    :raises HistoryError: the table is missing or has no part; a part is cut off, no Parquet file or damaged inside; a
        column is missing, or its values don't fit the schema's type. The error names the file or folder
    """
    schema = SCHEMAS[table]
    wanted = [schema.field(name) for name in columns or schema.names]
    tables = []
    for part in _parts(run_dir, table):
        _look_at(part, schema)
        words = [field.name for field in wanted if pa.types.is_string(field.type)]
        try:
            with pq.ParquetFile(part, read_dictionary=words, page_checksum_verification=True) as file:
                stored = file.read([field.name for field in wanted])
            tables.append(_conforming(stored, wanted))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise HistoryError(f"{part} is damaged: {_first_line(error)}") from error
    return pa.concat_tables(tables).unify_dictionaries()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One row group of one part of a table."""

    part: Path
    row_group: int
    rows: int


def pieces(run_dir: Path, table: TableName) -> list[Piece]:
    """All row groups of a table, in the order of the parts' names; reads the footer of every part.

    :raises HistoryError: as :func:`load_table`, except for damage inside of pages
    """
    return [
        Piece(part=part, row_group=number, rows=rows)
        for part in _parts(run_dir, table)
        for number, rows in enumerate(_look_at(part, SCHEMAS[table]))
    ]


def load_batches(
    pieces: Sequence[Piece], table: TableName, columns: Sequence[str], batch_rows: int
) -> Iterator[pa.Table]:
    """The rows of ``pieces`` in their order, in tables of about ``batch_rows``; columns as in :func:`load_table`.

    :raises HistoryError: a part is damaged inside
    """
    wanted = [SCHEMAS[table].field(name) for name in columns]
    words = [field.name for field in wanted if pa.types.is_string(field.type)]
    waiting: list[pa.Table] = []
    for part, of_part in groupby(pieces, key=lambda piece: piece.part):
        groups = [piece.row_group for piece in of_part]
        try:
            # Without a buffer, all columns of a row group would be in memory, and a row group can be large.
            with pq.ParquetFile(
                part, read_dictionary=words, buffer_size=1 << 20, page_checksum_verification=True
            ) as file:
                for batch in file.iter_batches(batch_rows, groups, list(columns), use_threads=False):
                    stored = pa.Table.from_batches([batch])
                    waiting.append(_conforming(stored, wanted))
                    if sum(len(each) for each in waiting) >= batch_rows:
                        yield pa.concat_tables(waiting).unify_dictionaries()
                        waiting = []
        except (pa.ArrowException, OSError, ValueError) as error:
            raise HistoryError(f"{part} is damaged: {_first_line(error)}") from error
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries()


def _conforming(stored: pa.Table, wanted: Sequence[pa.Field]) -> pa.Table:
    """The wanted columns as :func:`load_table` returns them, whatever types they are stored in."""
    return pa.table([_conform(stored[field.name], field) for field in wanted], [field.name for field in wanted])


def _conform(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if pa.types.is_string(field.type):
        return column.cast(pa.dictionary(pa.int32(), pa.string()))
    if pa.types.is_timestamp(field.type):
        return column.cast(pa.timestamp(column.type.unit, "UTC") if pa.types.is_timestamp(column.type) else field.type)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column.cast(pa.int64())


def _parts(run_dir: Path, table: TableName) -> Iterator[Path]:
    """The parts of a table in the order of their names, at least one; raises HistoryError if a part is missing."""
    folder = table_dir(run_dir, table)
    if not folder.is_dir():
        raise HistoryError(f"{folder} is missing: this run has no history of what was {table}")
    try:
        there = sorted(folder.iterdir())
    except OSError as error:
        raise HistoryError(f"{folder} can't be read: {error.strerror}") from error
    names = [path for path in there if path.name[0] not in "._"]
    if not names:
        raise HistoryError(f"{folder} has no Parquet file; even a table without rows has one")
    for path in names:
        if not path.is_file():
            raise HistoryError(f"{path} is not a file; a table of a history holds only Parquet files")
    numbers: dict[str, set[int]] = {}
    for found in filter(None, (_NUMBERED.fullmatch(path.name) for path in names)):
        numbers.setdefault(found[1], set()).add(int(found[2]))
    for stem, of_stem in numbers.items():
        if gone := set(range(max(of_stem))) - of_stem:
            raise HistoryError(f"{folder / part_name(stem, min(gone))} is missing: its writer wrote later parts")
    notes = [(path, note[1]) for path in there if (note := _NOTE.fullmatch(path.name))]
    noted = {part: rows for path, stem in notes for part, rows in _noted(path, stem)}
    if (missed := sorted({*noted} - {*names})) and all(_is_as_left(part, noted) for part in names):
        raise HistoryError(f"{missed[0]} is missing: the note of its writer lists it")
    yield from names


def _noted(note: Path, stem: str) -> Iterator[tuple[Path, int]]:
    """The parts that a writer noted, and how many rows each has."""
    try:
        rows = [int(each) for each in json.loads(note.read_text())["rows"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HistoryError(f"{note} is cut off, or is not a writer's note: {error}") from error
    return ((note.with_name(part_name(stem, number)), of_part) for number, of_part in enumerate(rows))


def _is_as_left(part: Path, noted: Mapping[Path, int]) -> bool:
    """Whether a part is as one of jbod's writers left it; a killed writer leaves no note."""
    try:
        return _NUMBERED.fullmatch(part.name) is not None and noted.get(part) in (None, pq.read_metadata(part).num_rows)
    except (pa.ArrowException, OSError, ValueError):  # _look_at raises it
        return True


def _look_at(part: Path, schema: pa.Schema) -> list[int]:
    """How many rows each row group of a part has; raises HistoryError if its columns do not fit ``schema``."""
    try:
        with pq.ParquetFile(part) as file:
            arrow = file.schema_arrow
            missing = [name for name in schema.names if len(arrow.get_all_field_indices(name)) != 1]
            if missing:
                raise HistoryError(
                    f"{part} has other columns: {', '.join(missing)} missing; has {', '.join(arrow.names)}"
                )
            for field in schema:
                _check_type(part, field, arrow.field(field.name).type)
            for field in schema:
                stored = arrow.field(field.name).type
                if pa.types.is_integer(field.type) and not pa.types.is_null(stored):
                    _check_lossless(part, file, field, stored)
            footer = file.metadata
            return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError) as error:
        size = part.stat().st_size if part.exists() else 0
        raise HistoryError(f"{part} ({size} bytes) is cut off or not a Parquet file: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _check_type(part: Path, field: pa.Field, stored: pa.DataType) -> None:
    value = stored.value_type if pa.types.is_dictionary(stored) else stored
    if pa.types.is_string(field.type):
        fits = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
    elif pa.types.is_timestamp(field.type):
        fits = pa.types.is_timestamp(value)
    else:
        fits = pa.types.is_integer(value) or pa.types.is_float32(value) or pa.types.is_float64(value)
    if not fits and not pa.types.is_null(value):
        raise HistoryError(f"{part} has other columns: {field.name} is {value}, expected {field.type}")


def _check_lossless(part: Path, file: pq.ParquetFile, field: pa.Field, stored: pa.DataType) -> None:
    """Check by a cast that a column of another number type fits the schema's type."""
    if stored == field.type or (pa.types.is_integer(stored) and stored.bit_width < field.type.bit_width):
        return
    for batch in file.iter_batches(columns=[field.name]):
        values = batch.column(0)
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        try:
            values.cast(field.type)
        except pa.ArrowInvalid as error:
            raise HistoryError(
                f"{part} has other columns: {field.name} is {stored}, expected {field.type}, and "
                f"does not fit: {_first_line(error)}"
            ) from error
