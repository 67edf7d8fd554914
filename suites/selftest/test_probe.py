"""``jbod probe`` tries every dependency, names what is missing, and has exactly the cases skipped that need it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cli.run_on_builds import probes_of
from harness.errors import HarnessError, UsageError
from harness.host.cache import cache_dir
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.distribution import from_maven
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from harness.runner.build_lacks import Lack, lack_lines, mode_of, read_lacks, read_probe
from harness.waiting import await_until
from suites.probe import command, probing
from suites.probe.dependencies import DEPENDENCIES
from suites.probe.dependency import SKIPPED, Dependency
from suites.probe.probing import TRIED_BY, Found, Probed, State, cause_of, in_order
from suites.probe.trial import SOON_S, TRIES, Trial
from suites.selftest.changed_builds import build_from
from suites.selftest.planted import Planted
from suites.selftest.processes import JBOD

A, B, C = (f"kip-112/planted[kraft-{letter}]" for letter in "abc")
BY_ID = {dependency.id: dependency for dependency in DEPENDENCIES}


def lack(needed_by: Sequence[str] = ("kip-112",), mode: str = "kraft", skips: bool = True) -> Lack:
    without = SKIPPED if skips else "slower"
    return Lack(
        id="x", what="the x tool", mode=mode, seen="gone", needed_by=tuple(needed_by), skips=skips, without=without
    )


# --- the dependencies ---------------------------------------------------------------------------------------------


def test_every_lean_is_tried_or_says_that_it_is_not() -> None:
    assert TRIED_BY
    assert {dependency.id for dependency in DEPENDENCIES if dependency.tried} - {"start"} == {*TRIES}
    assert len(BY_ID) == len(DEPENDENCIES)


def test_what_breaks_the_cluster_is_tried_last() -> None:
    ids = [id for id, _ in in_order()]
    assert ids[0] == "request-ApiVersions"
    assert ids[-1] == "log-no-dir-usable"
    assert sorted(ids) == sorted(TRIES)


def test_who_needs_a_lean_is_there() -> None:
    done = subprocess.run([JBOD, "list", "--json"], capture_output=True, text=True, check=True)
    scenarios = {each["id"] for each in json.loads(done.stdout)["scenarios"]}
    known = scenarios | {id.partition("/")[0] for id in scenarios}
    assert {name for dependency in DEPENDENCIES for name in dependency.needed_by} - known == set()


# --- the result for a build -----------------------------------------------------------------------------------------


def found(id: str, state: State, mode: Mode = Mode.KRAFT) -> Found:
    return Found(dependency=BY_ID[id], mode=mode, state=state, seen="planted")


def probed(*of: Found, causes: Mapping[Mode, str] | None = None, modes: Sequence[Mode] = (Mode.KRAFT,)) -> Probed:
    return Probed(kafka="9.9.9", sha256="a" * 64, found=of, causes=dict(causes or {}), took_s=dict.fromkeys(modes, 1.0))


def test_exit_codes() -> None:
    works, missing = found("tool-topics-describe", "works"), found("tool-cluster", "missing")
    absent = found("records-cordons", "absent")
    assert probed(works, absent).exit_code == 0
    assert probed(works, missing).exit_code == 2
    both = (Mode.ZK, Mode.KRAFT)
    one = probed(found("start", "missing", Mode.ZK), works, causes={Mode.ZK: "it ended"}, modes=both)
    assert one.exit_code == 2
    assert probed(causes={Mode.ZK: "it ended", Mode.KRAFT: "it ended"}, modes=both).exit_code == 3


def test_the_last_line_names_what_is_missing() -> None:
    works, missing = found("tool-topics-describe", "works"), found("tool-cluster", "missing")
    assert command.summary(probed(works)).startswith("Kafka 9.9.9: all 1 work ")
    assert command.summary(probed(works, missing)).startswith("Kafka 9.9.9 lacks 1 of 2: tool-cluster ")
    line = command.missing_line(missing)
    assert "kafka-cluster unregister" in line
    assert "needed by kip-1066/broker-decommissioned, kip-36/placement: these cases are skipped" in line
    slower = command.missing_line(found("exit-hook", "missing"))
    assert slower.endswith("each tool runs in a JVM of its own: slower")


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_a_row_for_each_lean_of_its_modes(width: int, tmp_path: Path) -> None:
    of = [found(dependency.id, "works") for dependency in DEPENDENCIES if Mode.KRAFT in dependency.modes]
    console = Console(width=width, record=True, file=(tmp_path / "table").open("w"))
    console.print(command.table(probed(*of)))
    text = console.export_text()
    assert text.count("works") == len(of)
    assert max(map(len, text.splitlines())) <= width
    assert "log line" in text
    assert "A=[x,y]" in " ".join(text.split())


def test_why_a_build_does_not_start_is_its_own_last_error(tmp_path: Path) -> None:
    """Later log lines without an error are not taken for the cause."""
    log = tmp_path / "brokers" / "1" / "broker.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "[2026-01-01 00:00:00,000] INFO starting (kafka)\n"
        "[2026-01-01 00:00:01,000] ERROR Exiting Kafka due to fatal exception (kafka.Kafka$)\n"
        "java.lang.NoClassDefFoundError: org/apache/kafka/X\n"
        "\tat kafka.Kafka.main(Kafka.scala)\n"
        "Caused by: java.lang.ClassNotFoundException: org.apache.kafka.X\n"
        "\t... 3 more\n"
        "[2026-01-01 00:00:02,000] INFO shut down completed (kafka)\n"
    )
    cause = cause_of(tmp_path, HarnessError("broker-1 ended"))
    assert cause == (
        "broker 1: Exiting Kafka due to fatal exception (kafka.Kafka$); "
        "Caused by: java.lang.ClassNotFoundException: org.apache.kafka.X"
    )
    log.write_text("Error: Could not find or load main class kafka.Kafka\nCaused by: java.lang.X: kafka.Kafka\n")
    assert cause_of(tmp_path, HarnessError("broker-1 ended")).startswith("broker 1: Error: Could not find or load")
    log.unlink()
    assert cause_of(tmp_path, HarnessError("kafka-storage said no\nmore")) == "kafka-storage said no"


def test_a_try_that_fails_in_whatever_way_is_a_lack() -> None:
    def broken() -> str:
        raise KeyError("replicas")

    dependency: Dependency = BY_ID["tool-log-dirs"]
    missing = probing._try(dependency, Mode.ZK, broken)
    assert (missing.state, missing.seen) == ("missing", "KeyError: 'replicas'")
    assert probing._try(dependency, Mode.ZK, lambda: "3 log dirs").state == "works"


@pytest.mark.parametrize(
    ("states", "seen"),
    [
        (["works"], "here"),
        (["missing", "works"], "here (at the second try)"),
        (["missing", "missing"], "here"),
        (["missing", None], "here"),
    ],
    ids=["works", "works later", "missing", "no second cluster"],
)
def test_what_is_missing_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, states: list[State | None], seen: str
) -> None:
    """A dependency is missing unless it works on another cluster; one that does not start takes nothing back."""
    tries = [([replace(found("tool-cluster", each), seen="here")], None) if each else ([], "why") for each in states]
    last = next(each for each in reversed(states) if each)
    monkeypatch.setattr(probing, "_on_a_cluster", lambda *_: tries.pop(0))
    came = probing.probe(Builds.choose(BuildOptions(kafka=str(DEFAULT_BUILDS[Mode.KRAFT]))), print)
    assert [(each.state, each.seen) for each in came.found] == [(last, seen)]
    assert (came.causes, tries) == ({}, [])


# --- the use of its JSON --------------------------------------------------------------------------------------------


def test_a_lack_stops_the_cases_that_need_it_in_its_mode() -> None:
    assert lack().stops(A, "kraft")
    assert lack(["kip-112/planted"]).stops(A, "kraft")
    assert lack([]).stops(A, "kraft")
    assert not lack().stops(A, "zk")
    assert not lack(["kip-11", "kip-112/plan"]).stops(A, "kraft")
    assert not lack(skips=False).stops(A, "kraft")
    assert (mode_of(A), mode_of("kip-36/x[zk]"), mode_of("kip-36/x")) == ("kraft", "zk", "")


def test_what_the_probe_writes_is_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    came = probed(found("tool-cluster", "missing"), found("exit-hook", "missing"), found("tool-log-dirs", "works"))
    file.write_text(json.dumps(came.to_json()))
    read = read_probe(file)
    assert (read.kafka, read.modes, read.cause) == ("9.9.9", ("kraft",), None)
    assert {each.id: each.skips for each in read.lacks} == {"tool-cluster": True, "exit-hook": False}
    lines = lack_lines(read, ["kip-36/placement[kraft]", "kip-36/placement[zk]", A])
    assert lines[0].endswith("in mode kraft (planted): 1 case is skipped")
    assert lines[1].endswith("each tool runs in a JVM of its own: slower")
    file.write_text(json.dumps(probed(causes={Mode.KRAFT: "it ended"}).to_json()))
    assert read_probe(file).cause == "it ended"


def test_bad_files(tmp_path: Path, planted: Planted) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_probe(tmp_path / "none.json")
    file = tmp_path / "probe.json"
    for text in ("{", "[]", '{"kafka": "4.3.1"}'):
        file.write_text(text)
        with pytest.raises(HarnessError, match=r"is not a file of jbod probe --json"):
            read_probe(file)
    file.write_text(json.dumps(probed().to_json()))
    builds = Builds.choose(BuildOptions(kafka_home=str(planted.kafka("4.3.1"))))
    with pytest.raises(UsageError, match=r"is of another build, Kafka 9\.9\.9 \(sha256 aaaaaaaaaaaa\)"):
        read_lacks([file], builds)


@pytest.mark.parametrize(("arguments", "code"), [(("9.9",), 4), (("4.3.1", "--mode=zk"), 4), (("/tmp",), 3)])
def test_bad_input(arguments: tuple[str, ...], code: int) -> None:
    done = subprocess.run([JBOD, "probe", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert len(done.stderr.strip().splitlines()) == 1


def test_each_of_several_builds_has_its_own_files(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{kafka}.json") for kafka in ("4.3.1", "4.3.0")]
    for file in files:
        Path(file).write_text(json.dumps(probed().to_json() | {"kafka": Path(file).stem}))
    assert probes_of(["4.3.0", "4.3.1", "4.2.0"], files) == {"4.3.0": files[1:], "4.3.1": files[:1], "4.2.0": []}
    with pytest.raises(UsageError, match=r"4\.3\.0\.json is of Kafka 4\.3\.0, which --kafka does not name"):
        probes_of(["4.3.1"], files)


# --- runs of runs, on planted cases -----------------------------------------------------------------------------------


def test_what_needs_what_the_build_lacks_is_skipped_by_name(planted: Planted) -> None:
    home = planted.kafka("4.3.1")
    planted.lacks(["kip-112/planted"])
    assert planted.jbod("probe", str(home), "--json=probe.json")[0] == 2
    code, output = planted.jbod(
        "run", "kip-112", f"--kafka-home={home}", "--backend=planted", "--probe=probe.json", "--json=out.json"
    )
    assert (code, planted.played()) == (5, [])
    cases = json.loads((planted.folder / "out.json").read_text())["scenarios"]
    assert {case["verdict"] for case in cases} == {"skipped"}
    assert cases[0]["reason"] == "this build lacks the planted tool (jbod probe)"
    code, output = planted.jbod("run", "kip-112", f"--kafka-home={planted.kafka('4.3.0')}", "--probe=probe.json")
    assert code == 4
    assert "is of another build" in output
    _, listed = planted.jbod("list", f"--kafka-home={home}", "--probe=probe.json", "--json")
    [row] = [each for each in json.loads(listed)["scenarios"] if each["id"] == "kip-112/planted"]
    assert row["lacks"][A] == "this build lacks the planted tool (jbod probe)"


def test_a_qualification_says_what_was_skipped_and_is_not_green(planted: Planted) -> None:
    home = planted.kafka("4.3.1")
    asked = ("qualify", "kip-112", "network", "--backend=planted", f"--candidate={home}", "--json=out.json")
    planted.lacks([B])
    code, output = planted.jbod(*asked)
    answer: dict[str, Any] = json.loads((planted.folder / "out.json").read_text())
    assert (code, answer["cases"][A], answer["cases"][B]) == (2, "held", "unshown")
    assert answer["reasons"][B] == "this build lacks the planted tool (jbod probe)"
    assert answer["answer"].startswith("Not shown: ")
    assert "candidate: Kafka 4.3.1 lacks the planted tool in mode kraft (planted): 1 case is skipped" in output
    assert any("lacks the planted tool" in note for note in answer["notes"])
    assert B not in " ".join(planted.played())
    assert planted.probes() == 1
    planted.jbod(*asked)
    assert planted.probes() == 1, "what was found of a build stands"


@pytest.mark.parametrize(("build", "says"), [("", "the name of a build is empty"), ("/no/such", "no such folder")])
def test_a_build_that_is_not_named_or_not_there_is_a_usage_error(planted: Planted, build: str, says: str) -> None:
    code, output = planted.jbod("probe", build)
    assert code == 4
    assert says in output


@pytest.mark.parametrize("asked", ["qualify", "nightly"])
def test_a_build_that_can_not_be_run_is_one_line_and_exit_code_3(planted: Planted, asked: str) -> None:
    home = planted.kafka("4.3.1")
    planted.lacks([], cause="broker 1: it can't")
    build = f"--candidate={home}" if asked == "qualify" else f"--kafka-home={home}"
    code, output = planted.jbod(asked, build, "--backend=planted")
    assert (code, planted.played()) == (3, [])
    assert re.search(r"^jbod: Kafka 4\.3\.1 \(.*\) cannot be run: broker 1: it can't$", output, re.MULTILINE)


def test_a_night_skips_what_needs_what_the_build_lacks(planted: Planted) -> None:
    planted.lacks([A])
    home = planted.kafka("4.3.1")
    code, output = planted.jbod(
        "nightly", "--budget=5m", "--backend=planted", f"--kafka-home={home}", "--json=night.json"
    )
    night = json.loads((planted.folder / "night.json").read_text())
    assert night["unable"][A] == "this build lacks the planted tool (jbod probe)"
    assert "Kafka 4.3.1 lacks the planted tool in mode kraft" in output
    assert A not in " ".join(planted.played())
    assert code == 0


def test_a_lack_that_was_not_probed(planted: Planted) -> None:
    """A case that meets the lack before any fault is skipped; during a fault the case is unknown."""
    planted.plays({A: "lacks", B: "lacks-amid-fault", C: "lacks-wrapped"})
    home = planted.kafka("4.3.1")
    code, _ = planted.jbod("run", "kip-112", f"--kafka-home={home}", "--backend=planted", "--json=out.json", "--seed=1")
    cases = json.loads((planted.folder / "out.json").read_text())["scenarios"]
    assert {case["id"]: case["verdict"] for case in cases} == {A: "skipped", B: "unknown", C: "unknown"}
    assert all("has no planted tool" in case["reason"] for case in cases)
    assert code == 2


# --- a real build with holes ----------------------------------------------------------------------------------------


def build_with_holes(home: Path) -> Path:
    """KRaft's default build without a class, a tool and an MBean.

    The class by which Kafka's programs end their JVM is renamed everywhere; the tool's class is removed; the MBean has
    another name of the same length.
    """
    renamed = {b"Exit$Procedure": b"Exit$Prxcedure", b"BytesOutPerSec": b"BytesOffPerSec"}

    def with_hole(name: str, content: bytes) -> tuple[str, bytes] | None:
        if re.search(r"/ClusterTool(\$.*)?\.class$", name):
            return None
        if name.endswith(".class"):
            for old, new in renamed.items():
                content, name = content.replace(old, new), name.replace(old.decode(), new.decode())
        return name, content

    jars = from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir()).class_path
    return build_from(home, jars, change=with_hole, concerns=lambda jar: jar.name.startswith(("kafka", "connect")))


@pytest.mark.cluster
def test_a_build_with_holes(open_folder: Path) -> None:
    """The probe names each; a qualification skips and names the cases that need them, and is not green."""
    home = build_with_holes(open_folder / "kafka")
    out = open_folder / "qualify"
    file = out / "candidate-probe.json"  # where a qualification keeps it, so that this one need not probe again
    out.mkdir()
    done = subprocess.run([JBOD, "probe", home, f"--json={file}"], capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    message_about = json.loads(file.read_text())
    missing = {each["id"] for each in message_about["leans"] if each["state"] == "missing"}
    # They ask the JVM that the tools share.
    of_the_hook = {"admin-client", "java-client", "metadata-versions", "config-names", "tiered-plugin"}
    assert missing == {"exit-hook", "tool-cluster", "mbean-BytesOutPerSec"} | of_the_hook
    assert (done.returncode, message_about["exit_code"]) == (2, 2)
    for what in ("Exit$Procedure", "kafka-cluster unregister", "name=BytesOutPerSec"):
        assert what in done.stdout

    cases = ["kip-36/placement", "kip-36/nearest-replica", "kip-36/some-without-rack"]
    asked: list[str | Path] = [
        JBOD,
        "qualify",
        *cases,
        f"--candidate={home}",
        "--mode=kraft",
        f"--out={out}",
        "--json=answer.json",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=open_folder, check=False)
    print(done.stdout, done.stderr)
    assert "probing" not in done.stdout
    answer = json.loads((open_folder / "answer.json").read_text())
    assert answer["cases"] == {
        "kip-36/nearest-replica[kraft]": "unshown",
        "kip-36/placement[kraft]": "unshown",
        "kip-36/some-without-rack[kraft]": "held",
    }
    assert done.returncode == 2
    assert answer["answer"].startswith("Not shown: 2 cases")
    assert "this build lacks kafka-cluster unregister" in answer["reasons"]["kip-36/placement[kraft]"]
    assert sum("lacks " in note for note in answer["notes"]) == len(missing)


@pytest.mark.cluster
def test_a_build_that_ends_as_it_starts(open_folder: Path) -> None:
    """The controller's class is missing: the error is one line, with the build's own message."""
    build = from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir())
    libs = open_folder / "kafka" / "libs"
    libs.mkdir(parents=True)
    for jar in build.class_path:
        if not jar.name.startswith("kafka-raft-"):
            shutil.copyfile(jar, libs / jar.name)
    (open_folder / "kafka").chmod(0o755)
    libs.chmod(0o755)
    file = open_folder / "probe.json"
    done = subprocess.run([JBOD, "probe", libs.parent, f"--json={file}"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    [*_, last] = done.stderr.strip().splitlines()
    assert re.search(r"can't be run in mode kraft: .*(NoClassDefFoundError|ClassNotFoundException)", last)
    assert json.loads(file.read_text())["exit_code"] == 3


@pytest.mark.cluster
def test_a_build_that_ends_as_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe stops when its broker ends, and names the dependency that it was trying."""

    def dies(trial: Trial) -> str:
        pid = trial.broker.node.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await_until(lambda: not trial.broker.is_alive, timeout_s=SOON_S, what="the broker to end")
        return "killed"

    monkeypatch.setattr(probing, "in_order", lambda: [("request-Metadata", dies), ("request-CreateTopics", dies)])
    came = probing.probe(Builds.choose(BuildOptions(kafka=str(DEFAULT_BUILDS[Mode.KRAFT]))), print)
    assert came.exit_code == 3
    assert [(each.dependency.id, each.state) for each in came.found] == [("start", "missing")]
    assert came.causes[Mode.KRAFT].startswith("broker-1 ended as this was tried: Metadata v7 or later")
