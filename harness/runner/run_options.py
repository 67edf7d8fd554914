"""The options of a run, each said once: ``jbod`` hands them on to pytest, where the plugin has them by the same names.

``jbod`` checks none of their values: it is pytest that does, so that both say the same of a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.runner.pausing import MOMENTS


@dataclass(frozen=True, kw_only=True)
class RunOption:
    """One of them.

    :ivar parsing: how pytest reads it: its default, its type, what may be given
    """

    name: str
    metavar: str
    help: str
    parsing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times."""
        return self.parsing.get("action") == "append"


def _option(name: str, metavar: str, help: str, **parsing: Any) -> RunOption:
    return RunOption(name=name, metavar=metavar, help=help, parsing=parsing)


def _choice(name: str, choices: Sequence[str], help: str, **parsing: Any) -> RunOption:
    return _option(name, "|".join(choices), help, choices=choices, **parsing)


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise pytest.UsageError(f"--seed {text}: not a whole number") from None


KAFKA = _option("--kafka", "VERSION", "A Kafka release from Maven; also latest, latest-3.9; in jbod run several: A,B.")
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
        "What jbod probe --json wrote of the build: what needs something that it lacks is skipped.",
        action="append",
        default=[],
    ),
)
_OF_ALL = (
    _option("--backend", "process|docker", "What brokers run in.", default="process"),
    _option("--seed", "N", "Seed of everything that is left to chance.", type=_seed),
)
OUTCOME = (
    _option("--spark-master", "URL", "A Spark master other than a local one."),
    _option("--runs-dir", "DIR", "Where run folders go (default: reports/runs).", default="reports/runs"),
    _choice("--keep-cluster", ("never", "on-failure", "always"), "Leave the cluster standing.", default="never"),
    _choice(
        "--clusters",
        ("shared", "own"),
        "May serve one case after another (default), or one each.",
        default="shared",
    ),
    _choice("--pause-at", [*MOMENTS], "Wait there, at each fault, for Enter."),
    _option("--json", "FILE", "Write the results as JSON."),
)
SCHEDULE = (
    _option("--schedules", "N", "How many random schedules a mode, of selector 'schedules'.", type=int, default=1),
    _option("--schedule", "FILE", "Play this schedule instead.", action="append", default=[]),
    _option("--stop-after", "SECONDS", "Begin no case later than that.", type=float),
)
RUN = (*BUILD, *PROBE, *_OF_ALL, *OUTCOME, *SCHEDULE)
"""All of them, in the order of ``jbod run --help``."""
