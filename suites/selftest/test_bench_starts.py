"""``jbod bench`` reports the ratio of starts for each mode, whether it is too high, and why there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.bench import start
from harness.bench.bench import Bench
from harness.bench.start import Start, Starts, compare_starts
from harness.cli.measure_harness import tell_starts
from harness.errors import EnvironmentLacks
from harness.host import abilities
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode

BUILD = Builds.choose(BuildOptions(mode="kraft"))


def rounds(mode: Mode, *ratios: float) -> list[Start]:
    return [Start(mode=mode, process_s=4.0, container_s=4.0 * ratio) for ratio in ratios]


def told(starts: Starts, capsys: pytest.CaptureFixture[str]) -> str:
    tell_starts(starts)
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_each_mode_has_its_ratio_and_what_is_over_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The median of the rounds of each mode may be 1.5 at most; one slow round does not count."""
    starts = Starts(rounds=[*rounds(Mode.ZK, 1.0, 1.25, 3.0), *rounds(Mode.KRAFT, 1.0, 1.75, 1.625)])
    assert (starts.ratios, starts.over) == ({Mode.ZK: 1.25, Mode.KRAFT: 1.625}, [Mode.KRAFT])
    said = told(starts, capsys)
    assert "zk 4.00 12.00 3.00" in said
    assert "zk, median 1.25 kraft, median 1.62, over 1.5" in said
    written = json.loads(Bench(pair=(), starts=starts, judged=()).to_json())["container_start"]
    assert written["ratios"] == {"zk": 1.25, "kraft": 1.625}
    assert (written["limit"], written["over"], written["skipped"], len(written["rounds"])) == (1.5, ["kraft"], "", 6)
    assert written["rounds"][0] == {"mode": "zk", "process_s": 4.0, "container_s": 4.0, "ratio": 1.0}


def test_as_long_as_it_may_take_is_not_over() -> None:
    assert Starts(rounds=rounds(Mode.KRAFT, 1.5)).over == []


def test_without_an_engine_it_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(start, "ability", abilities.ability.__wrapped__)  # without the cache of other tests
    starts = compare_starts({Mode.KRAFT: BUILD.of(Mode.KRAFT)}, tmp_path, 1, pytest.fail)
    assert not starts.rounds
    assert f"docker: no Docker engine at {tmp_path}/docker.sock" in starts.skipped
    assert "SKIPPED in containers: docker: no Docker engine" in told(starts, capsys)
    written = json.loads(Bench(pair=(), starts=starts, judged=()).to_json())["container_start"]
    assert (written["skipped"], written["ratios"], written["over"]) == (starts.skipped, {}, [])


def test_so_it_is_without_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_image(*_: object) -> None:
        raise EnvironmentLacks("there is no image to build on")

    monkeypatch.setattr(start, "NEEDS", ())
    monkeypatch.setattr(start, "prepare_fast_starts", no_image)
    starts = compare_starts({Mode.KRAFT: BUILD.of(Mode.KRAFT)}, tmp_path, 1, pytest.fail)
    assert (starts.rounds, starts.skipped) == ((), "there is no image to build on")


def test_what_starts_fast_is_not_compared_with_what_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class archive may be missing for one side, after a try on a busy machine; the ratio would mean nothing."""
    monkeypatch.setattr(start, "NEEDS", ())
    monkeypatch.setattr(start, "prepare_fast_starts", lambda _build, _mode, backend, _say: backend == "docker")
    starts = compare_starts({Mode.KRAFT: BUILD.of(Mode.KRAFT)}, tmp_path, 1, pytest.fail)
    assert (starts.rounds, starts.skipped) == ([], "kraft: only docker has fast starts")


def test_where_nobody_asked_there_is_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(Starts(), capsys) == ""
