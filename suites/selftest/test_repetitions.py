"""``jbod repro`` repeats a case on the same build; on planted cases (:mod:`suites.selftest.planted`)."""

from __future__ import annotations

import json
import zipfile

from suites.selftest.planted import Planted

CASE = "kip-112/planted[kraft-b]"


def test_until_it_fails_or_so_many_times(planted: Planted) -> None:
    """All repetitions have one exit code and one JSON; a build that has changed since is reported."""
    kafka = planted.kafka("4.3.1")
    code, _ = planted.jbod("run", CASE, "--backend=planted", f"--kafka-home={kafka}", "--seed=7")
    assert code == 0
    [run_dir] = (path.parent for path in planted.runs_dir.glob("*/run.json"))

    planted.plays({CASE: "valid valid invalid valid"})
    code, output = planted.jbod("repro", run_dir, "--repeat=until-fail", "--json=out.json")
    assert (code, "1 of 2 valid" in output, "another build" in output) == (1, True, False)
    result = json.loads((planted.folder / "out.json").read_text())
    assert (result["exit_code"], result["seed"]) == (1, 7)
    assert [case["verdict"] for case in result["scenarios"]] == ["valid", "invalid"]
    assert (result["totals"]["valid"], result["totals"]["invalid"]) == (1, 1)
    assert {case["backend"] for case in result["scenarios"]} == {"planted"}

    then = result["scenarios"][0]["kafka_sha256"]
    with zipfile.ZipFile(next(kafka.glob("libs/kafka_2.13-*.jar")), "a") as jar:
        jar.writestr("patched", "")
    code, output = planted.jbod("repro", run_dir, "--repeat=2")
    assert (code, "2 of 2 valid" in output) == (0, True)
    assert f"{kafka} is now another build" in output
    assert f"than the one that ran (sha256 {then[:12]}, Kafka 4.3.1)" in output
    assert planted.played() == [f"{CASE} 4.3.1"] * 5
