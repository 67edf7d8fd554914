"""Tries a build: starts a cluster of one broker in each of its modes, and tries all that the suites depend on."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.cluster.cluster import boot
from harness.cluster.nodes.jvm import LOG, STDOUT
from harness.cluster.spec import ClusterSpec
from harness.errors import (
    EXIT_HARNESS,
    EXIT_INCONCLUSIVE,
    EXIT_VALID,
    EnvironmentLacks,
    HarnessError,
    JbodError,
    NodeDied,
    PromiseBroken,
)
from harness.host.scratch import scratch
from harness.journal import Journal
from harness.kafka.broker_log import BrokerLog
from harness.kafka.builds import Builds
from harness.kafka.distribution import Distribution
from harness.kafka.tools_jvm import end_tools
from harness.kafka.versions import Mode
from suites.probe import files, logs, requests, secured, tools
from suites.probe.dependencies import DEPENDENCIES
from suites.probe.dependency import UNTRIED, Dependency
from suites.probe.trial import ONE_REPLICA, TRIES, Trial, Try

TRIED_BY = (requests, files, tools, secured, logs)
"""The modules with tries, in the order in which they run. The tries of the last one break the cluster."""

State = Literal["works", "missing", "absent", "untried"]
"""``absent``: this build is not expected to have it."""


class Ended(HarnessError):
    """A node of a cluster that had started has ended by itself."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The state of one dependency in one mode.

    :ivar seen: what the try saw, or why the dependency is missing
    """

    dependency: Dependency
    mode: Mode
    state: State
    seen: str

    def to_json(self) -> dict[str, object]:
        """As ``--json`` has it."""
        return {
            "id": self.dependency.id,
            "kind": self.dependency.kind,
            "what": self.dependency.what,
            "mode": str(self.mode),
            "state": self.state,
            "seen": self.seen,
            "needed_by": list(self.dependency.needed_by),
            "skips": self.dependency.skips,
            "without": self.dependency.without,
        }


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The result of a probe of one build.

    :ivar causes: for each mode in which no cluster starts, or a node ends as it is tried, why
    :ivar took_s: the seconds that each mode took
    """

    kafka: str
    sha256: str
    found: Sequence[Found]
    causes: dict[Mode, str]
    took_s: dict[Mode, float]

    @property
    def exit_code(self) -> int:
        """0: all works; 2: something is missing; 3: the build cannot be run in any mode."""
        if len(self.causes) == len(self.took_s):
            return EXIT_HARNESS
        return EXIT_INCONCLUSIVE if self.missing else EXIT_VALID

    @property
    def missing(self) -> list[Found]:
        """The dependencies that the build should have and lacks."""
        return [each for each in self.found if each.state == "missing"]

    def to_json(self) -> dict[str, object]:
        """As ``--json`` has it."""
        return {
            "schema": 1,
            "kafka": self.kafka,
            "sha256": self.sha256,
            "modes": {
                str(mode): {"starts": mode not in self.causes, "cause": self.causes.get(mode), "took_s": round(took, 1)}
                for mode, took in self.took_s.items()
            },
            "leans": [each.to_json() for each in self.found],
            "exit_code": self.exit_code,
        }


def probe(builds: Builds, say: Callable[[str], None]) -> Probed:
    """Try each mode of a build in turn.

    What is missing on a cluster that starts is tried once more, on another one: a time-out on a crowded machine is no
    lack of the build.

    :raises EnvironmentLacks: this machine cannot run a cluster
    """
    found: list[Found] = []
    causes: dict[Mode, str] = {}
    took: dict[Mode, float] = {}
    for mode in builds.modes():
        distribution = builds.of(mode, say)
        say(f"Kafka {distribution.version}, mode {mode}")
        began = time.monotonic()
        of_mode, cause = _on_a_cluster(distribution, mode)
        if cause is None and (missing := sum(each.state == "missing" for each in of_mode)):
            say(f"{missing} of {len(of_mode)} are missing; jbod tries again on another cluster")
            again, failed = _on_a_cluster(distribution, mode)
            of_mode = of_mode if failed else [_best(*both) for both in zip(of_mode, again, strict=True)]
        if cause is not None:
            causes[mode] = cause
        found += of_mode
        took[mode] = time.monotonic() - began
    return Probed(kafka=str(distribution.version), sha256=distribution.sha256, found=found, causes=causes, took_s=took)


def _best(first: Found, second: Found) -> Found:
    """The one that is not missing, if there is one."""
    if first.state != "missing" or second.state == "missing":
        return first
    return replace(second, seen=f"{second.seen} (at the second try)")


