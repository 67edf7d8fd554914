"""Keeps the runs of a baseline, so that the next qualification with this baseline uses them again.

A run is used again only if all that can change its verdict is equal: the case, its seed and its :data:`Conditions`. The
run.json of the run has these. The runs of each build and backend have a folder of their own, whose ``baseline.json``
lists them. New conditions replace the runs of old ones.

A qualification links the runs into its own folder when it begins, and links its new runs back when it ends. So its
folder has all that its pages need. Two qualifications at the same time wait for each other only while one of them
links; each runs what was not kept when it began.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

from harness.cluster.profile import FAST
from harness.errors import HarnessError, JbodError
from harness.history.run_folder import OwnVersion, read_run_json
from harness.host.atomic_write import write_atomically
from harness.host.cache import locked
from harness.host.facts import machine_facts
from harness.host.own_version import own_revision, own_version
from harness.kafka.builds import BuildRecord
from harness.kafka.distribution import Distribution
from harness.kafka.security import ListenerSecurity
from harness.runner import ledger
from harness.runner.set_option import values_of

FOLDER = "baselines"
_LIST = "baseline.json"
_RUNS = "runs"
_PROBE = "probe.json"
_CONTAINERS = "docker"
_UNKNOWN = "?"
_SHOWS = ("valid", "invalid")
"""The verdicts of runs that are kept. An unknown one has shown nothing, often because the machine was too busy."""

Conditions = Mapping[str, str]
"""All that can change the verdict of a case with the same seed, by name. The number of jobs does not change it."""


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """The content of ``baseline.json``.

    :ivar runs: the ledger entries of the runs
    """

    conditions: Conditions
    runs: tuple[ledger.Entry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reused:
    """The runs of earlier qualifications that a qualification uses.

    :ivar runs: the ledger entries of these runs
    :ivar why_not: why it uses no run; None if it uses some
    """

    runs: tuple[ledger.Entry, ...] = ()
    why_not: str | None = None

    def __str__(self) -> str:
        if self.why_not is not None:
            return f"no run of an earlier qualification is used: {self.why_not}"
        days = sorted({f"{entry.at:%Y-%m-%d}" for entry in self.runs})
        since = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        runs, cases = len(self.runs), len({entry.id for entry in self.runs})
        return f"reuses {_count(runs, 'run')} of {_count(cases, 'case')} from earlier qualifications of {since}"


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """The kept runs of one build on one backend.

    :ivar folder: of this build and backend
    :ivar conditions: those of runs that start now
    :ivar fresh: use no kept run, and replace those of the cases that run
    """

    folder: Path
    conditions: Conditions
    fresh: bool = False

    @classmethod
    def of(cls, root: Path, build: Distribution, backend: str, *, fresh: bool = False) -> Baselines:
        """Return the kept runs of a build on a backend.

        :param root: the folder of all baselines
        """
        record = BuildRecord(version=str(build.version), source=build.source, sha256=build.sha256)
        own = OwnVersion(version=own_version(), revision=own_revision())
        return cls(
            folder=root / f"{build.version}-{build.sha256[:12]}-{backend}",
            conditions=conditions_of(own, record, backend, machine_facts()),
            fresh=fresh,
        )

    def seed(self, cases: Collection[str], rounds: int) -> int | None:
        """Return the seed with which the next qualification can use the most kept runs; None if it can use none.

        :param cases: its cases
        :param rounds: the most rounds of a case; each has the next seed
        """
        runs, _ = self._kept_of(cases)

        def worth(seed: int) -> tuple[int, int, datetime]:
            within = [entry for entry in runs if entry.seed in range(seed, seed + rounds)]
            first = {entry.id for entry in within if entry.seed == seed}
            return len(first), len(within), max(entry.at for entry in within)

        return max({entry.seed for entry in runs}, key=worth, default=None)

    def take_probe(self, file: Path) -> None:
        """Copy what ``jbod probe`` found of the build, unless ``file`` exists."""
        if not file.exists() and self._why_none() is None:
            with suppress(OSError, HarnessError), locked(self._lock):
                if (kept := self._read()) is None or kept.conditions != self.conditions:
                    return
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, (self.folder / _PROBE).read_text())

    def take(self, cases: Collection[str], seeds: Collection[int], into: Path, own: Sequence[ledger.Entry]) -> Reused:
        """Link the runs of these cases with these seeds into a runs folder, and write its ledger.

        A run that is there since the qualification began stays if its conditions are equal. A folder that cannot be
        read or linked is no error: the cases run anew.

        :param own: the runs of the qualification itself; their cases and seeds are not taken
        """
        if self.fresh:
            shutil.rmtree(into, ignore_errors=True)
        before = [entry for entry in ledger.read(into) if self._is_equal(into / entry.run_id)]
        found, why_not = self._usable(cases, seeds)
        have = {(entry.id, entry.seed) for entry in (*own, *before)}
        new = [entry for entry in found if (entry.id, entry.seed) not in have]
        if new:
            try:
                with locked(self._lock):
                    for entry in new:
                        _link(self.folder / _RUNS / entry.run_id, into / entry.run_id)
            except (OSError, HarnessError) as error:
                new, why_not = [], str(error)
        runs = sorted([*before, *new], key=lambda entry: entry.at)
        if into.exists():
            _write_ledger(into, runs)
        if runs:
            return Reused(runs=tuple(runs))
        return Reused(why_not=why_not or "this qualification ran all of these cases itself")

    def keep(self, runs_dir: Path, probe: Path, cases: Collection[str], say: Callable[[str], None]) -> None:
        """Link the runs of a runs folder that can be used again. If that fails, a line says so, and nothing is kept.

        :param probe: what ``jbod probe`` found of the build
        :param cases: the cases of the suites; the code of others is not known
        """
        if _why_not_reusable(self.conditions) is not None:
            return
        new = [
            entry
            for entry in ledger.read(runs_dir)
            if entry.id in cases and entry.verdict in _SHOWS and self._is_equal(runs_dir / entry.run_id)
        ]
        if not new:
            return
        try:
            with locked(self._lock):
                self._add(new, runs_dir)
                write_atomically(self.folder / _PROBE, probe.read_text())
        except (OSError, HarnessError) as error:
            say(f"the baseline's runs cannot be kept: {error}")

    def _add(self, new: Sequence[ledger.Entry], runs_dir: Path) -> None:
        """Add runs to the list. If the process is killed, the old list or the new one stays, with all its folders."""
        kept = None
        with suppress(HarnessError):  # a damaged list is replaced
            kept = self._read()
        if kept is None or kept.conditions != self.conditions:
            kept = _Kept(conditions=self.conditions)
        replaced = {entry.id for entry in new} if self.fresh else set()
        folder = self.folder / _RUNS
        old = [entry for entry in kept.runs if entry.id not in replaced and (folder / entry.run_id).exists()]
        have = {(entry.id, entry.seed) for entry in old}
        runs = (*old, *(entry for entry in new if (entry.id, entry.seed) not in have))
        for entry in runs:
            _link(runs_dir / entry.run_id, folder / entry.run_id)
        content = {"schema": 1, "conditions": self.conditions, "runs": [run.to_json() for run in runs]}
        write_atomically(self.folder / _LIST, json.dumps(content, indent=1) + "\n")
        _remove_others(folder, runs)

    def _usable(self, cases: Collection[str], seeds: Collection[int]) -> tuple[list[ledger.Entry], str | None]:
        """Return the kept runs that can be used, and why there are none."""
        runs, why_none = self._kept_of(cases)
        if not runs:
            return [], why_none
        found = [entry for entry in runs if entry.seed in seeds]
        if not found:
            others = ", ".join(map(str, sorted({entry.seed for entry in runs})))
            return [], f"{self.folder} has runs with seed {others}, and this qualification has {min(seeds)}"
        found = [entry for entry in found if self._is_equal(self.folder / _RUNS / entry.run_id)]
        return found, None if found else f"the run folders in {self.folder} are missing or damaged"

    def _kept_of(self, cases: Collection[str]) -> tuple[list[ledger.Entry], str | None]:
        """Return the kept runs of these cases with the present conditions, and why there are none."""
        if (why_none := self._why_none()) is not None:
            return [], why_none
        try:
            kept = self._read()
        except HarnessError as error:
            return [], str(error)
        if kept is None:
            return [], f"{self.folder} does not exist"
        if differs := _differences(kept.conditions, self.conditions):
            return [], f"{self.folder} has runs with {differs}"
        runs = [entry for entry in kept.runs if entry.id in cases]
        return runs, None if runs else f"{self.folder} has none of these cases"

    def _why_none(self) -> str | None:
        return "--fresh" if self.fresh else _why_not_reusable(self.conditions)

    def _read(self) -> _Kept | None:
        """Return the list; None if there is none.

        :raises HarnessError: it is damaged
        """
        file = self.folder / _LIST
        try:
            return msgspec.json.decode(file.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise HarnessError(f"{file} can't be read: {error}") from error

    def _is_equal(self, run_dir: Path) -> bool:
        """Return whether a run has the present conditions. A folder that is gone or damaged has none."""
        try:
            run = read_run_json(run_dir)
        except JbodError:
            return False
        own = run.jbod or OwnVersion(version="?")
        unusual = (run.profile, run.settings, run.listener_security)
        return conditions_of(own, run.kafka, run.backend or "?", run.host, *unusual) == self.conditions

    @property
    def _lock(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.lock")


def conditions_of(
    own: OwnVersion,
    build: BuildRecord,
    backend: str,
    host: Mapping[str, object],
    profile: str = FAST.name,
    settings: Mapping[str, str] = MappingProxyType({}),
    listener_security: str = ListenerSecurity.PLAINTEXT,
) -> Conditions:
    """Return the conditions of a run.

    :param host: as in run.json (:func:`harness.host.facts.machine_facts`)
    :param profile: the name of its profile; a qualification has the fast one
    :param settings: the broker properties of ``--set``; a qualification has none
    :param listener_security: the option of that name; a qualification has none
    """
    names = {"cores": "cores", "kernel": "kernel", "python": "Python", "java": "Java", "broker_uid": "brokers of uid"}
    return {
        "jbod": str(own),
        "Kafka": f"{build.version} ({build.source}, sha256 {build.sha256})",
        "backend": backend,
        "profile": profile,
        "--set": " ".join(values_of(settings)) or "nothing",
        "--listener-security": str(listener_security),
        **{says: _UNKNOWN if host.get(name) is None else str(host[name]) for name, says in names.items()},
    }


def _why_not_reusable(conditions: Conditions) -> str | None:
    """Return why runs with these conditions must not be used again; None if they may.

    The revision names the code only if no file differs from it. The image of containers is not among the conditions.
    """
    if conditions["backend"] == _CONTAINERS:
        return "the image of containers may have changed"
    jbod = conditions["jbod"]
    if "(revision " not in jbod:
        return f"jbod {jbod} does not run from a checkout, so its revision is unknown"
    if jbod.endswith("-dirty)"):
        return f"files of jbod differ from its revision: {jbod}"
    if unknown := [name for name, value in conditions.items() if value == _UNKNOWN]:
        return f"unknown on this machine: {', '.join(unknown)}"
    return None


def _differences(then: Conditions, now: Conditions) -> str:
    """Return the first value that differs, in words; empty if none does."""
    for name in now:
        if then.get(name) != now[name]:
            return f"{name} {then.get(name, '?')}, and this is {now[name]}"
    return ""


def _link(source: Path, target: Path) -> None:
    """Copy a run folder by hard links, or else by content. It appears whole or not at all.

    A file of a run folder is replaced, never changed, so the copies do not affect each other.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.new-{os.getpid()}")
    try:
        shutil.copytree(source, made, symlinks=True, copy_function=_link_file)
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without hard links, or a file of another user
        shutil.copy2(source, target, follow_symlinks=False)


def _write_ledger(runs_dir: Path, runs: Iterable[ledger.Entry]) -> None:
    runs = [*runs]
    write_atomically(runs_dir / ledger.NAME, "".join(f"{json.dumps(entry.to_json())}\n" for entry in runs))
    _remove_others(runs_dir, runs)


def _remove_others(runs_dir: Path, runs: Iterable[ledger.Entry]) -> None:
    """Remove the run folders that are not of these runs, and what a killed process left half-way."""
    names = {entry.run_id for entry in runs}
    for path in runs_dir.iterdir():
        if path.is_dir() and path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
