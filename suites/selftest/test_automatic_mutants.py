"""Automatic mutants: each operator changes what a class does, the notes name what ran, and the sample is reproducible.

The operators are tried on a class of our own, compiled and run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.host.cache import cache_dir
from harness.kafka.bytecode.engine import Order, list_places, make_jars
from harness.kafka.distribution import MUTANT_JAR, from_home, from_maven
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from suites.mutants.automatic.places import Place, noting_build, passed_in
from suites.mutants.automatic.reach import Reached
from suites.mutants.automatic.sample import MOST_CASES, Judged, cases_for, draw, read_judged
from suites.selftest.java_samples import make_jar, run_class

SAMPLE = """
package kafka.sample;

import java.util.Optional;

public class Sample {
    private static int calls = 0;
    static boolean below(int a, int b) { return a < b; }
    static boolean same(Object a, Object b) { if (a == b) { return true; } return false; }
    static long sum(long a, long b) { long c = a; return c + b; }
    static void call() { calls++; }
    static void debug(String text) { calls += 100; }
    static int calls() { call(); call(); debug("not a place"); return calls % 100; }
    static Optional<String> maybe(boolean has) { return has ? Optional.of("some") : Optional.empty(); }
    static int unused(int a) { if (a > 7) { return 3; } return 4; }
    public String toString() { return calls > 0 ? "a" : "b"; }
    public static void main(String[] arguments) {
        System.out.println(below(2, 2) + " " + same("a", "a") + " " + sum(2, 3) + " " + calls() + " " + maybe(true));
    }
}
"""
MAIN = "kafka.sample.Sample"
UNCHANGED = "false true 5 2 Optional[some]"
CHANGED: Mapping[tuple[str, str], str] = {
    ("below branch 1", "negated"): "true true 5 2 Optional[some]",
    ("below branch 1", "other bound"): "true true 5 2 Optional[some]",
    ("below result 1", "replaced"): "true true 5 2 Optional[some]",
    ("same branch 1", "negated"): "false false 5 2 Optional[some]",
    ("same result 1", "replaced"): "false false 5 2 Optional[some]",
    ("sum result 1", "replaced"): "false true 0 2 Optional[some]",
    ("sum sum 1", "reversed"): "false true -1 2 Optional[some]",
    ("calls call 1 of kafka.sample.Sample.call", "removed"): "false true 5 1 Optional[some]",
    ("calls call 2 of kafka.sample.Sample.call", "removed"): "false true 5 1 Optional[some]",
    ("call sum 1", "reversed"): "false true 5 98 Optional[some]",
    ("main call 1 of java.io.PrintStream.println", "removed"): "",
    ("calls result 1", "replaced"): "false true 5 0 Optional[some]",
    ("maybe branch 1", "negated"): "false true 5 2 Optional.empty",
    ("maybe result 1", "replaced"): "false true 5 2 Optional.empty",
}
PLACE = Place(
    number=0, class_="kafka.A", method="a", parameters=("int",), line=7, kind="branch", nth=1, detail="equality"
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sample's jar, the jar with notes and the list of its places."""
    folder = tmp_path_factory.mktemp("sample")
    make_jar(folder, SAMPLE, MAIN)
    list_places([folder / "sample.jar"], folder / "noting.jar", folder / "places.tsv", ["Sample", "Absent"], print)
    return folder


def places_of(folder: Path) -> list[Place]:
    """The places of the sample."""
    return [Place.of(number, line) for number, line in enumerate((folder / "places.tsv").read_text().splitlines())]


def name(place: Place) -> str:
    """The method, kind and number of a place."""
    return f"{place.method} {place.key.partition(') ')[2]}"


