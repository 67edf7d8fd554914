"""``jbod qualify`` uses the kept runs of a baseline again, only if nothing that matters differs.

Most tests plant run folders. The last ones run qualifications of planted cases.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.history.run_folder import OwnVersion
from harness.kafka.builds import BuildRecord
from harness.runner import ledger
from harness.runner.baselines import Baselines, Reused, conditions_of
from suites.selftest.planted import Planted

A, B, C = (f"kip-112/planted[kraft-{letter}]" for letter in "abc")
WITH = ("qualify", "--backend=planted")
OWN = OwnVersion(version="0.1.0", revision="34e2b0b1")
BUILD = BuildRecord(version="4.3.0", source="maven", sha256="ab" * 32)
HOST = {"cores": 2, "kernel": "6.1", "python": "3.11.7", "java": "17.0.9", "broker_uid": 60906}
NONE: Mapping[str, str] = {}
AT = datetime(2026, 11, 20, tzinfo=UTC)


def ran(runs_dir: Path, case: str, seed: int = 7, verdict: str = "valid", other: Mapping[str, object] = NONE) -> str:
    """Write a run folder and a ledger line; returns the run's id.

    :param other: fields of run.json
    """
    run_id = f"{case.partition('/')[2]}-{seed}-{runs_dir.parent.name}"
    (runs_dir / run_id / "brokers").mkdir(parents=True)
    (runs_dir / run_id / "brokers" / "log").write_text(run_id)
    content = {
        "case": case,
        "kip": 112,
        "mode": "kraft",
        "seed": seed,
        "started_at": AT.isoformat(),
        "kafka": vars(BUILD),
        "backend": "process",
        "host": HOST,
        "jbod": vars(OWN),
    }
    (runs_dir / run_id / "run.json").write_text(json.dumps(content | dict(other)))
    entry = ledger.Entry(
        at=AT,
        id=case,
        kip=112,
        plan="",
        mode="kraft",
        kafka=BUILD.version,
        backend="process",
        verdict=verdict,
        duration_s=1.0,
        run_id=run_id,
        seed=seed,
        faults=(),
    )
    with (runs_dir / ledger.NAME).open("a") as file:
        file.write(json.dumps(entry.to_json()) + "\n")
    return run_id


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder with qualifications and their kept baseline."""

    folder: Path
    baselines: Baselines

    def keep(self, out: str, cases: Sequence[str] = (A, B, C), fresh: bool = False) -> list[str]:
        """Keep the runs of a qualification; returns what it prints."""
        says: list[str] = []
        probe = self.folder / out / "probe.json"
        probe.write_text("{}")
        replace(self.baselines, fresh=fresh).keep(self.folder / out / "baseline", probe, cases, says.append)
        return says

    def take(
        self,
        out: str,
        seeds: Sequence[int] = (7, 8, 9),
        cases: Sequence[str] = (A, B, C),
        other: Mapping[str, str] = NONE,
    ) -> Reused:
        """Take what a qualification can use.

        :param other: conditions that differ
        """
        conditions = {**self.baselines.conditions, **other}
        now = replace(self.baselines, conditions=conditions)
        return now.take(cases, seeds, self.folder / out / "baseline-reused", ())

    def kept(self) -> list[str]:
        """The ids of the kept runs; each has its run folder, and no other folder is there."""
        content = json.loads((self.baselines.folder / "baseline.json").read_text())
        ids = sorted(run["run_id"] for run in content["runs"])
        assert ids == sorted(path.name for path in (self.baselines.folder / "runs").iterdir())
        return ids


@pytest.fixture
def place(tmp_path: Path) -> Place:
    conditions = conditions_of(OWN, BUILD, "process", HOST)
    return Place(folder=tmp_path, baselines=Baselines(folder=tmp_path / "baselines" / "x", conditions=conditions))


def test_a_kept_run_is_used_with_its_folder_and_date(place: Place) -> None:
    """The new qualification has folders and a ledger of its own: it needs neither the first one nor the kept runs."""
    ids = {ran(place.folder / "one" / "baseline", case) for case in (A, B)}
    assert place.keep("one") == []
    reused = place.take("two")
    assert str(reused) == "reuses 2 runs of 2 cases from earlier qualifications of 2026-11-20"
    shutil.rmtree(place.folder / "one")
    shutil.rmtree(place.folder / "baselines")
    into = place.folder / "two" / "baseline-reused"
    assert {entry.run_id for entry in ledger.read(into)} == ids
    assert {(into / run_id / "brokers" / "log").read_text() for run_id in ids} == ids
    assert place.take("two").runs == reused.runs, "it goes on with the runs that it took"


