"""A run prepares only what its cases need: without a judged case, no Spark.

The planted cache has a file where Spark's connector would go, so a run that prepares Spark cannot begin.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.host.cache import cache_dir
from harness.kafka.distribution import jolokia_agent
from suites.selftest.planted import Planted

SCENARIO = '''
import pytest
from suites.kip_112.plays import play
from suites.scenario import scenario


@scenario("ours/unjudged", kip=112, plan="planted", judged=False)
@pytest.mark.parametrize("letter", "ab")
def test_unjudged(case, mode, request, letter):
    """It needs no Spark."""
    play(case, mode, request.config)


@scenario("ours/judged", kip=112, plan="planted")
def test_judged(case, mode, request):
    """It needs Spark."""
    play(case, mode, request.config)
'''


@pytest.fixture
def without_spark(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with judged and unjudged scenarios; the cache has no room for Spark."""
    agent = jolokia_agent(cache_dir()).parent
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / agent.name).symlink_to(agent)
    (cache / "spark").touch()
    monkeypatch.setenv("JBOD_CACHE_DIR", str(cache))
    file = planted.folder / "test_ours.py"
    file.write_text(SCENARIO)
    return file


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("scenarios", "code"), [(["unjudged"], 0), (["unjudged", "judged"], 3)])
def test_only_judged_cases_need_spark(
    planted: Planted, without_spark: Path, scenarios: list[str], code: int, jobs: int
) -> None:
    selectors = [f"{without_spark}::ours/{name}" for name in scenarios]
    kafka = f"--kafka-home={planted.kafka('90.0.0')}"
    ended, said = planted.jbod("run", *selectors, "--backend=planted", kafka, f"--jobs={jobs}")
    assert ended == code
    assert ("spark" in said) is (code != 0)
    assert len(planted.played()) == (0 if code else 2)
