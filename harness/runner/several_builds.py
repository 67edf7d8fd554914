"""One run on several Kafka builds: a run for each, in a process of its own, and what they make together.

A process each, as for qualifications (:mod:`harness.runner.subrun`): Spark, clusters and pytest's plugins are made for
one run a process, and a build that breaks its run leaves the others alone. One build after the other, so that none is
measured beside another; all with the same seed.
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
from harness.runner.case import CaseResult
from harness.runner.subrun import run_apart


@dataclass(frozen=True, kw_only=True)
class BuildRun:
    """The run on one build.

    :ivar kafka: its version
    :ivar cases: empty if it ended before any case did
    """

    kafka: str
    exit_code: int
    cases: tuple[CaseResult, ...]


def versions_named(kafka: str | None) -> tuple[str, ...]:
    """The versions that ``--kafka A,B`` names, each once.

    :raises UsageError: one of them is none
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
    """``jbod run`` with these arguments, on each version with its selectors; where there are none, nothing runs.

    A run that ends with a usage error is the last: the next one would end the same way.

    :param selectors: by version
    :param probes: files of ``--probe``, by version
    :param junit: where JUnit's XML of all goes
    :param allure: the folder for allure-pytest's results of all
    :param stop_after: seconds after which no case begins any more, on any build
    """
    runs: list[BuildRun] = []
    parts: dict[str, Path] = {}
    ends = None if stop_after is None else time.monotonic() + stop_after
    with scratch("builds") as folder:
        for number, (kafka, named) in enumerate(selectors.items(), start=1):
            say(f"Kafka {kafka}, build {number} of {len(selectors)}")
            if not named:
                runs.append(BuildRun(kafka=kafka, exit_code=EXIT_NOTHING_RAN, cases=()))
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
        except OSError as error:  # what was broken stays broken
            say(f"{junit} can't be written: {error.strerror}")
    _flatten(allure)
    return runs


def to_json(runs: Sequence[BuildRun], seed: int) -> dict[str, object]:
    """The content of ``--json``: that of one run, and the exit code of each build."""
    cases = [case for run in runs for case in run.cases]
    content = results.to_json(cases, worst([run.exit_code for run in runs]), seed)
    return content | {"builds": [{"kafka": run.kafka, "exit_code": run.exit_code} for run in runs]}


def _write_junit(parts: Mapping[str, Path], into: Path) -> None:
    """One file: a suite for each build. A case's name says its build, since readers of JUnit tell cases by name."""
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
        into.unlink(missing_ok=True)  # of a run before


def _suites(part: Path) -> Iterator[ElementTree.Element]:
    with suppress(OSError, ElementTree.ParseError):  # of a run without a case, or one that was killed
        yield from ElementTree.parse(part).iter("testsuite")


def _flatten(folder: Path) -> None:
    """Allure reads the files of one folder; their names are random, and those of two runs never alike."""
    for each in [path for path in folder.iterdir() if path.is_dir()]:
        for file in each.iterdir():
            file.rename(folder / file.name)
        each.rmdir()
