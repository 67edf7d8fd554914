"""``jbod bisect``: the search, on all short lists of releases; its messages; and the command, on planted cases."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.kafka.versions import KafkaVersion
from harness.runner.bisecting import Bisection, CaseRun, Trial, bisect, first_change
from suites.selftest.own_maven import OwnMaven
from suites.selftest.planted import Planted

A = "kip-112/planted[kraft-a]"


# --- the search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", range(7))
def test_it_ends_between_two_releases_that_differ(between: int) -> None:
    """A release is like the first (0), unlike it (1, 2), or cannot be judged (None); all combinations are tried."""
    for middle in itertools.product((0, 1, 2, None), repeat=between):
        looks = [0, *middle, 1]
        asked: list[int] = []

        def ask(release: int, looks: Sequence[int | None] = looks, asked: list[int] = asked) -> int | None:
            asked.append(release)
            return looks[release]

        last, first = first_change(range(len(looks)), ask)
        assert looks[last] == 0
        assert looks[first] in (1, 2)
        assert last < first
        assert all(looks[each] is None and each in asked for each in range(last + 1, first))
        assert max(Counter(asked).values()) == 1
        assert len(asked) <= 1 + math.ceil(math.log2(between + 1)) + sum(looks[each] is None for each in asked)


def test_it_finds_the_one_change_in_as_many_steps_as_it_takes() -> None:
    for change in range(1, 55):
        asked: list[int] = []

        def is_changed(release: int, change: int = change, asked: list[int] = asked) -> bool:
            asked.append(release)
            return release >= change

        assert first_change(range(55), is_changed) == (change - 1, change)
        assert len(asked) <= 7


# --- its messages ---------------------------------------------------------------------------------------------------


def version(text: str) -> KafkaVersion:
    return KafkaVersion.parse(text)


def found(looks: Mapping[str, str], good: str, bad: str) -> Bisection:
    """The outcomes of releases, from the words for their runs: "valid", "x", "y" (valid, with a deviation), …"""

    def trial_of(release: KafkaVersion) -> Trial:
        words = looks[str(release)].split()
        if words == ["missing"]:
            return Trial(kafka=release, runs=(), missing="not there")
        known = ("valid", "invalid", "unknown", "error", "skipped")
        runs = [
            CaseRun(
                verdict=word if word in known else "valid",
                reason="" if word == "valid" else f"so it {word}s",
                deviations=() if word in known else (word,),
                run_dir=None,
            )
            for word in words
        ]
        return Trial(kafka=release, runs=tuple(runs))

    return bisect([*map(version, looks)], good=version(good), bad=version(bad), trial_of=trial_of)


# The outcomes of releases, the good end, the bad end, and the result.
FOUND = [
    ("3.8.0 valid, 3.8.1 valid, 3.9.0 invalid", "3.8.0 3.9.0", "valid up to 3.8.1, invalid from 3.9.0"),
    ("4.1.0 invalid, 4.1.1 invalid, 4.2.0 valid", "4.2.0 4.1.0", "invalid up to 4.1.1, valid from 4.2.0"),
    ("1.0.0 valid, 1.0.1 valid invalid, 1.0.2 invalid", "1.0.0 1.0.2", "valid up to 1.0.0, invalid from 1.0.1"),
    ("1.0.0 valid, 1.0.1 unknown valid, 1.0.2 invalid", "1.0.0 1.0.2", "valid up to 1.0.1, invalid from 1.0.2"),
    ("1.0.0 x, 1.0.1 x, 1.0.2 valid", "1.0.2 1.0.0", "valid with “x” up to 1.0.1, valid from 1.0.2"),
    ("1.0.0 x, 1.0.1 y, 1.0.2 y", "1.0.0 1.0.2", "valid with “x” up to 1.0.0, valid with “y” from 1.0.1"),
    ("1.0.0 valid, 1.0.1 invalid, 1.0.2 x", "1.0.0 1.0.2", "valid up to 1.0.0, invalid from 1.0.1"),
    ("1.0.0 valid, 1.0.1 missing, 1.0.2 invalid", "1.0.0 1.0.2", "valid up to 1.0.0, invalid from 1.0.2"),
    # A deviation does not count if the verdict changes, too, or if both ends show it.
    ("1.0.0 valid, 1.0.1 x, 1.0.2 invalid", "1.0.0 1.0.2", "valid up to 1.0.1, invalid from 1.0.2"),
    ("1.0.0 x, 1.0.1 valid, 1.0.2 invalid", "1.0.0 1.0.2", "valid up to 1.0.1, invalid from 1.0.2"),
    ("1.0.0 x, 1.0.1 valid, 1.0.2 x y", "1.0.0 1.0.2", "valid up to 1.0.1, valid with “y” from 1.0.2"),
]
UNDECIDED = [
    ("1.0.0 invalid, 1.0.2 invalid", "1.0.0 1.0.2", "undecided: 1.0.0, given as good, is invalid in 1 of 1 run"),
    ("1.0.0 valid, 1.0.2 valid", "1.0.0 1.0.2", "1.0.2, given as bad, is valid in 1 of 1 run, and shows nothing"),
    ("1.0.0 unknown, 1.0.2 invalid", "1.0.0 1.0.2", "1.0.0, given as good, could not be judged: unknown: so it"),
    ("1.0.0 valid, 1.0.2 error", "1.0.0 1.0.2", "1.0.2, given as bad, could not be judged: error: so it errors"),
    (
        "1.0.0 valid, 1.0.1 error, 1.0.2 skipped, 1.1.0 invalid",
        "1.0.0 1.1.0",
        "valid up to 1.0.0, invalid from 1.1.0 at the latest; 1.0.1, 1.0.2 could not be judged",
    ),
]


@pytest.mark.parametrize(
    ("looks", "ends", "sentence", "code"),
    [*((*each, 0) for each in FOUND), *((*each, 2) for each in UNDECIDED)],
)
def test_one_sentence_and_an_exit_code(looks: str, ends: str, sentence: str, code: int) -> None:
    by_release = {each.split()[0]: each.partition(" ")[2] for each in looks.split(", ")}
    result = found(by_release, *ends.split())
    assert sentence in result.sentence
    assert (result.exit_code, result.to_json()["found"]) == (code, code == 0)


def test_how_often_each_side_was_run() -> None:
    result = found(
        {"3.8.0": "valid valid", "3.8.1": "valid valid", "3.9.0": "unknown", "3.9.1": "invalid"}, "3.8.0", "3.9.1"
    )
    assert result.sides == "4 runs on 2 releases up to 3.8.1, 1 run on 1 release from 3.9.1"
    assert result.to_json()["unjudged"] == {"3.9.0": "unknown: so it unknowns"}


def test_an_end_that_no_repository_has_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="not there"):
        found({"4.0.0": "missing", "4.0.1": "invalid"}, "4.0.0", "4.0.1")


# --- the command ----------------------------------------------------------------------------------------------------


HERE = ("90.0.0", "90.0.1", "90.0.10", "90.1.0", "90.2.0")
ENDS = ("--good=90.0.0", "--bad=90.2.0")


@pytest.fixture
def own(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> OwnMaven:
    own = OwnMaven(open_folder, monkeypatch)
    own.lists(HERE)
    own.has(*HERE)
    return own


def run(planted: Planted, *arguments: str) -> tuple[int, str, dict[str, Any], list[str]]:
    """Run ``jbod bisect``; returns the exit code, the output, the JSON, and the releases on which it ran."""
    before = len(planted.played())
    out = planted.folder / "out.json"
    out.unlink(missing_ok=True)
    code, output = planted.jbod("bisect", A, "--backend=planted", "--json=out.json", *arguments)
    report = json.loads(out.read_text()) if out.exists() else {}
    return code, output, report, [line.split()[1] for line in planted.played()[before:]]


def test_it_runs_what_it_has_to_and_goes_on_where_it_was(planted: Planted, own: OwnMaven) -> None:
    """Where a release gives an error, it tries a neighbour; it skips a release that is listed and cannot be fetched."""
    own.lists(["90.0.2", *HERE])
    planted.plays({f"{A} 90.0.1": "error", f"{A} 90.1.0": "invalid", f"{A} 90.2.0": "invalid"})
    code, output, report, ran = run(planted, "--good=90.0.0", "--bad=latest")
    assert code == report["exit_code"] == 0
    assert ran == ["90.0.0", "90.2.0", "90.0.10", "90.1.0"]
    last = "valid up to 90.0.10, invalid from 90.1.0"
    assert output.splitlines()[-1] == report["sentence"] == last
    assert "Kafka latest is 90.2.0" in output
    assert "90.1.0: invalid in 1 of 1 run: planted: invalid" in output
    assert "90.0.2: left out: Kafka 90.0.2 is not on Maven Central or your mirrors\n" in output
    assert "run: 2 runs on 2 releases up to 90.0.10, 2 runs on 2 releases from 90.1.0" in output
    assert (report["last"], report["first"], list(report["left_out"])) == ("90.0.10", "90.1.0", ["90.0.2"])
    assert all(Path(run["run_dir"]).is_dir() for each in report["releases"] for run in each["runs"])

    code, output, report, ran = run(planted, *ENDS)
    assert (code, ran) == (0, [])
    assert "90.1.0: invalid in 1 of 1 run, 1 of them earlier: planted: invalid" in output
    assert output.splitlines()[-1] == last

    code, output, report, ran = run(planted, "--good=90.0.0", "--bad=90.0.10")
    assert (code, ran) == (2, [])  # the outcomes of both ends are known and equal
    code, output, report, ran = run(planted, "--good=90.0.1", "--bad=90.1.0")
    assert (code, ran) == (2, ["90.0.1"])
    assert output.splitlines()[-1] == "undecided: 90.0.1, given as good, could not be judged: error: planted: error"


def test_one_invalid_run_of_several_is_enough(planted: Planted, own: OwnMaven) -> None:
    planted.plays({f"{A} 90.0.1": "valid invalid"})
    code, output, report, ran = run(planted, "--good=90.0.0", "--bad=90.0.1", "--repeats=2", "--seed=3")
    assert (code, ran) == (0, ["90.0.0"] * 2 + ["90.0.1"] * 2)
    assert "90.0.1: invalid in 1 of 2 runs: planted: invalid" in output
    seeds = [json.loads(path.read_text())["seed"] for path in planted.folder.glob("reports/bisect/runs/*/run.json")]
    assert sorted(seeds) == [3, 3, 4, 4]
    assert report["sentence"] == "valid up to 90.0.0, invalid from 90.0.1"


def test_a_deviation_counts_where_both_ends_are_valid(planted: Planted, own: OwnMaven) -> None:
    """The newer end may be the good one."""
    planted.plays({f"{A} {each}": "deviates" for each in HERE[:2]})
    code, output, report, _ = run(planted, "--good=90.0.10", "--bad=90.0.0")
    assert (code, report["compared"]) == (0, "deviations")
    assert output.splitlines()[-1] == "valid with “planted deviation (none)” up to 90.0.1, valid from 90.0.10"


def test_what_was_known_of_releases_between_is_reported_where_it_contradicts(planted: Planted, own: OwnMaven) -> None:
    planted.plays({f"{A} {each}": "invalid" for each in ("90.0.1", "90.2.0")})
    code, _ = planted.jbod("run", A, "--backend=planted", "--kafka=90.0.1")
    assert code == 1
    code, output, report, _ = run(planted, *ENDS, f"--runs-dir={planted.runs_dir}")
    assert (code, report["sentence"]) == (0, "valid up to 90.1.0, invalid from 90.2.0")
    assert report["notes"] == ["90.0.1 was invalid in 1 of 1 run earlier: the outcome changes more than once"]
    assert report["notes"][0] in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([A, "--good=90.0.0", "--bad=90.0.0"], "--good and --bad are both 90.0.0"),
        ([A, "--good=90.0.0", "--bad=90.0.7"], "--bad 90.0.7 is not a release on Maven Central or your mirrors"),
        ([A, "--good=90.0.0", "--bad=latest-89"], "--kafka latest-89: no such release"),
        (["kip-112", "--good=90.0.0", "--bad=90.0.1"], f"kip-112 is 3 cases; name one of them: {A}, "),
        ([A, "--good=2.8.1", "--bad=2.8.2"], "2.8.1 has zk, 2.8.2 has zk"),
        (
            [A, "--mode=zk", "--good=90.0.0", "--bad=90.0.1"],
            "there is no such case in a metadata mode of this bisection",
        ),
        (["schedules/random", "--good=90.0.0", "--bad=90.0.1"], "plays a random schedule"),
        (["kip-113", "--good=90.0.0", "--bad=90.0.1"], "unknown selector 'kip-113'"),
    ],
)
def test_bad_input(planted: Planted, own: OwnMaven, arguments: list[str], says: str) -> None:
    code, output = planted.jbod("bisect", "--backend=planted", *arguments)
    assert code == 4
    assert says in output
    assert planted.played() == []


def test_without_maven_it_is_the_environment(planted: Planted, own: OwnMaven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAVEN_OPTS", "-Duser.home=/nowhere -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")
    code, output = planted.jbod("bisect", A, "--good=90.0.0", "--bad=90.0.1", "--backend=planted")
    assert code == 3
    assert "mvn can't list the versions of org.apache.kafka:kafka_2.13" in output
