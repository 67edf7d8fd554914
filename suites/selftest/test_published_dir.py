"""Two runs at once write to separate folders; the one that ends last is published, complete."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.runner.published_dir import published_dir


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_is_that_of_the_run_that_ended_last(tmp_path: Path) -> None:
    shared = tmp_path / "allure-results"
    with published_dir(shared) as first:
        (first / "first").touch()
        with published_dir(shared) as second:
            (second / "second").touch()
            assert not shared.exists()
        assert names(shared) == ["second"]
        (first / "first, too").touch()
    assert names(shared) == ["first", "first, too"]
    assert names(tmp_path) == ["allure-results"]


def test_also_where_the_run_ends_with_an_error(tmp_path: Path) -> None:
    shared = tmp_path / "allure-results"

    def interrupted() -> None:
        with published_dir(shared) as own:
            (own / "so far").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(shared) == ["so far"]


def test_what_a_killed_run_left_goes_and_what_another_still_writes_stays(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f".allure-results-{dead.pid}-aaaaaa").mkdir()
    (tmp_path / ".allure-results-1-aaaaaa").mkdir()
    with published_dir(tmp_path / "allure-results"):
        pass
    assert names(tmp_path) == [".allure-results-1-aaaaaa", "allure-results"]
