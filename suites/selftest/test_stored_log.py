"""Logs on disk are compared in pieces, wherever segments and pieces end, and also while they change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecordsBuilder

from harness.kafka import stored_log
from harness.kafka.stored_log import StoredLog


class InMemory(StoredLog):
    """A log in memory that consists of the given pieces."""

    def __init__(self, *given: bytes) -> None:
        self._given = given
        self.size = sum(map(len, given))

    def pieces(self, skip: int = 0) -> Iterator[bytes]:
        for piece in self._given:
            if rest := piece[skip:]:
                yield rest
            skip = max(0, skip - len(piece))


def stored(folder: Path, *segments: bytes) -> StoredLog:
    folder.mkdir(exist_ok=True)
    at = 0
    for segment in segments:
        (folder / f"{at:020}.log").write_bytes(segment)
        at += len(segment)
    return StoredLog(folder)


@pytest.mark.parametrize("piece", [1, 3, 4, 100])
@pytest.mark.parametrize("segments", [(b"abcdefgh",), (b"abc", b"defgh"), (b"", b"abcd", b"efgh")])
def test_its_bytes_from_anywhere_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, segments: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(stored_log, "PIECE", piece)
    log = stored(tmp_path, *segments)
    assert log.size == 8
    for skip in range(9):
        assert b"".join(log.pieces(skip)) == b"abcdefgh"[skip:]
    assert log.fingerprint() == InMemory(b"abcdefgh").fingerprint()


def test_it_begins_with_the_offset_of_its_first_batch(tmp_path: Path) -> None:
    assert stored(tmp_path, b"", (42).to_bytes(8) + b"the rest").begins() == 42
    assert stored(tmp_path / "empty", b"").begins() == 0


def batch(compression_type: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression_type, batch_size=1 << 16)
    for _ in range(20):
        builder.append(timestamp=None, key=None, value=b"the same each time")
    builder.close()
    return bytes(builder.buffer())


def test_its_batches_have_the_codecs_with_which_they_were_compressed(tmp_path: Path) -> None:
    assert stored(tmp_path, batch(1), batch(1) * 2, b"").codecs() == {1}
    assert stored(tmp_path / "others", batch(0) + batch(1), batch(0)).codecs() == {0, 1}


NON_EMPTY = st.lists(st.binary(min_size=1, max_size=4), max_size=4)


@given(NON_EMPTY, NON_EMPTY, st.integers(0, 4))
def test_the_first_difference_is_where_it_is(one: list[bytes], other: list[bytes], skip: int) -> None:
    """The first difference is where a comparison of the whole logs finds it."""
    ours, theirs = b"".join(one), b"".join(other)[skip:]
    differing = [at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    whole = None if ours == theirs else (differing or [min(len(ours), len(theirs))])[0]
    assert InMemory(*one).first_difference(InMemory(*other), skip) == whole


def test_what_is_appended_meanwhile_is_not_seen_and_what_is_cut_off_is_reported(tmp_path: Path) -> None:
    log = stored(tmp_path, b"abcd")
    [file] = tmp_path.iterdir()
    file.write_bytes(b"abcdef")
    assert [*log.pieces()] == [b"abcd"]
    file.write_bytes(b"ab")
    with pytest.raises(OSError, match="2 bytes shorter than it was"):
        log.fingerprint()
