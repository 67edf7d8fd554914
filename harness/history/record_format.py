"""What a record of the pipeline looks like, so that whoever reads it knows who sent it.

The name of a record (producer, seq) stands in plain ASCII at the head of its value, followed by padding up to the
wanted size: ``jbod <run token> <producer> <seq> xxxx…``. Not in Kafka's record headers, which Spark's source and
Kafka's own tools hand over only when asked; not in a binary frame, which Spark SQL could not take apart in the JVM.
The value follows from the name and the size alone, so that a record whose sender died can be described afterwards
(:mod:`harness.history.write_ahead`). The run token keeps the records of another run, or of a topic made again under an
old name, from passing for ours.
"""

from __future__ import annotations

import re

SMALLEST_RECORD_BYTES = 64
"""The longest head (two words of 16, a seq of 18 digits) always fits."""
_WORD = re.compile(r"[A-Za-z0-9._-]{1,16}")
_PADDING = b"x" * 1024


def check_words(*words: str) -> None:
    """Raise ValueError unless each may stand in a record: 1 to 16 of ``A-Z a-z 0-9 . _ -``."""
    for word in words:
        if not _WORD.fullmatch(word):
            raise ValueError(f"a run token or producer name must be 1 to 16 of A-Z a-z 0-9 . _ -, not {word!r}")


def prefix_of(run_token: str, producer: str) -> bytes:
    """The head of every value that this producer sends in this run."""
    return f"jbod {run_token} {producer} ".encode()


def padding_to(record_bytes: int) -> bytes:
    """Padding that is long enough for every record of this size; see :func:`value_of`."""
    return (_PADDING * (record_bytes // len(_PADDING) + 1))[:record_bytes]


def value_of(prefix: bytes, seq: int, padding: bytes) -> bytes:
    """The value of record ``seq``, exactly ``len(padding)`` bytes long (at least 64, :data:`SMALLEST_RECORD_BYTES`)."""
    return (b"%b%d %b" % (prefix, seq, padding))[: len(padding)]


def key_of(seq: int, keys: int | None) -> str | None:
    """The key of record ``seq``: one of ``keys`` different ones in turn, or none at all."""
    return None if keys is None else str(seq % keys)


def partition_of(seq: int, keys: int | None, partitions: int) -> int:
    """The partition that record ``seq`` is sent to: all in turn, one key always to the same.

    Chosen here and not by the client's partitioner, so that records for a partition without a leader do not depend on
    what the client thinks of it.
    """
    return (seq if keys is None else seq % keys) % partitions


def header_pattern(run_token: str) -> str:
    """Regular expression for the head of this run's values; groups ``producer`` and ``seq``.

    Written so that Python's ``re``, RE2 (Arrow) and ``java.util.regex`` (Spark SQL) read it alike. 18 digits always
    fit an int64.
    """
    return rf"^jbod {re.escape(run_token)} (?P<producer>[A-Za-z0-9._-]+) (?P<seq>[0-9]{{1,18}}) "