def test_each_operator_changes_what_the_class_does(sample: Path, tmp_path: Path) -> None:
    assert run_class(MAIN, sample / "sample.jar").stdout.strip() == UNCHANGED
    both = [(place, operator) for place in places_of(sample) for operator in place.operators]
    used = [(place, operator) for place, operator in both if place.method != "unused"]
    assert sorted((name(place), operator) for place, operator in used) == sorted(CHANGED)
    assert all(place.line > 0 for place, _ in both)
    orders = {
        (name(place), operator): Order(
            id=place.mutant(operator, ("disks/a",), "").id,
            changes=(place.changed(operator),),
            jar=tmp_path / f"{at}.jar",
        )
        for at, (place, operator) in enumerate(used)
    }
    assert set(make_jars([sample / "sample.jar"], [*orders.values()], print).values()) == {""}
    for key, order in orders.items():
        done = run_class(MAIN, order.jar, sample / "sample.jar")
        assert (key, done.stdout.strip()) == (key, CHANGED[key])
        assert f"jbod mutant {order.id} reached 1 times" in done.stderr


def test_the_build_notes_which_places_run(sample: Path, tmp_path: Path) -> None:
    done = run_class(MAIN, sample / "noting.jar", sample / "sample.jar")
    assert done.stdout.strip() == UNCHANGED
    (tmp_path / "brokers" / "1").mkdir(parents=True)
    (tmp_path / "brokers" / "1" / "broker.log").write_text(f"started\n{done.stderr}")
    places = places_of(sample)
    ran = {"below", "same", "sum", "call", "calls", "maybe", "main"}
    assert {places[number].method for number in passed_in(tmp_path)} == ran
    assert {place.method for place in places} == {*ran, "unused"}


def test_a_real_build_has_places_in_each_class_that_it_has() -> None:
    build = noting_build(from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir()), print)
    noting = from_home(build.home)
    assert (noting.class_path[0].name, noting.mutant) == (MUTANT_JAR, "places")
    classes = {place.class_.rpartition(".")[2].partition("$")[0] for place in build.places}
    assert {"ReplicaManager", "LogManager", "Partition", "UnifiedLog", "ReplicationControlManager"} <= classes
    mutants = [place.mutant(operator, ("a/b",), "") for place in build.places for operator in place.operators]
    assert len({each.id for each in mutants}) == len(mutants)


def reached(case: str, duration_s: float, *places: int) -> Reached:
    """What a case reached."""
    return Reached(case=case, duration_s=duration_s, places=places)


def test_the_sample_has_only_places_that_a_case_reaches_and_stays_the_same() -> None:
    places = [replace(PLACE, number=number, nth=number + 1) for number in range(50)]
    cases = {"disks/a": reached("disks/a", 9, *range(10, 30)), "logs/b": reached("logs/b", 5, 12)}
    drawn = draw(places, cases, 8, seed=3)
    assert len(drawn) == 8
    assert drawn == draw(places, cases, 8, seed=3) != draw(places, cases, 8, seed=4)
    every = draw(places, cases, 1000, seed=3)
    assert {each.changes[0].branch for each in every} == set(range(11, 31))
    [both] = [each.caught_by for each in every if each.changes[0].branch == 13]
    assert both == ("disks/a", "logs/b")


def test_cases_about_the_class_come_first_and_each_adds_other_parts() -> None:
    everyday = [reached(f"disks/{at}", 10, 1) for at in range(40)]
    about = [reached("logs/a", 20, 1, 2, 3), reached("logs/b", 20, 1, 2, 3), reached("logs/c", 20, 1, 3, 4, 5)]
    other_class = [reached("races/other", 1, 1, *range(100, 200))]
    weights = {1: 1 / 44, 2: 1 / 2, 3: 1 / 3, 4: 1.0, 5: 1.0}
    tried = cases_for([*everyday, *about, *other_class], weights)
    assert tried[:2] == ("logs/c", "logs/a"), "logs/c runs most; logs/b would run the same as logs/a"
    assert set(tried[2:4]) == {"logs/b", "races/other"}
    assert len(tried) == MOST_CASES


def test_a_judged_mutant_is_equivalent(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Judged(place=PLACE.key, operator="negated", why="The field is never read.")
    monkeypatch.setattr("suites.mutants.automatic.sample.read_judged", lambda: (judged,))
    [mutant] = draw([PLACE], {"a/b": reached("a/b", 1, 0)}, 1, seed=1)
    assert mutant.equivalent == judged.why


def test_each_judged_place_is_in_the_default_build() -> None:
    build = noting_build(from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir()), print)
    known = {(place.key, operator) for place in build.places for operator in place.operators}
    assert {(each.place, each.operator) for each in read_judged()} <= known
