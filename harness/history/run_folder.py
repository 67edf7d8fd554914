"""The records that a run folder stores as JSON: ``run.json`` and ``verdict.json``.

A file of an older version, or of a case that was cut off, lacks fields. A field that is absent or null has its default.
Fields that no reader needs are not here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.crowding import CrowdedTime
from harness.errors import HarnessError, UsageError
from harness.kafka.builds import BuildRecord

T = TypeVar("T")

VERDICT_FILE = "verdict.json"
"""The judge's verdict in a run folder; missing if the case ended before the judge."""


@dataclass(frozen=True, kw_only=True)
class OutcomeRecord:
    """How a case ended."""

    verdict: str = "error"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class OwnVersion:
    """The version of the harness that ran a case.

    :ivar revision: of the checkout; None if jbod was installed
    """

    version: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.version if self.revision is None else f"{self.version} (revision {self.revision})"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """``run.json``: what ran, on what, and how it ended.

    :ivar started_at: ISO 8601 with the time zone
    :ivar file: the test file, if it is outside the suites
    :ivar served: the ids of the cases that the cluster had served before
    :ivar schedule: the random schedule that was played; None for other cases
    :ivar holds: the values of ``--hold``
    :ivar profile: the name of its profile (:mod:`harness.cluster.profile`)
    :ivar settings: the broker properties of ``--set``
    :ivar listener_security: what protected the listeners, by the option of that name
    :ivar steps_done: how many of its ``steps`` were done
    :ivar outcome: None if the case never ended
    :ivar jbod: the version of the harness; None in older files
    :ivar crowding: how crowded the machine was; None if the case never ended, and in older files
    :ivar deviations: None if unknown, as for a case that never ended
    """

    case: str
    kip: int
    mode: str
    seed: int
    started_at: str
    plan: str = ""
    issue: str | None = None
    nodeid: str = ""
    file: str | None = None
    run_token: str = ""
    host: Mapping[str, object] = field(default_factory=dict)
    kafka: BuildRecord = field(default_factory=BuildRecord)
    upgraded_from: BuildRecord | None = None
    backend: str | None = None
    served: Sequence[str] = ()
    schedule: Mapping[str, object] | None = None
    holds: Sequence[str] = ()
    profile: str = "fast"
    settings: Mapping[str, str] = field(default_factory=dict)
    listener_security: str = "plaintext"
    steps_done: int = 0
    steps: int = 0
    outcome: OutcomeRecord | None = None
    faults: Sequence[Mapping[str, object]] = ()
    deviations: Sequence[Mapping[str, object]] | None = None
    errors_logged: Sequence[Mapping[str, object]] = ()
    measured: Mapping[str, int | float] = field(default_factory=dict)
    jbod: OwnVersion | None = None
    crowding: CrowdedTime | None = None


Example = Mapping[str, str | int | None]


@dataclass(frozen=True, kw_only=True)
class AnomalyRecord:
    """All findings of one kind in ``verdict.json``: how many, and the first examples."""

    kind: str
    count: int
    examples: Sequence[Example] = ()


@dataclass(frozen=True, kw_only=True)
class VerdictRecord:
    """``verdict.json``: what the judge found. Files of old versions have no run id."""

    verdict: str
    anomalies: Sequence[AnomalyRecord]
    run_id: str | None = None


def check_folder(path: Path, what: str = "run folder") -> None:
    """Check that a folder that the user named can be read.

    :param what: the kind of folder, for the error
    :raises UsageError: there is nothing at this path
    :raises HarnessError: it is a file, or this user cannot read it
    """
    try:
        if not path.exists():
            raise UsageError(f"no such {what}: {path}")
        is_folder = path.is_dir()
    except OSError as error:
        raise HarnessError(f"the {what} {path} can't be read: {error.strerror}") from error
    if not is_folder:
        raise HarnessError(f"{path} is a file, not a {what}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise HarnessError(f"the {what} {path} can't be read: permission denied")


def read_run_json(run_dir: Path) -> RunRecord:
    """Read ``run.json``.

    :raises UsageError: there is no such run folder
    :raises HarnessError: the path is a file, or ``run.json`` is missing or damaged
    """
    return _read(run_dir, RunRecord)


def read_outcome(run_dir: Path) -> OutcomeRecord | None:
    """Read how a case ended; None if it never ended, or if another tool wrote ``run.json``.

    :raises UsageError, HarnessError: as :func:`read_run_json`
    """
    return _read(run_dir, _Ending).outcome


@dataclass(frozen=True, kw_only=True)
class _Ending:
    outcome: OutcomeRecord | None = None


def _read(run_dir: Path, record: type[T]) -> T:
    check_folder(run_dir)
    path = run_dir / "run.json"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise HarnessError(f"{path} is missing: {run_dir} is not a run folder") from error
    except (OSError, ValueError) as error:
        raise HarnessError(f"{path} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise HarnessError(f"{path} is no JSON object")
    try:
        return msgspec.convert({name: value for name, value in content.items() if value is not None}, record)
    except msgspec.ValidationError as error:
        raise HarnessError(f"{path} does not say what ran: {error}") from error
