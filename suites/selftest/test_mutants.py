"""Mutants: their catalogue, the changes of classes, the decision on each, and that their runs count for nothing else.

The changes are tried on a class of our own, compiled and run here, so that each kind shows what it does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from harness.errors import DistributionError, UsageError
from harness.host.cache import cache_dir
from harness.host.own_version import own_revision, own_version
from harness.journal import Journal
from harness.kafka.bytecode.change import Change
from harness.kafka.bytecode.engine import Order, make_jars
from harness.kafka.distribution import MUTANT_JAR, from_home, from_maven
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode
from harness.measure.interference import Interference, mutant_in
from harness.runner import ledger
from harness.runner.case_result import CaseResult
from harness.runner.qualifying import check_no_mutant, side
from reports.pages import write_page
from suites.mutants.builds import MutatedBuild, make_builds
from suites.mutants.command import exit_code
from suites.mutants.measuring import Measured
from suites.mutants.mutant import Mutant, chosen, panel, read_catalogue, read_mutant
from suites.mutants.outcome import Decision, Outcome, decide, score
from suites.mutants.page import matrix_of
from suites.mutants.trial import Trial, Trials, valid_runs
from suites.selftest.case_results import case_result
from suites.selftest.java_samples import make_jar, run_class
from suites.selftest.processes import JBOD
from suites.selftest.run_folders import write_run_folder

SAMPLE = """
public class Sample {
    static int add(int a, int b) { return a + b; }
    static int add(int a) { return a; }
    static boolean below(int a, int b) { if (a < b) { return true; } return false; }
    static long most() { return 1000L + limit(); }
    static int limit() { return 3; }
    static double share() { return 0.5; }
    static String name() { return "one"; }
    static int twice() { return limit() * 10 + limit(); }
    static int size() { return new java.util.ArrayList<String>().size(); }
    public static void main(String[] arguments) {
        System.out.println(add(2, 3) + " " + below(2, 2) + " " + below(1, 2) + " " + below(3, 2) + " " + most() + " "
            + share() + " " + name() + " " + twice() + " " + size());
    }
}
"""
UNCHANGED = "5 false true false 1003 0.5 one 33 0"
KINDS: Mapping[str, tuple[Mapping[str, object], str]] = {
    "body": ({"method": "limit", "body": "{ return 4; }"}, "5 false true false 1004 0.5 one 44 0"),
    "before": ({"method": "limit", "before": "{ if (true) return 7; }"}, "5 false true false 1007 0.5 one 77 0"),
    "after": ({"method": "limit", "after": "{ $_ = $_ + 1; }"}, "5 false true false 1004 0.5 one 44 0"),
    "overloaded": (
        {"method": "add", "parameters": ["int", "int"], "body": "{ return $1; }"},
        "2 false true false 1003 0.5 one 33 0",
    ),
    "every call": ({"method": "twice", "call": "limit", "with": "$_ = 1;"}, "5 false true false 1003 0.5 one 11 0"),
    "second call": (
        {"method": "twice", "call": "Sample.limit", "nth": 2, "with": "{ $_ = $proceed($$) + 1; }"},
        "5 false true false 1003 0.5 one 34 0",
    ),
    "inverted": ({"method": "below", "branch": 1, "to": "inverted"}, "5 true false true 1003 0.5 one 33 0"),
    "always": ({"method": "below", "branch": 1, "to": "always"}, "5 false false false 1003 0.5 one 33 0"),
    "never": ({"method": "below", "branch": 1, "to": "never"}, "5 true true true 1003 0.5 one 33 0"),
    "other bound": ({"method": "below", "branch": 1, "to": "other-bound"}, "5 true true false 1003 0.5 one 33 0"),
    "int": ({"method": "limit", "constant": 3, "to_constant": 100_000}, "5 false true false 101000 0.5 one 1100000 0"),
    "long": ({"method": "most", "constant": 1000, "to_constant": 1}, "5 false true false 4 0.5 one 33 0"),
    "double": ({"method": "share", "constant": 0.5, "to_constant": 1.25}, "5 false true false 1003 1.25 one 33 0"),
    "boolean": (
        {"method": "below", "constant": False, "to_constant": True},
        "5 true true true 1003 0.5 one 33 0",
    ),
    "string": ({"method": "name", "constant": "one", "to_constant": "two"}, "5 false true false 1003 0.5 two 33 0"),
}
WRONG: Mapping[str, tuple[Mapping[str, object], str]] = {
    "class": ({"class": "Simple", "method": "limit", "body": "{ }"}, "the build has no class Simple"),
    "method": ({"method": "limits", "body": "{ }"}, "Sample has no method limits"),
    "overloads": ({"method": "add", "body": "{ return 0; }"}, "there are (int,int) (int)"),
    "call": ({"method": "twice", "call": "flush", "with": "{ }"}, "has no call of flush; it calls Sample.limit"),
    "nth": ({"method": "twice", "call": "limit", "nth": 3, "with": "{ }"}, "has only 2 calls of limit"),
    "branch": ({"method": "below", "branch": 2, "to": "always"}, "below has only 1 conditional jumps"),
    "constant": ({"method": "limit", "constant": 5, "to_constant": 6}, "limit loads 5 0 times; it loads also 3"),
    "source": ({"method": "limit", "body": "{ return }"}, "CannotCompileException"),
    "type": ({"method": "name", "body": "{ return null + 1; }"}, "invalid types for +"),
}


def change(fields: Mapping[str, object]) -> Change:
    """A change of the sample class."""
    return msgspec.convert({"class": "Sample", **fields}, Change)


def mutant(**fields: object) -> Mutant:
    """A mutant of the catalogue, with these fields."""
    of = {
        "defect": "A record is lost.",
        "promise": "acks=all",
        "area": "replication",
        "caught_by": ["disks/power-cut"],
        "reasons": ["lost"],
        "change": [{"class": "Sample", "method": "limit", "body": "{ return 4; }"}],
    }
    return msgspec.structs.replace(msgspec.convert({**of, **fields}, Mutant), id="acks")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A jar with the sample class."""
    return make_jar(tmp_path_factory.mktemp("sample"), SAMPLE, "Sample")


