"""How long a container cluster takes to be ready, beside the same cluster of local processes, in each metadata mode.

The two of a round follow each other, so that the machine's mood is in both, each first in every second round, and what
is compared is their ratio; a mode's median may be :data:`LIMIT` at most.
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
"""How many times as long containers may take."""
_COMPARED = ("process", "docker")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One round: seconds from nothing to three brokers that all see each other, images and class data made before."""

    mode: Mode
    process_s: float
    container_s: float

    @property
    def ratio(self) -> float:
        """How many times as long containers took."""
        return self.container_s / self.process_s


@dataclass(frozen=True, kw_only=True)
class Starts:
    """All rounds, or why there are none.

    :ivar skipped: what keeps containers from being measured here, or in one of the modes; empty where they were, or
        nobody asked
    """

    rounds: Sequence[Start] = ()
    skipped: str = ""

    @property
    def ratios(self) -> Mapping[Mode, float]:
        """Each mode's median."""
        modes = dict.fromkeys(each.mode for each in self.rounds)
        return {mode: statistics.median(each.ratio for each in self.rounds if each.mode is mode) for mode in modes}

    @property
    def over(self) -> Sequence[Mode]:
        """The modes in which containers take longer than they may."""
        return [mode for mode, ratio in self.ratios.items() if ratio > LIMIT]


def compare_starts(
    builds: Mapping[Mode, Distribution], scratch: Path, rounds: int, say: Callable[[str], None]
) -> Starts:
    """Start both in turn, in each mode, as often as said, and take them away; images and all are made before."""
    if missing := "; ".join(f"{name}: {ability(name).found}" for name in NEEDS if not ability(name).present):
        return Starts(skipped=missing)
    try:
        fast = {
            mode: {backend for backend in _COMPARED if prepare_fast_starts(build, mode, backend, say)}
            for mode, build in builds.items()
        }
    except EnvironmentLacks as error:  # no image
        return Starts(skipped=str(error))
    uneven = [f"{mode}: fast starts could be had for {' '.join(of)} alone" for mode, of in fast.items() if len(of) == 1]
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
