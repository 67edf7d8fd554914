"""``jbod bench`` compares the starts of each mode with the goal, or says why there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bench import start
from harness.bench.figures import LoadWatch
from harness.bench.parts import start_figures
from harness.bench.start import Start, Starts, compare_starts
from harness.errors import EnvironmentLacks
from harness.host import abilities
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode

BUILD = Builds.choose(BuildOptions(mode="kraft"))


def rounds(mode: Mode, *ratios: float) -> list[Start]:
    return [Start(mode=mode, process_s=4.0, container_s=4.0 * ratio) for ratio in ratios]


def test_each_mode_has_its_median_and_whether_it_reaches_the_goal() -> None:
    """The median of the rounds of each mode may be 1.5 at most; one slow round does not count."""
    starts = Starts(rounds=[*rounds(Mode.ZK, 1.0, 1.25, 3.0), *rounds(Mode.KRAFT, 1.0, 1.75, 1.625)])
    found = start_figures(starts, LoadWatch())
    assert [(each.name[-5:], each.value, each.state) for each in found.figures] == [
        ("s, zk", 1.25, "reached"),
        ("kraft", 1.625, "missed"),
    ]
    written = found.details["container_start"]
    assert isinstance(written, dict)
    assert written["ratios"] == {"zk": 1.25, "kraft": 1.625}
    assert (written["limit"], written["over"], written["skipped"], len(written["rounds"])) == (1.5, ["kraft"], "", 6)
    assert written["rounds"][0] == {"mode": "zk", "process_s": 4.0, "container_s": 4.0, "ratio": 1.0}


def test_as_long_as_it_may_take_is_not_over() -> None:
    assert Starts(rounds=rounds(Mode.KRAFT, 1.5)).over == []


def test_without_an_engine_it_is_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(start, "ability", abilities.ability.__wrapped__)  # without the cache of other tests
    starts = compare_starts({Mode.KRAFT: BUILD.of(Mode.KRAFT)}, tmp_path, 1, pytest.fail)
    assert not starts.rounds
    assert f"docker: no Docker engine at {tmp_path}/docker.sock" in starts.skipped
    (figure,) = start_figures(starts, LoadWatch()).figures
    assert (figure.state, figure.why) == ("skipped", starts.skipped)


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
