"""``--set KEY=VALUE`` reaches the nodes, is recorded, and is used again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.shared import case_again
from harness.cluster.profile import BROKER_SETTINGS, FAST
from harness.cluster.spec import ClusterSpec
from harness.errors import UsageError
from harness.history.run_folder import RunRecord
from harness.kafka.broker_properties import refusals
from harness.kafka.builds import BuildOptions, BuildRecord, Builds
from harness.kafka.tools_jvm import end_tools
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from harness.runner import ledger
from harness.runner.case_result import CaseResult
from harness.runner.set_option import OWNED, conflict, options_of, parse, settings_of
from harness.runner.shrinking import play_command
from harness.runner.subrun import arguments_of
from suites.selftest.case_results import case_result

LAG = "replica.lag.time.max.ms"


@pytest.fixture(autouse=True)
def no_tools() -> Iterator[None]:
    yield
    end_tools()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"{LAG}=30000", (LAG, "30000")),
        ("listener.name.plaintext.max.connections=9", ("listener.name.plaintext.max.connections", "9")),
        ("metric.reporters=", ("metric.reporters", "")),
        ("ssl.principal.mapping.rules=RULE:^CN=(.*)$/x/", ("ssl.principal.mapping.rules", "RULE:^CN=(.*)$/x/")),
    ],
)
def test_a_property_and_its_value(text: str, read: tuple[str, str]) -> None:
    assert parse(text) == read


@pytest.mark.parametrize(
    "text", ["", LAG, "=1", "A b=1", r"a=\n", "a=1\nlog.dirs=/", *(f"{key}=x" for key in sorted(OWNED))]
)
def test_what_cannot_be_set(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--set "):
        parse(text)


def test_one_value_each() -> None:
    assert settings_of([f"{LAG}=1", "a=2", f"{LAG}=1"]) == {LAG: "1", "a": "2"}
    with pytest.raises(UsageError, match=f"{LAG} has two values, 1 and 2"):
        settings_of([f"{LAG}=1", f"{LAG}=2"])


def test_it_wins_over_the_settings_of_all_suites_and_a_scenario_wins_over_it() -> None:
    """So a case whose scenario needs another value is skipped: it would not show what was asked for."""
    spec = ClusterSpec(mode=Mode.KRAFT, given={LAG: "30000", "num.partitions": "2"}, overrides={"num.partitions": "3"})
    assert spec.settings == {**BROKER_SETTINGS, **FAST.of_mode[Mode.KRAFT], LAG: "30000", "num.partitions": "3"}
    why = conflict(spec.given, spec.overrides)
    assert why == "the scenario itself needs num.partitions=3, and --set has num.partitions=2"
    assert conflict(spec.given, {"num.partitions": "2", "num.io.threads": "1"}) is None


def test_a_recorded_run_is_run_again_with_it(tmp_path: Path) -> None:
    run = RunRecord(
        case="kip-112/x[kraft]",
        kip=112,
        mode="kraft",
        seed=7,
        started_at="2026-11-20T00:00:00+00:00",
        kafka=BuildRecord(version="4.4.0", source="maven"),
        profile="production",
        settings={LAG: "30000", "a": "1"},
    )
    _, options = case_again(run, tmp_path)
    unusual = ["--profile=production", f"--set={LAG}=30000", "--set=a=1"]
    assert arguments_of(options)[-3:] == unusual
    assert " ".join(unusual) in play_command("x.json", run)
    assert arguments_of(options_of("fast", {})) == []


def test_it_is_no_ordinary_run(tmp_path: Path) -> None:
    """A night would take the case for one that ran, and the ledger for a flaky one."""
    plain = replace(case_result(), run_dir=tmp_path / "x")
    given = replace(plain, settings={LAG: "30000"})
    for result in (plain, given):
        ledger.note(tmp_path, result)
    assert len(ledger.read(tmp_path)) == 1
    assert CaseResult.from_json(given.to_json()).settings == {LAG: "30000"}


@pytest.mark.parametrize("mode", Mode)
def test_a_build_knows_its_properties_and_refuses_others(mode: Mode) -> None:
    """Kafka itself would only ignore them. Internal properties are known, and those of one listener."""
    build = Builds.choose(BuildOptions(kafka=str(DEFAULT_BUILDS[mode]))).of(mode)
    known = {LAG: "30000", "log.initial.task.delay.ms": "500", "listener.name.plaintext.num.network.threads": "2"}
    assert refusals(build, known) == {}
    refused = refusals(build, {"replica.lag.time.max": "1", LAG: "soon", "log.segment.bytes": "-1"})
    assert refused["replica.lag.time.max"] == "has no such broker property"
    assert refused[LAG] == f"refuses it: Invalid value soon for configuration {LAG}: Not a number of type LONG"
    assert refused["log.segment.bytes"].startswith("refuses it: Invalid value -1 for configuration log.segment.bytes")