@pytest.mark.parametrize("name", conditions_of(OWN, BUILD, "process", HOST))
def test_each_condition_must_be_equal(place: Place, name: str) -> None:
    """One line says which one differs. What an interrupted qualification took before is dropped, too."""
    ran(place.folder / "one" / "baseline", A)
    place.keep("one")
    assert place.take("two").runs
    other = "0.1.0 (revision 50b3c5c7)" if name == "jbod" else "other"
    for out in ("two", "three"):
        reused = place.take(out, other={name: other})
        assert reused.runs == ()
        assert f"has runs with {name} {place.baselines.conditions[name]}, and this is {other}" in str(reused)
    assert ledger.read(place.folder / "two" / "baseline-reused") == []
    assert replace(place.baselines, conditions={**place.baselines.conditions, name: other}).seed([A], 3) is None


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ({"jbod": "0.1.0 (revision 34e2b0b1-dirty)"}, "files of jbod differ from its revision"),
        ({"jbod": "0.1.0"}, "does not run from a checkout"),
        ({"backend": "docker"}, "the image of containers may have changed"),
        ({"Java": "?"}, "unknown on this machine: Java"),
    ],
)
def test_what_cannot_be_named_is_neither_kept_nor_used(place: Place, conditions: dict[str, str], why: str) -> None:
    """The runs of changed code, for example, are not used even if they have the same conditions."""
    own = OwnVersion(version="0.1.0", revision="34e2b0b1-dirty" if "dirty" in conditions.get("jbod", "") else None)
    backend = conditions.get("backend", "process")
    more: dict[str, object] = {"jbod": vars(own) if "jbod" in conditions else vars(OWN), "backend": backend}
    more["host"] = {**HOST, "java": None} if "Java" in conditions else HOST
    ran(place.folder / "one" / "baseline", A, other=more)
    unnamed = replace(place.baselines, conditions={**place.baselines.conditions, **conditions})
    there = replace(place, baselines=unnamed)
    there.keep("one")
    assert not unnamed.folder.exists()
    assert why in str(there.take("two"))


@pytest.mark.parametrize(
    "other",
    [
        {"jbod": {"version": "0.1.0", "revision": "34e2b0b1-dirty"}},
        {"jbod": None},
        {"kafka": vars(replace(BUILD, sha256="cd" * 32))},
        {"host": {**HOST, "java": "21.0.1"}},
        {"backend": "docker"},
    ],
    ids=str,
)
def test_a_run_of_an_interrupted_qualification_under_other_conditions_is_not_kept(
    place: Place, other: dict[str, object]
) -> None:
    """An old jbod, for example, ran case B before the qualification was resumed."""
    kept = ran(place.folder / "one" / "baseline", A)
    ran(place.folder / "one" / "baseline", B, other=other)
    place.keep("one")
    assert place.kept() == [kept]


def test_only_these_cases_and_seeds_are_used(place: Place) -> None:
    """With another seed than that of the kept runs, the baseline runs anew."""
    first, second, third = (ran(place.folder / "one" / "baseline", A, seed) for seed in (7, 8, 70))
    ran(place.folder / "one" / "baseline", B)
    place.keep("one")
    assert [run.run_id for run in place.take("two", cases=[A]).runs] == [first, second]
    assert [run.run_id for run in place.take("three", (70, 71, 72)).runs] == [third]
    assert "has runs with seed 7, 8, 70, and this qualification has 6" in str(place.take("four", [6]))
    assert "has none of these cases" in str(place.take("five", cases=[C]))


@pytest.mark.parametrize(
    ("runs", "cases", "seed"),
    [
        ({A: [7, 8], B: [7, 8]}, [A, B], 7),  # two rounds
        ({A: [7, 8, 9], B: [8]}, [A, B], 8),  # case B was an error in the first round
        ({A: [7, 70], B: [7]}, [A, B], 7),  # case A alone ran again with another seed
        ({A: [7], B: [70, 71]}, [A], 7),
        ({A: [7]}, [C], None),
    ],
)
def test_the_next_seed_is_the_one_with_the_most_cases(
    place: Place, runs: dict[str, list[int]], cases: list[str], seed: int | None
) -> None:
    for case, seeds in runs.items():
        for each in seeds:
            ran(place.folder / "one" / "baseline", case, each)
    place.keep("one")
    assert place.baselines.seed(cases, 3) == seed