def test_each_kind_of_change_does_what_it_says(sample: Path, tmp_path: Path) -> None:
    orders = [
        Order(id=kind.replace(" ", "-"), changes=(change(fields),), jar=tmp_path / f"{at}.jar")
        for at, (kind, (fields, _)) in enumerate(KINDS.items())
    ]
    assert set(make_jars([sample], orders, print).values()) == {""}
    assert run_class("Sample", sample).stdout.strip() == UNCHANGED
    for order, (kind, (_, prints)) in zip(orders, KINDS.items(), strict=True):
        done = run_class("Sample", order.jar, sample)
        assert (kind, done.stdout.strip()) == (kind, prints)
        assert f"jbod mutant {order.id} reached 1 times" in done.stderr


def test_a_change_that_cannot_be_made_says_why(sample: Path, tmp_path: Path) -> None:
    orders = [
        Order(id="wrong", changes=(change(fields),), jar=tmp_path / f"{at}.jar")
        for at, (fields, _) in enumerate(WRONG.values())
    ]
    answers = make_jars([sample], orders, print)
    for order, (what, (_, says)) in zip(orders, WRONG.items(), strict=True):
        assert (what, says in answers[order.jar]) == (what, True), answers[order.jar]


def test_a_defect_can_be_rare_and_counts_only_where_it_says(sample: Path, tmp_path: Path) -> None:
    rare = "{ if (jbod.Mutant.first(1)) { jbod.Mutant.reached(); return 7; } }"
    order = Order(id="rare", changes=(change({"method": "limit", "before": rare}),), jar=tmp_path / "rare.jar")
    assert make_jars([sample], [order], print) == {order.jar: ""}
    done = run_class("Sample", order.jar, sample)
    assert done.stdout.strip() == "5 false true false 1007 0.5 one 33 0"
    assert done.stderr.count("jbod mutant rare reached") == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"body": "{ }", "before": "{ }"}, "has body and before"),
        ({}, "has none"),
        ({"call": "flush"}, "call and with belong together"),
        ({"body": "{ }", "nth": 2}, "nth is only for call and constant"),
        ({"body": "{ }", "builds": "~=4.0"}, "is not a range"),
        ({"body": "{ }", "modes": ["raft"]}, "Invalid enum value"),
        ({"body": "{ }", "boddy": "{ }"}, "unknown field"),
    ],
)
def test_a_wrong_file_is_refused(fields: Mapping[str, object], says: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=says):
        change({"method": "limit", **fields})


