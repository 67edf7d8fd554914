"""What CI makes of the files that `jbod run --json` wrote.

verdicts.py same FILE SOME    did SOME's cases come out as in FILE, with the same deviations seen?
verdicts.py skipped FILE      how many cases were skipped, by reason
verdicts.py failed FILE       what pytest's cache lists as failed, a node id a line
verdicts.py undecided FILE    the cases that came out unknown or error, an id a line
verdicts.py replace FILE NEW  put NEW's cases in the place of FILE's, and name those that are valid only now
verdicts.py uncaught FILE     the mutants that no case caught, an id a line (FILE is of `jbod mutants --json`)
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def run(file: str) -> dict[str, Any]:
    """As ``jbod run --json`` tells of it."""
    told: dict[str, Any] = json.loads(Path(file).read_text())
    return told


def drawn_from(run: dict[str, Any]) -> dict[str, set[str]]:
    """What two runs must have in common to be compared: their seed, and by mode the builds of cases that got to one."""
    found = defaultdict(set[str])
    found["seed"].add(str(run["seed"]))
    for case in run["scenarios"]:
        if case.get("kafka_sha256"):
            found[case["mode"]].add(f"{case['kafka']} {case['kafka_sha256'][:12]}")
    return found


def told(run: dict[str, Any]) -> dict[str, list[str]]:
    """By case, its verdict and its declared deviations; but none that a build shows or not as it happens."""
    return {case["id"]: [case["verdict"], *sorted(deviations(case))] for case in run["scenarios"]}


def deviations(case: dict[str, Any]) -> Iterator[str]:
    """Those to be compared, a phrase each."""
    for each in case.get("deviations", ()):
        state = each.get("state", "seen")
        if each["always"] and state != "undeclared":
            yield each["does"] if state == "seen" else f"{state}: {each['does']}"


def same(one: str, other: str) -> None:
    """Say that the other's cases came out as in the one, or fail with those that differ."""
    runs = run(one), run(other)
    here, there = map(drawn_from, runs)
    for what in here.keys() & there.keys():
        if here[what] != there[what]:
            said = f"{what} {', '.join(sorted(here[what]))} in {one}, {', '.join(sorted(there[what]))} in {other}"
            sys.exit(f"not of the same seed and builds, so that nothing can be compared: {said}")
    ours, theirs = map(told, runs)
    differing = [id for id in sorted(theirs) if ours.get(id) != theirs[id]]
    for id in differing:
        print(f"DIFFERS {id}: {ours.get(id)} in {one}, {theirs[id]} in {other}")
    if differing or not theirs:
        sys.exit(f"other verdicts or deviations from backend to backend: {len(differing)} of {len(theirs)} cases")
    print(f"same verdicts in both backends: {len(theirs)} cases")


def skipped(file: str) -> None:
    """Say it."""
    for reason, count in Counter(
        case["reason"] for case in run(file)["scenarios"] if case["verdict"] == "skipped"
    ).items():
        print(f"SKIPPED in containers: {count} cases: {reason}")


def failed(file: str) -> None:
    """Print what pytest's cache plugin lists."""
    path = Path(file)
    print(*(json.loads(path.read_text()) if path.exists() else ()), sep="\n")


def undecided(file: str) -> None:
    """Print the ids."""
    print(*(case["id"] for case in run(file)["scenarios"] if case["verdict"] in ("unknown", "error")), sep="\n")


def replace(file: str, newer: str) -> None:
    """Write FILE with the newer cases in it."""
    told = run(file)
    now = {case["id"]: case for case in run(newer)["scenarios"]}
    for case in told["scenarios"]:
        if case["id"] in now and now[case["id"]]["verdict"] == "valid":
            print(f"FLAKY: {case['id']} came out {case['verdict']} ({case['reason']}), and valid the second time")
    told["scenarios"] = [now.get(case["id"], case) for case in told["scenarios"]]
    Path(file).write_text(json.dumps(told))


def uncaught(file: str) -> None:
    """Print the ids."""
    print(*(mutant["id"] for mutant in run(file)["mutants"] if mutant["outcome"] != "caught"), sep="\n")


if __name__ == "__main__":
    does = {
        "same": same,
        "skipped": skipped,
        "failed": failed,
        "undecided": undecided,
        "replace": replace,
        "uncaught": uncaught,
    }
    does[sys.argv[1]](*sys.argv[2:])
