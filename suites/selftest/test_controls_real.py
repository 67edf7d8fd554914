"""Live controls: each is red with its kind of anomaly, and its twin without the harm is green."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from harness.checkers.judge import judge
from harness.spark.session import SessionSource
from suites.selftest.processes import JBOD, Result, Results, run

pytestmark = pytest.mark.cluster


GREEN = ("new-epoch", "unclean-election", "deleted-records")
"""The controls whose twins without harm run each time; another control follows the last one on its cluster. The other
twins run once a week."""


@pytest.fixture(
    scope="module",
    params=[
        ("kraft", GREEN),
        pytest.param(("kraft", ()), marks=pytest.mark.weekly),
        pytest.param(("zk", ()), marks=pytest.mark.weekly),
    ],
    ids=lambda param: f"{param[0]}-{'some' if param[1] else 'all'}",
)
def some(request: pytest.FixtureRequest) -> tuple[str, Collection[str]]:
    """The metadata mode, and the controls whose twins run; empty: all."""
    param: tuple[str, Collection[str]] = request.param
    return param


@pytest.fixture(scope="module")
def mode(some: tuple[str, Collection[str]]) -> str:
    """The metadata mode."""
    return some[0]


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory, some: tuple[str, Collection[str]]) -> Results:
    """Run live controls of a mode, two at once; returns the exit code, and each case's JSON by its id."""
    mode, green = some
    folder = tmp_path_factory.mktemp("controls")
    words = [str(JBOD), "list", "control", f"--mode={mode}", "--json"]
    listed = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["scenarios"]
    wanted: list[str] = [
        case
        for each in listed
        for case in each["cases"]
        if not green or not case.endswith("-green]") or each["id"].removeprefix("control/") in green
    ]
    assert {f"control/{each}[{mode}-green]" for each in GREEN} <= set(wanted)
    code, results = run(folder, *wanted, f"--mode={mode}", "--jobs=2")
    assert set(results) == set(wanted)
    assert len(list((folder / "allure-results").glob("*-result.json"))) == len(results)
    return code, results


def test_whoever_was_served_by_a_cluster_before_had_come_out_valid(
    controls: Results,
) -> None:
    """A cluster is reused only after valid cases."""
    served = {name: case.get("served", []) for name, case in controls[1].items()}
    assert any(served.values())
    assert {controls[1][each]["verdict"] for before in served.values() for each in before} == {"valid"}


def test_red_controls_make_the_run_red(controls: Results) -> None:
    assert controls[0] == 1


def red_beside_its_twin(controls: Results, control: str, mode: str, word: str) -> Result:
    """The JSON of a control, which is invalid; its twin without the harm is valid, if it was to run."""
    red, green = controls[1][f"control/{control}[{mode}-{word}]"], controls[1].get(f"control/{control}[{mode}-green]")
    assert green is None or green["verdict"] == "valid", green
    assert red["verdict"] == "invalid", red["reason"]
    return red


@pytest.mark.parametrize(
    ("control", "kind"),
    [
        ("unclean-election", "lost"),
        ("paused-leader", "duplicated"),
        ("not-enough-replicas", "reordered"),
        ("deleted-records", "lost"),
        ("flipped-byte", "corrupted"),
        ("misattributed-aborts", "aborted_read"),
        ("backdated-aborts", "hidden"),
        ("power-cut-everywhere", "lost"),
    ],
)
def test_a_control_goes_red_with_its_kind_and_its_twin_is_green(
    controls: Results, control: str, kind: str, mode: str
) -> None:
    case = controls[1][f"control/{control}[{mode}-{kind}]"]
    if case["verdict"] == "skipped":
        pytest.skip(case["reason"])
    red = red_beside_its_twin(controls, control, mode, kind)
    verdict = json.loads((Path(red["run_dir"]) / "verdict.json").read_text())
    found = next(anomaly for anomaly in verdict["anomalies"] if anomaly["kind"] == kind)
    assert found["count"] > 0
    assert {"producer", "seq", "topic", "partition", "offset"} <= set(found["examples"][0])


