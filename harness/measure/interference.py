"""What a case held or changed inside a node on purpose, and how often that code ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from harness.events import Event, HoldOver
from harness.kafka.distribution import MUTANT_SAYS

Kind = Literal["hold", "throw", "mutant"]
_REACHED = re.compile(rf"{MUTANT_SAYS}(\S+) reached (\d+) times".encode())


@dataclass(frozen=True, kw_only=True)
class Interference:
    """Something that was held, thrown or changed inside a broker.

    :ivar point: its id, such as that of a mutant
    :ivar reached: how often it was reached, at least; 0 if never
    """

    kind: Kind
    point: str
    reached: int = 0

    @classmethod
    def from_json(cls, entry: Mapping[str, object]) -> Interference:
        """Return the entry that run.json has.

        :raises msgspec.ValidationError: it has other fields or types
        """
        return msgspec.convert(entry, cls)


def holds_in(events: Iterable[Event]) -> tuple[Interference, ...]:
    """Return the points at which threads were held, with the number of threads."""
    held = Counter(event.point for event in events if isinstance(event, HoldOver))
    return tuple(Interference(kind="hold", point=point, reached=number) for point, number in sorted(held.items()))


def mutant_in(run_dir: Path, mutant: str) -> Interference:
    """Return how often the nodes and tools of a run folder ran the code of a mutant, at least.

    Each process prints its count at 1, 10, 100 and so on, so the sum of the last counts is a lower bound. The journal
    has the lines of tools.
    """
    reached = 0
    for log in (*run_dir.glob("brokers/*/broker.log"), *run_dir.glob("events.jsonl")):
        last = 0
        for name, count in _REACHED.findall(log.read_bytes()):
            if name.decode(errors="replace") != mutant:
                continue
            if int(count) == 1:  # another process, after a restart
                reached, last = reached + last, 0
            last = int(count)
        reached += last
    return Interference(kind="mutant", point=mutant, reached=reached)
