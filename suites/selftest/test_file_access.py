"""The uses of files in a folder are seen, and the uses of other files are not."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.host.file_access import in_use, watched


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "log-dir" / "orders-0"
    folder.mkdir(parents=True)
    file = folder / "0.log"
    file.write_text("a record")
    (tmp_path / "elsewhere").write_text("")
    return file


@pytest.mark.parametrize(
    ("use", "seen"),
    [
        (lambda file: file.read_text(), ["orders-0/0.log was opened", "orders-0/0.log was read"]),
        (lambda file: file.chmod(0), ["orders-0/0.log was changed"]),
        (lambda file: file.with_name("1.log").touch(), ["orders-0/1.log was created", "orders-0/1.log was opened"]),
        (lambda file: file.unlink(), ["orders-0/0.log was deleted"]),
        (lambda file: (file.parents[1] / "orders-1").mkdir(), ["orders-1 was created"]),
        (lambda file: list(file.parent.iterdir()), []),
        (lambda file: file.stat(), []),
        (lambda file: (file.parents[2] / "elsewhere").write_text("x"), []),
    ],
    ids=["read", "chmod", "create", "delete", "mkdir", "list", "stat", "elsewhere"],
)
def test_each_use_is_seen(file: Path, use: Callable[[Path], object], seen: list[str]) -> None:
    with watched(file.parents[1]) as uses:
        use(file)
        assert [each for each in uses() if not each.endswith("1.log was changed")] == seen


def test_a_write_and_a_rename_are_seen_later_too(file: Path) -> None:
    with file.open("a") as opened, watched(file.parents[1]) as uses:
        assert uses() == []
        opened.write("another record")
        opened.flush()
        assert uses() == ["orders-0/0.log was written"]
        file.rename(file.with_name("2.log"))
        assert uses()[1:] == ["orders-0/0.log was renamed", "orders-0/2.log was renamed"]


def test_a_file_is_in_use_while_it_is_open_or_mapped(file: Path) -> None:
    log_dir = file.parents[1]
    assert in_use(log_dir, os.getpid()) == []
    with file.open("rb") as opened:
        assert in_use(log_dir, os.getpid()) == ["orders-0/0.log"]
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    assert in_use(log_dir, os.getpid()) == ["orders-0/0.log"]
    mapped.close()
    assert in_use(log_dir, os.getpid()) == []