def test_errors_unknown_runs_and_those_without_a_folder_are_not_used(place: Place) -> None:
    """A run in which the harness failed, or the machine was too slow, shows nothing; one without folder has no page."""
    ran(place.folder / "one" / "baseline", A, verdict="error")
    ran(place.folder / "one" / "baseline", A, seed=8, verdict="unknown")
    ran(place.folder / "one" / "baseline", "outside/x[kraft]")
    gone = ran(place.folder / "one" / "baseline", C)
    kept = ran(place.folder / "one" / "baseline", B, verdict="invalid")
    shutil.rmtree(place.folder / "one" / "baseline" / gone)
    place.keep("one")
    assert place.kept() == [kept]
    shutil.rmtree(place.baselines.folder / "runs" / kept)
    assert "are missing or damaged" in str(place.take("two"))
    again = ran(place.folder / "two" / "baseline", B)
    assert place.keep("two") == []
    assert place.kept() == [again]


def test_fresh_runs_and_new_conditions_replace_what_is_kept(place: Place) -> None:
    """``--fresh`` replaces the runs of the cases that ran; new conditions replace all."""
    old_a, old_b = (ran(place.folder / "one" / "baseline", case) for case in (A, B))
    place.keep("one")
    place.take("two")
    fresh = replace(place.baselines, fresh=True)
    reused = fresh.take([A], [7], place.folder / "two" / "baseline-reused", ())
    assert (reused.runs, str(reused)) == ((), "no run of an earlier qualification is used: --fresh")
    assert not (place.folder / "two" / "baseline-reused").exists()
    assert fresh.seed([A], 3) is None
    new_a = ran(place.folder / "two" / "baseline", A, 70)
    place.keep("two", fresh=True)
    assert place.kept() == sorted([new_a, old_b])
    assert place.baselines.seed([A], 3) == 70

    newer = {"version": "0.1.0", "revision": "50b3c5c7"}
    newest = ran(place.folder / "three" / "baseline", B, other={"jbod": newer})
    now = replace(place.baselines, conditions={**place.baselines.conditions, "jbod": str(OwnVersion(**newer))})
    replace(place, baselines=now).keep("three")
    assert place.kept() == [newest]
    assert old_a not in place.kept()


def test_a_damaged_list_is_replaced(place: Place) -> None:
    """The cases run anew, and a line names the file."""
    kept = ran(place.folder / "one" / "baseline", A)
    place.keep("one")
    (place.baselines.folder / "baseline.json").write_text("{")
    assert "baseline.json can't be read" in str(place.take("two"))
    assert place.baselines.seed([A], 3) is None
    place.keep("one")
    assert place.kept() == [kept]


def test_qualifications_that_end_at_once_all_keep_their_runs(place: Place) -> None:
    """None of their runs is missing from the list, and each is in it whole."""
    outs = [f"out{number}" for number in range(8)]
    ids = [ran(place.folder / out / "baseline", A, seed) for seed, out in enumerate(outs)]
    with ThreadPoolExecutor(len(outs)) as pool:
        assert [*pool.map(place.keep, outs)] == [[] for _ in outs]
    assert place.kept() == sorted(ids)
    assert len(place.take("last", range(len(outs))).runs) == len(outs)


def test_what_cannot_be_kept_is_one_line(place: Place) -> None:
    ran(place.folder / "one" / "baseline", A)
    (place.folder / "baselines").write_text("a file")
    [line] = place.keep("one")
    assert line.startswith("the baseline's runs cannot be kept: ")


