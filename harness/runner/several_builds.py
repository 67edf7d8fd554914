"""Runs the same cases on several Kafka builds, and combines the results.

Each build runs in a process of its own (:mod:`harness.runner.subrun`), so that a build that breaks its run does not
affect the others. The builds run one after another, so that they do not compete for the machine, and with the same
seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from harness.errors import EXIT_NOTHING_RAN, EXIT_USAGE, worst
from harness.host.atomic_write import write_atomically
from harness.host.scratch import scratch
from harness.kafka.versions import KafkaVersion
from harness.runner import results
from harness.runner.subrun import SubRun, run_apart


@dataclass(frozen=True, kw_only=True)
class BuildRun(SubRun):
    """The result of ``jbod run`` on one of the builds."""

    kafka: str


def versions_named(kafka: str | None) -> tuple[str, ...]:
    """Return the versions in ``--kafka A,B``, each once.

    :raises UsageError: one of them is not a version
    """
    words = [] if kafka is None else kafka.split(",")
    return tuple(dict.fromkeys(str(KafkaVersion.parse(word)) for word in words))


def run_each(
    selectors: Mapping[str, Sequence[str]],
    arguments: Sequence[str],
    *,
    probes: Mapping[str, Sequence[str]],
    junit: Path,
    allure: Path,
    stop_after: float | None,
    say: Callable[[str], None],
) -> list[BuildRun]:
    """Run ``jbod run`` with these arguments on each version. A version without selectors is not run.

    After a usage error the remaining versions are not run, because they would end the same way.

    :param selectors: by version
    :param probes: files of ``--probe``, by version
    :param junit: the JUnit file for all builds
    :param allure: the folder for all results of allure-pytest
    :param stop_after: seconds after which no case begins, on any build
    """
    runs: list[BuildRun] = []
    parts: dict[str, Path] = {}
    ends = None if stop_after is None else time.monotonic() + stop_after
    with scratch("builds") as folder:
        for number, (kafka, named) in enumerate(selectors.items(), start=1):
            say(f"Kafka {kafka}, build {number} of {len(selectors)}")
            if not named:
                runs.append(BuildRun(kafka=kafka, exit_code=EXIT_NOTHING_RAN))
                continue
            parts[kafka] = folder / f"{kafka}.xml"
            own = [f"--kafka={kafka}", f"--junit={parts[kafka]}", f"--allure={allure / kafka}"]
            own += [f"--probe={file}" for file in probes[kafka]]
            if ends is not None:
                own.append(f"--stop-after={max(0.0, ends - time.monotonic()):.0f}")
            done = run_apart(*named, *arguments, *own)
            runs.append(BuildRun(kafka=kafka, exit_code=done.exit_code, cases=done.cases))
            if done.exit_code == EXIT_USAGE:
                break
        try:
            _write_junit(parts, junit)
        except OSError as error:  # the exit code must still be that of the runs
            say(f"cannot write {junit}: {error.strerror}")
    _flatten(allure)
    return runs


def to_json(runs: Sequence[BuildRun], seed: int) -> dict[str, object]:
    """Return the content of ``--json`` for all builds, with the exit code of each."""
    cases = [case for run in runs for case in run.cases]
    content = results.to_json(cases, worst([run.exit_code for run in runs]), seed)
    return content | {"builds": [{"kafka": run.kafka, "exit_code": run.exit_code} for run in runs]}


def _write_junit(parts: Mapping[str, Path], into: Path) -> None:
    """Write one JUnit file with a suite for each build. Case names include the build, to be unique."""
    whole = ElementTree.Element("testsuites")
    for kafka, part in parts.items():
        for suite in _suites(part):
            suite.set("name", f"Kafka {kafka}")
            for case in suite.iter("testcase"):
                case.set("name", f"{case.get('name')} on Kafka {kafka}")
            whole.append(suite)
    if len(whole):
        write_atomically(into, ElementTree.tostring(whole, encoding="unicode"))
    else:
        into.unlink(missing_ok=True)  # from an earlier run


def _suites(part: Path) -> Iterator[ElementTree.Element]:
    with suppress(OSError, ElementTree.ParseError):  # the run had no case, or was killed
        yield from ElementTree.parse(part).iter("testsuite")


def _flatten(folder: Path) -> None:
    """Move all files into one folder for Allure. Their names are random, so they do not collide."""
    for each in [path for path in folder.iterdir() if path.is_dir()]:
        for file in each.iterdir():
            file.rename(folder / file.name)
        each.rmdir()
