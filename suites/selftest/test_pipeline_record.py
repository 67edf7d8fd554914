"""Python, Arrow and Java (test_pipeline_pair) read the sender of a record from its value in the same way."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.history import record_format

words = st.from_regex(r"[A-Za-z0-9._-]{1,16}", fullmatch=True)
seqs = st.integers(min_value=0, max_value=10**18 - 1)


def name_in(value: bytes | None, token: str) -> tuple[bytes, bytes] | None:
    """The sender of the record, as Python's ``re`` reads it."""
    found = re.match(record_format.header_pattern(token).encode(), value or b"")
    return (found["producer"], found["seq"]) if found else None


@given(token=words, producer=words, seq=seqs, record_bytes=st.integers(record_format.SMALLEST_RECORD_BYTES, 3000))
def test_value_names_its_record_and_has_its_size(token: str, producer: str, seq: int, record_bytes: int) -> None:
    value = record_format.value_of(
        record_format.prefix_of(token, producer), seq, record_format.padding_to(record_bytes)
    )
    assert len(value) == record_bytes
    assert name_in(value, token) == (producer.encode(), str(seq).encode())
    assert pc.extract_regex(pa.array([value]), record_format.header_pattern(token)).to_pylist() == [
        {"producer": producer.encode(), "seq": str(seq).encode()}
    ]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"jbod other p0 7 xxx",
        b"jbod run p0 7",
        b"jbod run p0 -7 xxx",
        b"jbod run p0 1234567890123456789 xxx",
        b"jbod run p\xff 7 xxx",
        b"xjbod run p0 7 xxx",
    ],
)
def test_other_values_are_of_no_producer(value: bytes | None) -> None:
    assert name_in(value, "run") is None
    assert pc.extract_regex(pa.array([value], pa.binary()), record_format.header_pattern("run")).to_pylist() == [None]


@given(token=words, other=words)
def test_another_runs_records_are_not_ours(token: str, other: str) -> None:
    value = record_format.value_of(record_format.prefix_of(token, "p0"), 7, record_format.padding_to(100))
    assert name_in(value, other) == ((b"p0", b"7") if token == other else None)


@given(seq=seqs, keys=st.integers(1, 50), partitions=st.integers(1, 12))
def test_one_key_goes_to_one_partition(seq: int, keys: int, partitions: int) -> None:
    assert record_format.key_of(seq, keys) == record_format.key_of(seq + keys, keys)
    assert record_format.partition_of(seq, keys, partitions) == record_format.partition_of(seq + keys, keys, partitions)


def test_without_keys_all_partitions_are_served_in_turn() -> None:
    assert [record_format.partition_of(seq, None, 3) for seq in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert record_format.key_of(5, None) is None


@pytest.mark.parametrize("word", ["", "a b", "x" * 17, "ü", "a\n"])
def test_words_that_would_break_the_head_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        record_format.check_words(word)
