"""The options of a run, declared once for both ``jbod`` and the pytest plugin.

Both check the form of a value by :meth:`RunOption.check`, and so give the same error message. All other checks are
pytest's: ``jbod`` passes the values on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import pytest

from harness.cluster.profile import FAST, PROFILES
from harness.errors import UsageError
from harness.kafka.security import ListenerSecurity
from harness.runner import hold_option, set_option
from harness.runner.pausing import MOMENTS


class Parsing(TypedDict, total=False):
    """Arguments of pytest's ``addoption``, in the sense of ``argparse``."""

    action: str
    default: object
    type: Callable[[str], object]
    choices: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class RunOption:
    """An option of a run."""

    name: str
    metavar: str
    help: str
    parsing: Parsing = field(default_factory=Parsing)

    @property
    def repeats(self) -> bool:
        """Whether the option may be given several times."""
        return self.parsing.get("action") == "append"

    @property
    def is_flag(self) -> bool:
        """Whether the option has no value."""
        return self.parsing.get("action") == "store_true"

    def check(self, text: str) -> None:
        """Check the form of a value.

        :raises UsageError: it has another form
        """
        choices, convert = self.parsing.get("choices"), self.parsing.get("type")
        if choices is not None and text not in choices:
            raise UsageError(f"{self.name} {text}: choose {' or '.join(choices)}")
        if convert is not None:
            try:
                convert(text)
            except pytest.UsageError as error:
                raise UsageError(str(error)) from error


def _option(name: str, metavar: str, help: str, **parsing: Unpack[Parsing]) -> RunOption:
    return RunOption(name=name, metavar=metavar, help=help, parsing=parsing)


def _choice(name: str, choices: Sequence[str], help: str, default: str | None = None) -> RunOption:
    return _option(name, "|".join(choices), help, choices=choices, default=default)


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise pytest.UsageError(f"--seed {text}: not a whole number") from None


def _schedules(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise pytest.UsageError(f"--schedules {text}: not a whole number above 0")
    return int(text)


def _stop_after(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise pytest.UsageError(f"--stop-after {text}: not a number of seconds")
    return seconds


KAFKA = _option(
    "--kafka", "VERSION", "A Kafka release from Maven; also latest or latest-3.9; jbod run also takes several: A,B."
)
BUILD = (
    KAFKA,
    _option("--kafka-home", "DIR", "An unpacked Kafka build (bin/ libs/ config/), or a source tree after gradlew jar."),
    _option("--kafka-tarball", "FILE", "A Kafka tarball, such as a release candidate."),
    _option("--mode", "zk|kraft", "Only this metadata mode."),
)
PROBE = (
    _option(
        "--probe",
        "FILE",
        "The result of jbod probe --json FILE for the build: cases that need what the build lacks are skipped.",
        action="append",
        default=[],
    ),
)
_OF_ALL = (
    _option("--backend", "process|docker", "Where nodes run: processes (default) or containers.", default="process"),
    _option("--seed", "N", "Seed of all random choices.", type=_seed),
)
OUTCOME = (
    _option("--spark-master", "URL", "A Spark master other than a local one."),
    _option("--runs-dir", "DIR", "Where run folders go (default: reports/runs).", default="reports/runs"),
    _choice(
        "--keep-cluster",
        ("never", "on-failure", "always"),
        "When to keep a case's cluster running after the case (default: never).",
        default="never",
    ),
    _choice(
        "--clusters",
        ("shared", "own"),
        "Reuse clusters for several cases (default), or give each case its own.",
        default="shared",
    ),
    _choice("--pause-at", [*MOMENTS], "Wait for Enter after each fault is injected, or before it is healed."),
    _option("--json", "FILE", "Write the results as JSON."),
    _option(
        "--no-skips", "", "A skipped case counts as exit code 2 (inconclusive).", action="store_true", default=False
    ),
)
SCHEDULE = (
    _option(
        "--schedules",
        "N",
        "Number of random schedules for each mode, for the selector 'schedules' (default: 1).",
        type=_schedules,
        default=1,
    ),
    _option("--schedule", "FILE", "Play the schedule in this file, such as a run.json.", action="append", default=[]),
    _option(
        "--holds",
        "",
        "Random schedules hold a thread of a broker during every second step.",
        action="store_true",
        default=False,
    ),
    _option("--stop-after", "SECONDS", "Begin no case after this many seconds.", type=_stop_after),
)
HOLDS = (
    _option(
        "--hold",
        "POINT@WHERE",
        "Hold threads at a point while faults are in force, in the node that is struck, the others or the controllers; "
        "POINT@WHERE/SECONDS for how long (default: 0.5); jbod points lists the points.",
        action="append",
        default=[],
        type=hold_option.checked,
    ),
)
SETTINGS = (
    _choice(
        "--profile",
        [*PROFILES],
        "The settings that all cases have in common: fast ones (default), or production: Kafka's defaults for "
        "sessions and checkpoints, min.insync.replicas=2, segments that roll, compressed records. Cases that rely on "
        "the fast ones are skipped.",
        default=FAST.name,
    ),
    _option(
        "--set",
        "KEY=VALUE",
        "A property of every broker and KRaft controller. Cases whose scenario needs another value are skipped; a "
        "topic's own config wins over it. The run is in no ledger.",
        action="append",
        default=[],
        type=set_option.checked,
    ),
    _choice(
        "--listener-security",
        [*ListenerSecurity],
        "What protects all listeners: nothing (default); TLS; or TLS, users with SCRAM passwords, and ACLs. The run is "
        "in no ledger.",
        default=ListenerSecurity.PLAINTEXT,
    ),
)
RUN = (*BUILD, *PROBE, *_OF_ALL, *OUTCOME, *SCHEDULE, *HOLDS, *SETTINGS)
"""All options, in the order of ``jbod run --help``."""
