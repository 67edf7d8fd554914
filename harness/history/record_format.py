"""The format of a record, by which its readers know who sent it.

The name of a record (producer, seq) stands in ASCII at the head of its value, and padding follows up to the wanted
size: ``jbod <run token> <producer> <seq> xxxx…``. It is not in Kafka's record headers, which Spark's source and Kafka's
tools return only on request, and not in a binary format, which Spark SQL could not parse in the JVM. The value follows
from the name and the size alone, so a record whose sender died can be described (:mod:`harness.history.write_ahead`).
The run token distinguishes our records from those of another run and of an older topic of the same name.
"""

from __future__ import annotations

import re

SMALLEST_RECORD_BYTES = 64
"""Room for the longest head: two words of 16 characters and a seq of 18 digits."""
_WORD = re.compile(r"[A-Za-z0-9._-]{1,16}")
_PADDING = b"x" * 1024


def check_words(*words: str) -> None:
    """Raise ValueError unless each may stand in a record: 1 to 16 of ``A-Z a-z 0-9 . _ -``."""
    for word in words:
        if not _WORD.fullmatch(word):
            raise ValueError(f"a run token or producer name must be 1 to 16 of A-Z a-z 0-9 . _ -, not {word!r}")


def prefix_of(run_token: str, producer: str) -> bytes:
    """The head of all values of this producer in this run, without the seq."""
    return f"jbod {run_token} {producer} ".encode()


def padding_to(record_bytes: int) -> bytes:
    """Padding for records of this size; see :func:`value_of`."""
    return (_PADDING * (record_bytes // len(_PADDING) + 1))[:record_bytes]


def value_of(prefix: bytes, seq: int, padding: bytes) -> bytes:
    """The value of record ``seq``: ``len(padding)`` bytes, at least :data:`SMALLEST_RECORD_BYTES`."""
    return (b"%b%d %b" % (prefix, seq, padding))[: len(padding)]


def key_of(seq: int, keys: int | None) -> str | None:
    """The key of record ``seq``: one of ``keys`` different keys in turn; None if ``keys`` is None."""
    return None if keys is None else str(seq % keys)


def partition_of(seq: int, keys: int | None, partitions: int) -> int:
    """The partition that record ``seq`` is sent to: each partition in turn, and always the same one for a key.

    The client's partitioner does not choose it, because that could avoid a partition without a leader.
    """
    return (seq if keys is None else seq % keys) % partitions


def header_pattern(run_token: str) -> str:
    """A regular expression for the head of this run's values; groups ``producer`` and ``seq``.

    It means the same to Python's ``re``, to RE2 (Arrow) and, without the P of its groups, to ``java.util.regex`` (Spark
    SQL). 18 digits fit an int64.
    """
    return rf"^jbod {re.escape(run_token)} (?P<producer>[A-Za-z0-9._-]+) (?P<seq>[0-9]{{1,18}}) "
