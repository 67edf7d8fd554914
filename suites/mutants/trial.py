"""Trials: the runs of cases on a mutant or on the unchanged build, kept in a file for a later measuring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import JbodError
from harness.history.run_folder import VerdictRecord, read_run_json
from harness.host.atomic_write import write_atomically
from harness.host.own_version import described
from harness.kafka.versions import Mode
from harness.runner import ledger
from harness.runner.case_result import CaseResult
from suites.mutants.mutant import Mutant

_UP = ('"kind": "cluster.ready"', '"kind": "cluster.taken_over"')
"""In the journal of a case whose cluster came up, or had come up for an earlier case."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a case.

    :ivar anomalies: the kinds that the judge found
    :ivar reached: how often the changed code ran, at least
    :ivar came_up: whether a cluster came up; true if that is unknown
    :ivar run_dir: None if there is no run folder
    """

    case: str
    seed: int
    verdict: str
    reason: str
    anomalies: tuple[str, ...] = ()
    duration_s: float = 0.0
    reached: int = 0
    came_up: bool = True
    run_dir: str | None = None

    @classmethod
    def of(cls, result: CaseResult, seed: int) -> Trial:
        """Return the trial with this result."""
        return cls(
            case=result.case.id,
            seed=seed,
            verdict=result.verdict,
            reason=result.reason,
            anomalies=_anomalies(result.run_dir) if result.run_dir else (),
            duration_s=round(result.duration_s, 1),
            reached=sum(each.reached for each in result.interference),
            came_up=result.run_dir is None or _came_up(result.run_dir),
            run_dir=str(result.run_dir) if result.run_dir else None,
        )

    def is_red_for(self, mutant: Mutant) -> bool:
        """Whether it is invalid, and its reason or one of its anomalies has a word that belongs to the defect.

        The id of the mutant may be in a quoted log or path, and says nothing.
        """
        seen = " ".join((self.reason.replace(mutant.id, ""), *self.anomalies)).lower()
        return self.verdict == "invalid" and any(word.lower() in seen for word in mutant.reasons)


def _anomalies(run_dir: Path) -> tuple[str, ...]:
    """The kinds in ``verdict.json``; none if the judge left no verdict."""
    with suppress(OSError, msgspec.MsgspecError):
        content = msgspec.json.decode((run_dir / "verdict.json").read_bytes(), type=dict[str, Any])
        return tuple(each.kind for each in msgspec.convert(content, VerdictRecord).anomalies)
    return ()


def _came_up(run_dir: Path) -> bool:
    try:
        journal = (run_dir / "events.jsonl").read_text(encoding="utf-8")
    except OSError:
        return True
    return any(event in journal for event in _UP)


def valid_runs(runs_dir: Path, sha256: str, mode: Mode, backend: str) -> Iterator[Trial]:
    """Yield the valid runs in a runs folder of the build with this checksum, if this revision of jbod ran them."""
    for entry in ledger.read(runs_dir):
        what = (entry.verdict, entry.sha256, entry.mode, entry.backend)
        if what == ("valid", sha256, mode, backend) and _ran_by(runs_dir / entry.run_id) == described():
            run_dir = str(runs_dir / entry.run_id)
            yield Trial(
                case=entry.id, seed=entry.seed, verdict="valid", reason="", duration_s=entry.duration_s, run_dir=run_dir
            )


def _ran_by(run_dir: Path) -> str | None:
    """The version of jbod that ran a case; None if its folder is gone or damaged."""
    with suppress(JbodError):
        return str(read_run_json(run_dir).jbod)
    return None


class Trials:
    """The trials of one mutant on one build in one mode, or those of the unchanged build.

    :param file: kept there; those of another revision of jbod, or of another seed, are dropped
    :param seed: of the first run of a case
    :param fresh: drop what the file has
    """

    def __init__(self, file: Path, seed: int, *, fresh: bool = False) -> None:
        self._file = file
        self._seed = seed
        self._jbod = described()
        self.all: list[Trial] = []
        if not fresh:
            with suppress(FileNotFoundError, msgspec.MsgspecError):
                kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
                self.all = [*kept.trials] if (kept.jbod, kept.seed) == (self._jbod, seed) else []

    def of(self, case: str) -> list[Trial]:
        """The trials of a case, oldest first."""
        return [trial for trial in self.all if trial.case == case]

    def add(self, trial: Trial) -> None:
        """Add a trial, and write the file."""
        self.all.append(trial)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = _Kept(jbod=self._jbod, seed=self._seed, trials=tuple(self.all))
        write_atomically(self._file, msgspec.json.format(msgspec.json.encode(kept)).decode() + "\n")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """The content of the file."""

    jbod: str
    seed: int
    trials: tuple[Trial, ...]