def test_a_change_is_for_a_range_of_builds_and_for_modes() -> None:
    of = mutant(
        change=[
            {"class": "A", "method": "a", "body": "{ }", "builds": ">=4.0"},
            {"class": "B", "method": "b", "body": "{ }", "builds": "<4.0", "modes": ["kraft"]},
        ]
    )

    def classes(version: str, mode: Mode) -> list[str]:
        return [each.class_ for each in of.changes_for(KafkaVersion.parse(version), mode)]

    assert classes("4.4.0", Mode.KRAFT) == ["A"]
    assert classes("3.9.2", Mode.KRAFT) == ["B"]
    assert classes("3.9.2", Mode.ZK) == []


def test_the_catalogue_names_scenarios_that_exist() -> None:
    """A night would be the first to notice a file that can't be read, or a name that nothing has."""
    listed = subprocess.run([JBOD, "list", "--json"], capture_output=True, text=True, check=True).stdout
    cases = {case for scenario in json.loads(listed)["scenarios"] for case in scenario["cases"]}
    names = {name for case in cases for name in (case, case.partition("[")[0], case.partition("/")[0])}
    catalogue = read_catalogue()
    assert catalogue
    for each in catalogue:
        assert (each.id, sorted({*each.caught_by} - names)) == (each.id, [])
        assert each.defect.endswith("."), each.id
        assert len(each.defect.split()) <= 25, each.id
    assert {*panel()} <= {each.id for each in catalogue if not each.equivalent}


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('defect = "x"')
    with pytest.raises(UsageError, match=r"x\.toml is no mutant"):
        read_mutant(tmp_path / "x.toml")


def test_mutants_are_chosen_by_id_area_and_pattern() -> None:
    moves = msgspec.structs.replace(mutant(area="moves"), id="move-lost")
    both = [mutant(), moves]
    assert chosen(both, (), (), ()) == (mutant(), moves)
    assert chosen(both, ["acks"], (), ()) == (mutant(),)
    assert chosen(both, (), ["moves"], ()) == chosen(both, (), (), ["move-*"]) == (moves,)
    with pytest.raises(UsageError, match="no mutant has the id or area 'cordons'"):
        chosen(both, (), ["cordons"], ())


def trial(verdict: str, reason: str = "", *, case: str = "disks/power-cut[kraft]", **fields: int) -> Trial:
    """A trial of a mutant whose code ran."""
    return Trial(
        case=case,
        seed=1,
        verdict=verdict,
        reason=reason,
        duration_s=fields.get("duration_s", 30),
        reached=fields.get("reached", 10),
        came_up=bool(fields.get("came_up", 1)),
    )


RED, OTHER = trial("invalid", "2 records LOST"), trial("invalid", "2 records duplicated")
SICK = trial("error", "the harness failed")


@pytest.mark.parametrize(
    ("trials", "twin", "outcome"),
    [
        ([RED] * 3, "valid", Outcome.CAUGHT),
        ([RED] * 2, "valid", Outcome.THROUGH),
        ([RED] * 3, "invalid", Outcome.THROUGH),
        ([RED] * 3, None, Outcome.THROUGH),
        ([RED, RED, trial("valid")], "valid", Outcome.THROUGH),
        ([RED, OTHER, RED], "valid", Outcome.THROUGH),
        ([OTHER], "valid", Outcome.OTHER_REASON),
        ([SICK, trial("unknown")], "valid", Outcome.BLAMED),
        ([SICK], "valid", Outcome.THROUGH),
        ([SICK, trial("valid")], "valid", Outcome.THROUGH),
        ([trial("valid")], None, Outcome.THROUGH),
        ([trial("valid", reached=0)], None, Outcome.NOT_REACHED),
        ([trial("error", came_up=0)] * 2, "valid", Outcome.STILLBORN),
        ([trial("skipped", "no loop mounts")], None, Outcome.NOT_MEASURED),
        ([], None, Outcome.NOT_MEASURED),
    ],
)
def test_the_outcome_of_a_mutant(trials: Sequence[Trial], twin: str | None, outcome: Outcome) -> None:
    twins = {} if twin is None else {RED.case: trial(twin)}
    assert decide(mutant(), trials, twins, times=3).outcome is outcome


def test_a_case_that_catches_a_mutant_wins_over_one_that_does_not() -> None:
    valid = trial("valid", case="disks/other[kraft]")
    found = decide(mutant(), [valid, *[RED] * 3], {RED.case: trial("valid")}, times=3)
    assert (found.outcome, found.case, found.seconds) == (Outcome.CAUGHT, RED.case, 30)


def test_an_equivalent_mutant_does_not_count() -> None:
    same = decide(mutant(equivalent="The field is never read."), [], {}, times=3)
    assert same.outcome is Outcome.EQUIVALENT
    caught = Decision(outcome=Outcome.CAUGHT)
    through = Decision(outcome=Outcome.THROUGH)
    assert score([same, caught, through, Decision(outcome=Outcome.STILLBORN)]) == (1, 2)


