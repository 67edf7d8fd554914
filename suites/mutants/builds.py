"""Mutated builds: a folder for ``--kafka-home`` with the jars of a build, and first of all the jar of a mutant."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.host.cache import cache_dir, locked, make_open_dir
from harness.host.scratch import scratch
from harness.kafka.bytecode.change import Change
from harness.kafka.bytecode.engine import Order, engine_sum, make_jars, words_of
from harness.kafka.distribution import MUTANT_JAR, Distribution
from harness.kafka.versions import Mode
from suites.mutants.mutant import Mutant

_KEPT_S = 7 * 86400.0
"""A build that was not used for so long is removed."""


@dataclass(frozen=True, kw_only=True)
class MutatedBuild:
    """A mutant of a build in one mode.

    :ivar home: the folder for ``--kafka-home``; None if it was not made
    :ivar problem: why it was not made; None if the mutant has no change for this build and mode
    """

    mutant: Mutant
    mode: Mode
    home: Path | None = None
    problem: str | None = None

    @property
    def applies(self) -> bool:
        """Whether the mutant is for this build and mode."""
        return self.home is not None or self.problem is not None


def make_builds(
    distribution: Distribution, mutants: Sequence[Mutant], modes: Sequence[Mode], say: Callable[[str], None]
) -> list[MutatedBuild]:
    """Make the mutants of a build that the cache does not have, and remove those that were not used lately.

    :raises EnvironmentLacks: there is no JDK, or Javassist can't be fetched
    :raises HarnessError: the engine fails, or the cache can't be written
    """
    planned = {
        (mutant.id, mode): changes
        for mutant in mutants
        for mode in modes
        if (changes := mutant.changes_for(distribution.version, mode))
    }
    home_of = {
        key: home_for(key[0], distribution, [words_of(change) for change in changes])
        for key, changes in planned.items()
    }
    with builds_locked() as root:
        _remove_old(root, keep={*home_of.values()})
        missing = {home_of[key]: (key[0], changes) for key, changes in planned.items() if not home_of[key].exists()}
        problems = _make(distribution, missing, say)
        for home in home_of.values():
            if home.exists():
                os.utime(home)
    made = []
    for mutant in mutants:
        for mode in modes:
            wanted = home_of.get((mutant.id, mode))
            problem = None if wanted is None else problems.get(wanted)
            made.append(
                MutatedBuild(mutant=mutant, mode=mode, home=None if problem else wanted, problem=problem or None)
            )
    return made


def home_for(id: str, distribution: Distribution, content: object) -> Path:
    """The folder of a changed build in the cache.

    :param content: what decides how it is changed, as JSON
    """
    sum_ = hashlib.sha256(json.dumps([distribution.sha256, engine_sum(), content]).encode()).hexdigest()
    return _root() / f"{id}-{distribution.version}-{sum_[:12]}"


@contextmanager
def builds_locked() -> Iterator[Path]:
    """Inside the block, no other process makes or removes changed builds; yields their folder.

    :raises HarnessError: the cache can't be written
    """
    root = _root()
    try:
        make_open_dir(root)
        with locked(root / ".lock"):
            yield root
    except OSError as error:
        raise HarnessError(f"the cache can't be written: {error.filename}: {error.strerror}") from error


def _root() -> Path:
    return cache_dir() / "mutants"


def _make(
    distribution: Distribution, missing: Mapping[Path, tuple[str, Sequence[Change]]], say: Callable[[str], None]
) -> dict[Path, str]:
    """Make these homes; return why one can't be made, by home."""
    with scratch("mutants") as folder:
        orders = {
            home: Order(id=id, changes=tuple(changes), jar=folder / home.name / MUTANT_JAR)
            for home, (id, changes) in missing.items()
        }
        answers = make_jars(distribution.class_path, [*orders.values()], say)
        for home, order in orders.items():
            if not answers[order.jar]:
                link_build(distribution, order.jar, home)
    return {home: answers[order.jar] for home, order in orders.items()}


def link_build(distribution: Distribution, jar: Path, home: Path) -> None:
    """Make a home of links to the build's jars, and a copy of this jar; it appears whole or not at all."""
    made = home.with_name(f".{home.name}.new-{os.getpid()}")
    libs = made / "libs"
    try:
        libs.mkdir(parents=True)
        for each in distribution.class_path:
            try:
                os.link(each.resolve(), libs / each.name)
            except OSError:  # another file system, or a file of another user
                (libs / each.name).symlink_to(each.resolve())
        if distribution.scripts is not None:
            (made / "bin").symlink_to(distribution.scripts.resolve())
        shutil.copyfile(jar, libs / MUTANT_JAR)
        made.chmod(0o755)
        libs.chmod(0o755)
        (libs / MUTANT_JAR).chmod(0o644)
        made.rename(home)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove_old(root: Path, keep: set[Path]) -> None:
    now = time.time()
    for home in root.iterdir():
        if home in keep or home.name == ".lock":
            continue
        with suppress(FileNotFoundError):
            if now - home.stat().st_mtime > _KEPT_S:
                shutil.rmtree(home, ignore_errors=True)
