"""Compares how long a cluster takes to start in containers and as local processes, in each metadata mode.

A round starts both, one after the other, and takes their ratio, so that the load of the machine affects both. The order
alternates from round to round. The median of a mode may be at most :data:`LIMIT`.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.cluster import boot
from harness.cluster.fast_starts import prepare_fast_starts
from harness.cluster.spec import ClusterSpec
from harness.errors import EnvironmentLacks
from harness.host.abilities import ability
from harness.journal import Journal
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode

NEEDS = ("docker", "compose")
LIMIT = 1.5
"""Containers may take this many times as long as processes."""
_COMPARED = ("process", "docker")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One round: seconds until three brokers all see each other. Images and class data exist beforehand."""

    mode: Mode
    process_s: float
    container_s: float

    @property
    def ratio(self) -> float:
        """The seconds of containers divided by those of processes."""
        return self.container_s / self.process_s


@dataclass(frozen=True, kw_only=True)
class Starts:
    """All rounds, or the reason why there are none.

    :ivar skipped: why containers could not be measured, at all or in one of the modes; else empty
    """

    rounds: Sequence[Start] = ()
    skipped: str = ""

    @property
    def ratios(self) -> Mapping[Mode, float]:
        """The median ratio of each mode."""
        modes = dict.fromkeys(each.mode for each in self.rounds)
        return {mode: statistics.median(each.ratio for each in self.rounds if each.mode is mode) for mode in modes}

    @property
    def over(self) -> Sequence[Mode]:
        """The modes in which containers take longer than :data:`LIMIT` allows."""
        return [mode for mode, ratio in self.ratios.items() if ratio > LIMIT]


def compare_starts(
    builds: Mapping[Mode, Distribution], scratch: Path, rounds: int, say: Callable[[str], None]
) -> Starts:
    """Start and stop both clusters in turn, in each mode, `rounds` times. Images and class data are made before that.

    :param builds: the build for each mode
    """
    if missing := "; ".join(f"{name}: {ability(name).found}" for name in NEEDS if not ability(name).present):
        return Starts(skipped=missing)
    try:
        fast = {
            mode: {backend for backend in _COMPARED if prepare_fast_starts(build, mode, backend, say)}
            for mode, build in builds.items()
        }
    except EnvironmentLacks as error:  # no image
        return Starts(skipped=str(error))
    uneven = [f"{mode}: only {' '.join(of)} has fast starts" for mode, of in fast.items() if len(of) == 1]
    even = {mode: build for mode, build in builds.items() if len(fast[mode]) != 1}
    found = []
    for number in range(rounds):
        for mode, build in even.items():
            order = _COMPARED if number % 2 == 0 else _COMPARED[::-1]
            say(f"start {number + 1} of {rounds}, {mode}: {', then '.join(order)}")
            times = {backend: _ready_s(backend, build, mode, scratch) for backend in order}
            found.append(Start(mode=mode, process_s=times["process"], container_s=times["docker"]))
    return Starts(rounds=found, skipped="; ".join(uneven))


def _ready_s(backend: str, distribution: Distribution, mode: Mode, scratch: Path) -> float:
    run = f"start-{secrets.token_hex(3)}"
    began = time.monotonic()
    cluster = boot(
        ClusterSpec(mode=mode, backend=backend),
        distribution,
        run_id=run,
        record_dir=scratch / run,
        journal=Journal(None),
    )
    seconds = time.monotonic() - began
    cluster.stop()
    return seconds