@pytest.mark.parametrize(
    ("outcomes", "made_all", "code"),
    [
        ([Outcome.CAUGHT, Outcome.EQUIVALENT, Outcome.STILLBORN], True, 0),
        ([Outcome.CAUGHT, Outcome.THROUGH, Outcome.NOT_MEASURED], True, 1),
        ([Outcome.CAUGHT, Outcome.NOT_MEASURED], True, 3),
        ([Outcome.CAUGHT], False, 3),
        ([Outcome.EQUIVALENT, Outcome.STILLBORN], True, 5),
        ([], True, 5),
    ],
)
def test_the_exit_code_is_of_the_mutants_that_count(outcomes: Sequence[Outcome], made_all: bool, code: int) -> None:
    assert exit_code(outcomes, made_all=made_all) == code


def test_a_trial_has_what_its_run_folder_has(tmp_path: Path) -> None:
    anomalies = [{"kind": "aborted_read", "count": 2, "examples": []}]
    (tmp_path / "verdict.json").write_text(json.dumps({"verdict": "invalid", "anomalies": anomalies}))
    content = case_result(verdict="invalid", reason="2 reads", run_dir=str(tmp_path)).to_json()
    content |= {"interference": [{"kind": "mutant", "point": "acks", "reached": 110}]}
    journal = Journal(tmp_path / "events.jsonl")
    journal.write("cluster.ready", bootstrap="127.0.0.1:9092")
    journal.close()
    found = Trial.of(CaseResult.from_json(content), seed=4)
    assert (found.anomalies, found.reached, found.came_up, found.seed) == (("aborted_read",), 110, True, 4)
    assert found.is_red_for(mutant(reasons=["Aborted_Read"]))
    assert not found.is_red_for(mutant())
    (tmp_path / "events.jsonl").write_text('{"kind": "case.started"}\n')
    assert not Trial.of(CaseResult.from_json(content), seed=4).came_up


def test_the_id_of_a_mutant_is_no_reason() -> None:
    quoted = trial("invalid", "broker-3 ended: jbod mutant acks reached 1 times")
    assert not quoted.is_red_for(mutant(reasons=["acks"]))
    assert trial("invalid", "two acks differ").is_red_for(msgspec.structs.replace(mutant(reasons=["acks"]), id="x"))


def test_trials_are_kept_for_the_next_measuring(tmp_path: Path) -> None:
    file = tmp_path / "trials" / "acks.json"
    Trials(file, 1).add(RED)
    assert Trials(file, 1).all == [RED]
    assert Trials(file, 1, fresh=True).all == Trials(file, 2).all == []
    file.write_text(file.read_text().replace('"jbod": "', '"jbod": "another '))
    assert Trials(file, 1).all == []
    file.write_text("{")
    assert Trials(file, 1).all == []


def test_valid_runs_of_the_unchanged_build_are_used_if_this_revision_ran_them(tmp_path: Path) -> None:
    this = {"version": own_version(), "revision": own_revision()}

    def ran(name: str, jbod: object = this, **fields: object) -> None:
        ran = {"id": f"kip-112/{name}[kraft]", "kafka_sha256": "ab", "mode": "kraft", "backend": "process"}
        folder = write_run_folder(tmp_path, name, jbod=jbod)
        ledger.note(tmp_path, CaseResult.from_json(case_result(run_dir=str(folder)).to_json() | ran | fields))

    ran("same")
    ran("older", {"version": own_version(), "revision": "34e2b0b"})
    ran("other-build", kafka_sha256="cd")
    ran("other-mode", mode="zk")
    ran("in-containers", backend="docker")
    ran("red", verdict="invalid")
    ran("gone")
    shutil.rmtree(tmp_path / "gone")
    assert [each.case for each in valid_runs(tmp_path, "ab", Mode.KRAFT, "process")] == ["kip-112/same[kraft]"]


def test_a_run_folder_says_how_often_the_changed_code_ran(tmp_path: Path) -> None:
    logs = {
        "1": "jbod mutant acks reached 1 times\n[2026-11-27] INFO x\njbod mutant acks reached 10 times\n"
        "jbod mutant acks reached 1 times\n",  # it was restarted
        "2": "jbod mutant acks reached 1 times\njbod mutant other reached 1 times\n",
        "3": "nothing\n",
    }
    called = {"kind": "tool.called", "mutant": ["jbod mutant acks reached 1 times"]}
    (tmp_path / "events.jsonl").write_text(json.dumps(called) + "\n")
    for broker, log in logs.items():
        (tmp_path / "brokers" / broker).mkdir(parents=True)
        (tmp_path / "brokers" / broker / "broker.log").write_text(log)
    assert mutant_in(tmp_path, "acks") == Interference(kind="mutant", point="acks", reached=13)