def _on_a_cluster(distribution: Distribution, mode: Mode) -> tuple[list[Found], str | None]:
    """Try all dependencies on a new cluster; also returns the cause if it did not start, or if a node ended.

    :raises EnvironmentLacks: this machine cannot run a cluster
    """
    with scratch("probe") as record_dir:
        try:
            return _tried(distribution, mode, record_dir), None
        except EnvironmentLacks:
            raise
        except JbodError as error:
            cause = cause_of(record_dir, error)
            if isinstance(error, Ended):
                cause = f"{error}; {cause}"
            return [_start(mode, "missing", cause)], cause
        finally:
            end_tools()


def _start(mode: Mode, state: State, seen: str) -> Found:
    [dependency] = [each for each in DEPENDENCIES if each.id == "start"]
    return Found(dependency=dependency, mode=mode, state=state, seen=seen)


def _tried(distribution: Distribution, mode: Mode, record_dir: Path) -> list[Found]:
    """Try all dependencies in one mode.

    :raises JbodError: no cluster starts
    """
    began = time.monotonic()
    cluster = boot(
        ClusterSpec(mode=mode, brokers=1, log_dirs=3, overrides=ONE_REPLICA),
        distribution,
        run_id=f"probe-{secrets.token_hex(3)}",
        record_dir=record_dir,
        journal=Journal(None),
    )
    found = {"start": _start(mode, "works", f"in {time.monotonic() - began:.1f} s")}
    try:
        trial = Trial(cluster=cluster)
        due = {
            each.id: each
            for each in DEPENDENCIES
            if each.tried and mode in each.modes and distribution.version in each.builds
        }
        for id, attempt in in_order():
            if id in due:
                found[id] = _try(due[id], mode, lambda attempt=attempt: attempt(trial))  # type: ignore[misc]
                _check_alive(trial, due[id])
    finally:
        cluster.stop()
    return [
        found.get(dependency.id) or _not_tried(dependency, mode)
        for dependency in DEPENDENCIES
        if mode in dependency.modes
    ]


def in_order() -> list[tuple[str, Try]]:
    """Every try with the id of its dependency, module by module."""
    return [(id, attempt) for by in TRIED_BY for id, attempt in TRIES.items() if attempt.__module__ == by.__name__]


def _check_alive(trial: Trial, dependency: Dependency) -> None:
    """No node has ended by itself; otherwise nothing more can be tried.

    :raises Ended: a node ended during this try
    """
    for node in (*trial.cluster.quorum_nodes, trial.broker.node):
        try:
            node.check_alive()
        except (NodeDied, PromiseBroken) as error:
            raise Ended(f"{node.spec.name} ended as this was tried: {dependency.what}") from error


def _not_tried(dependency: Dependency, mode: Mode) -> Found:
    if not dependency.tried:
        return Found(dependency=dependency, mode=mode, state="untried", seen=UNTRIED)
    return Found(dependency=dependency, mode=mode, state="absent", seen=f"comes with Kafka {dependency.builds}")


def _try(dependency: Dependency, mode: Mode, attempt: Callable[[], str]) -> Found:
    """An error, also one of jbod's own reader, means that the build does not have it as the suites need it."""
    try:
        return Found(dependency=dependency, mode=mode, state="works", seen=attempt())
    except JbodError as error:
        return Found(dependency=dependency, mode=mode, state="missing", seen=str(error))
    except Exception as error:
        return Found(dependency=dependency, mode=mode, state="missing", seen=f"{type(error).__name__}: {error}")


# --- why it doesn't start ---------------------------------------------------------------------------------------------

_JVM = re.compile(r"^(Error: .*|Unrecognized .*|Exception in thread .*|Caused by: .*|.*Could not create the Java.*)$")


def cause_of(record_dir: Path, error: JbodError) -> str:
    """Why a cluster does not start, in one line.

    That is the last error in a node's log with its cause, or the JVM's output, or else what was waited for.
    """
    for node in sorted((record_dir / "brokers").glob("*")):
        errors = [line.text for line in BrokerLog(node / LOG).lines() if line.level in ("ERROR", "FATAL")]
        name = f"broker {node.name}" if node.name.isdecimal() else node.name
        if errors:
            return f"{name}: {_with_cause(errors[-1].splitlines())}"
        files = [node / each for each in (LOG, STDOUT) if (node / each).exists()]
        said = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        if complaints := [line for line in said if _JVM.match(line)]:
            return f"{name}: {_with_cause(complaints)}"
    return str(error).partition("\n")[0]


def _with_cause(lines: Iterable[str]) -> str:
    """The first line, and the last cause or exception below it."""
    first, *more = lines
    causes = [line.strip() for line in more if re.match(r"(Caused by: |[\w.$]+(Exception|Error)\b)", line.strip())]
    return "; ".join([first.strip(), *causes[-1:]])