# --- qualifications of planted cases ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The end of one qualification.

    :ivar ran: the plays of cases
    """

    code: int
    output: str
    json: dict[str, Any]
    ran: Counter[str]

    @property
    def of_the_baseline(self) -> list[str]:
        """The cases that ran on the baseline."""
        return sorted(play.removesuffix(" 4.3.0") for play in self.ran.elements() if play.endswith(" 4.3.0"))


class Qualifying:
    """Qualifies one candidate after another against Kafka 4.3.0, each with an ``--out`` of its own."""

    def __init__(self, planted: Planted) -> None:
        self.planted = planted
        planted.commit()
        self.baseline = planted.kafka("4.3.0")
        self.candidate = planted.kafka("4.3.1")
        self._outs = 0

    def next(self, *more: str, selector: str = "kip-112", out: str | None = None) -> Answer:
        """Qualify the next candidate; with ``out``, go on with that qualification."""
        self._outs += 1
        out = out or f"out{self._outs}"
        before = Counter(self.planted.played())
        builds = (f"--candidate={self.candidate}", f"--baseline={self.baseline}")
        code, output = self.planted.jbod(*WITH, selector, *builds, f"--out=reports/{out}", f"--json={out}.json", *more)
        answer = json.loads((self.planted.folder / f"{out}.json").read_text())
        return Answer(
            code=code, output=" ".join(output.split()), json=answer, ran=Counter(self.planted.played()) - before
        )


@pytest.fixture
def qualifying(planted: Planted) -> Qualifying:
    return Qualifying(planted)


def test_a_new_file_of_the_code_is_a_change(planted: Planted) -> None:
    """Git does not count it as a difference, and a conftest.py, for example, can change every case."""
    planted.commit()
    _, clean = planted.jbod("--version")
    new_file = planted.add_file("suites/new/conftest.py")
    _, changed = planted.jbod("--version")
    assert changed.strip() == clean.strip().replace(")", "-dirty)")
    new_file.unlink()
    assert planted.jbod("--version") == (0, clean)


def test_a_second_candidate_runs_no_case_of_the_baseline(qualifying: Qualifying) -> None:
    """A case of the baseline that was invalid has its three runs already; the page says what is reused."""
    qualifying.planted.plays({f"{B} 4.3.0": "invalid valid"})
    first = qualifying.next()
    assert (first.code, first.of_the_baseline, first.json["reused"]) == (0, [A, B, B, B, C], 0)
    assert "baseline: no run of an earlier qualification is used: " in first.output
    probes = qualifying.planted.probes()

    second = qualifying.next()
    assert (second.code, second.of_the_baseline, second.json["reused"]) == (0, [], 5)
    assert second.ran == {f"{A} 4.3.1": 1, f"{B} 4.3.1": 1, f"{C} 4.3.1": 1}
    assert second.json["cases"] == first.json["cases"] == {A: "held", B: "mended", C: "held"}
    assert second.json["seed"] == first.json["seed"]
    assert qualifying.planted.probes() == probes + 1, "only the candidate is probed"
    says = "baseline: reuses 5 runs of 3 cases from earlier qualifications of 20"
    assert second.output.index(says) < second.output.index("candidate: 3 of 3 cases are due")
    [note] = [note for note in second.json["notes"] if note.startswith(says)]
    shutil.rmtree(qualifying.planted.folder / "reports" / "baselines")
    shutil.rmtree(qualifying.planted.folder / "reports" / "out1")
    again = qualifying.next(out="out2")
    page = (qualifying.planted.folder / "reports" / "out2" / "report" / "qualification.html").read_text()
    assert (again.json["cases"], again.ran) == (second.json["cases"], {}), "its folder has all that it needs"
    assert note in page


def test_what_differs_runs_anew(qualifying: Qualifying) -> None:
    """Another seed, ``--fresh`` and another revision: the baseline runs, and one line says why."""

    def why_anew(*more: str) -> str:
        done = qualifying.next(*more, selector=A)
        assert (done.of_the_baseline, done.json["reused"]) == ([A], 0)
        return done.output.partition("no run of an earlier qualification is used: ")[2]

    why_anew("--seed=7")
    assert "has runs with seed 7, and this qualification has 70" in why_anew("--seed=70")
    assert why_anew("--seed=7", "--fresh").startswith("--fresh ")
    qualifying.planted.commit("# a comment")
    assert "has runs with jbod 0.1.0 (revision " in why_anew("--seed=7")


def test_what_is_missing_runs_with_the_same_seeds(qualifying: Qualifying) -> None:
    """Cases that are not kept run, and a kept case runs a second time; both sides have the same seed in each round."""
    qualifying.next("--seed=7", selector=A)
    more = qualifying.next("--repeats=2")
    assert (more.of_the_baseline, more.json["reused"]) == ([A, B, B, C, C], 1)
    for side in ("candidate", "baseline"):
        runs = ledger.read(qualifying.planted.folder / "reports" / "out2" / side)
        seeds = {case: sorted(entry.seed for entry in runs if entry.id == case) for case in (A, B, C)}
        assert seeds == {A: [7, 8] if side == "candidate" else [8], B: [7, 8], C: [7, 8]}
    fewer = qualifying.next(selector=B)
    assert (fewer.of_the_baseline, fewer.json["cases"]) == ([], {B: "held"}), "other kept cases are not on its page"