def test_the_run_of_a_mutant_is_not_in_the_ledger(tmp_path: Path) -> None:
    content = case_result(run_dir=str(tmp_path / "run")).to_json()
    mutated = {**content, "interference": [{"kind": "mutant", "point": "acks", "reached": 0}]}
    held = {**content, "interference": [{"kind": "hold", "point": "swap", "reached": 1}]}
    for entry in (mutated, held, content):
        ledger.note(tmp_path, CaseResult.from_json(entry))
    assert len(ledger.read(tmp_path)) == 2


def test_the_page_has_a_row_for_each_mutant_and_a_column_for_each_scenario(tmp_path: Path) -> None:
    build = MutatedBuild(mutant=mutant(), mode=Mode.KRAFT)
    caught = Decision(outcome=Outcome.CAUGHT, case=RED.case, seconds=30.0)
    valid = trial("valid", case="kip-112/leader-at-runtime[kraft-eio]")
    measured = [
        Measured(build=build, kafka="4.4.0", decision=caught, trials=(valid, RED, RED, RED)),
        Measured(build=build, kafka="4.4.0", decision=Decision(outcome=Outcome.THROUGH, says="all"), trials=(valid,)),
    ]
    matrix = matrix_of(measured)
    assert matrix.headline == "1 of 2 defects caught (50%)"
    assert matrix.scenarios == ("disks/power-cut", "kip-112/leader-at-runtime")
    assert [[cell.text for cell in row.cells] for row in matrix.rows] == [["30", "✓"], ["", "✓"]]
    assert matrix.never_red == ("kip-112/leader-at-runtime",)
    page = write_page(tmp_path / "index.html", "mutants.html", matrix=matrix).read_text()
    assert "What was not caught, and why" in page
    assert page.count("<td title=") == 2


def test_a_mutated_build_has_its_jar_first_and_is_not_qualified(tmp_path: Path) -> None:
    """Real jars. The second call finds the folder in the cache."""
    build = from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir())
    some = read_catalogue()[:1]
    homes = {made.home for _ in range(2) for made in make_builds(build, some, [Mode.KRAFT], print)}
    [home] = homes
    assert home is not None
    mutated = from_home(home)
    assert mutated.class_path[0].name == MUTANT_JAR
    assert (mutated.mutant, build.mutant) == (some[0].id, None)
    assert [jar.name for jar in mutated.class_path[1:]] == [jar.name for jar in build.class_path]
    assert mutated.sha256 != build.sha256
    with pytest.raises(DistributionError, match=f"has the defect {some[0].id}"):
        check_no_mutant(side("candidate", str(home), tmp_path, None))
    check_no_mutant(side("candidate", str(build.version), tmp_path, None))


@pytest.mark.cluster
def test_a_real_mutant_is_caught_and_the_unchanged_build_is_valid(tmp_path: Path) -> None:
    """A broker that ignores its failed log dir: one run is enough to see that all parts work together."""
    result = tmp_path / "result.json"
    argv = [
        str(JBOD),
        "mutants",
        "--mutant",
        "broker-ignores-failed-dir",
        "--mode",
        "kraft",
        "--times",
        "1",
        "--jobs",
        "1",
    ]
    done = subprocess.run(
        [*argv, "--runs-dir", tmp_path, "--json", result], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(result.read_text())
    [entry] = content["mutants"]
    assert (entry["outcome"], content["score"]) == ("caught", {"caught": 1, "of": 1})
    [unchanged] = [trials for file in tmp_path.glob("trials/unchanged-*") for trials in Trials(file, 1).all]
    assert (unchanged.case, unchanged.verdict) == (entry["case"], "valid")
    assert entry["trials"][-1]["reached"] > 0
    lines = [line for file in tmp_path.glob("runs/**/events.jsonl") for line in file.read_text().splitlines()]
    looks = [json.loads(line) for line in lines if '"metadata_log.read"' in line]
    assert looks
    assert all(look["until"] > 20 for look in looks)
    assert not [*tmp_path.glob("runs/broker-*/ledger.jsonl")]
