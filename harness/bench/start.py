"""How long a container cluster takes to be ready, beside the same cluster of local processes."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.cluster import boot
from harness.fast_starts import prepare_fast_starts
from harness.journal import Journal
from harness.machine.host import ability
from harness.releases.distribution import Distribution
from harness.releases.versions import Mode
from harness.spec import ClusterSpec

NEEDS = ("docker", "compose")
_COMPARED = ("process", "docker")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One round: seconds from nothing to three brokers that all see each other, images and class data made before."""

    process_s: float
    container_s: float

    @property
    def ratio(self) -> float:
        """How many times as long containers took."""
        return self.container_s / self.process_s


def lacking() -> str:
    """Why containers can't be measured here; empty where they can."""
    return "; ".join(f"{name}: {ability(name).found}" for name in NEEDS if not ability(name).present)


def compare_starts(
    distribution: Distribution, mode: Mode, scratch: Path, rounds: int, say: Callable[[str], None]
) -> tuple[Start, ...]:
    """Start both in turn, as often as said, and take them away."""
    for backend in _COMPARED:
        prepare_fast_starts(distribution, mode, backend, say)
    found = []
    for number in range(rounds):
        say(f"start {number + 1} of {rounds}: as processes, then in containers")
        times = {backend: _ready_s(backend, distribution, mode, scratch) for backend in _COMPARED}
        found.append(Start(process_s=times["process"], container_s=times["docker"]))
    return tuple(found)


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


def median_ratio(starts: tuple[Start, ...]) -> float | None:
    """Of all rounds; None where there were none."""
    return statistics.median(each.ratio for each in starts) if starts else None