def test_what_a_client_writes_anew_in_another_epoch_is_noted_and_without_the_epochs_is_red(
    controls: Results, mode: str, tmp_path: Path, judge_spark: SessionSource
) -> None:
    if mode == "zk":
        pytest.skip("a producer's epoch is raised with each transaction in KRaft mode only (KIP-890)")
    red_beside_its_twin(controls, "new-epoch", mode, "duplicated")
    case = controls[1][f"control/new-epoch[{mode}-green]"]
    run_dir = shutil.copytree(case["run_dir"], tmp_path / "run")
    noted = judge(judge_spark, run_dir)
    assert (noted.verdict, [anomaly.kind for anomaly in noted.anomalies]) == ("valid", ["resent"])
    content = json.loads((run_dir / "run.json").read_text())
    one_epoch = {
        t: {p: [[*s[:3], 0] for s in of] for p, of in ps.items()} for t, ps in content["producer_sessions"].items()
    }
    for told in ({}, one_epoch):
        (run_dir / "run.json").write_text(json.dumps(content | {"producer_sessions": told}))
        doubled = judge(judge_spark, run_dir)
        assert (doubled.verdict, [anomaly.kind for anomaly in doubled.anomalies]) == ("invalid", ["duplicated"])


def test_a_replica_that_no_client_reads_is_compared_all_the_same(controls: Results, mode: str) -> None:
    red = red_beside_its_twin(controls, "follower-differs", mode, "differs")
    assert "the replicas of orders-0 are not the same" in red["reason"]
    assert json.loads((Path(red["run_dir"]) / "verdict.json").read_text())["verdict"] == "valid"


def test_a_log_dir_that_goes_offline_in_a_quiet_minute_is_reported(controls: Results, mode: str) -> None:
    red = red_beside_its_twin(controls, "log-dir-offline", mode, "offline")
    assert re.search(r"broker \d counted 1 log dirs offline: .*broker \d logged: Stopping serving logs", red["reason"])


def test_a_broker_that_ends_unmissed_is_reported(controls: Results, mode: str) -> None:
    red = red_beside_its_twin(controls, "broker-ends", mode, "unmissed")
    assert "ended by itself with exit code 143" in red["reason"]


def test_a_topic_that_dies_with_its_rack_is_reported(controls: Results, mode: str) -> None:
    red = red_beside_its_twin(controls, "rack-fails", mode, "unavailable")
    assert re.search(r"no leader: orders-\d+ on brokers \[(1, 2|2, 1)\]", red["reason"])


def told(controls: Results, case: str, kind: str) -> Result:
    """The story of the first record of an anomaly's kind, from a control's run folder."""
    stories = json.loads((Path(controls[1][f"control/{case}"]["run_dir"]) / "explained.json").read_text())["stories"]
    found: Result = next(story for story in stories if kind in story["kinds"])
    return found


def test_a_lost_record_is_explained(controls: Results, mode: str) -> None:
    story = told(controls, f"unclean-election[{mode}-lost]", "lost")
    assert re.search(r"now on no replica, and p\d #\d+ is at \d+ on brokers", story["summary"]), story["summary"]
    assert [replica["copies"] for replica in story["replicas"]] == [[], [], []]
    timeline = [event["says"] for event in story["timeline"]]
    acked, truncated = (
        next(i for i, says in enumerate(timeline) if re.search(pattern, says))
        for pattern in (
            r"^acked at orders-0@\d+, when broker \d led in epoch 0",
            r"Truncating partition orders-0 .* due to leader epoch",
        )
    )
    killed = next(i for i, says in enumerate(timeline) if re.match(r"broker-\d is killed", says))
    # The client may get an ack from a broker that is dead by then.
    assert max(acked, killed) < truncated


def test_a_deleted_record_is_no_copy_and_a_spoilt_one_is_found(controls: Results, mode: str) -> None:
    deleted = told(controls, f"deleted-records[{mode}-lost]", "lost")
    assert all(replica["copies"] and replica["log_start"] == 50 for replica in deleted["replicas"])
    assert "does not count: deleted, the log starts at 50" in deleted["summary"], deleted["summary"]
    spoilt = told(controls, f"flipped-byte[{mode}-corrupted]", "corrupted")
    fits = sorted(copy["crc_fits"] for replica in spoilt["replicas"] for copy in replica["copies"])
    assert fits == [False, True, True]
    assert re.search(r"with a wrong checksum on broker \d$", spoilt["summary"]), spoilt["summary"]
