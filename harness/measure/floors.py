"""The least load that a case needs to show anything, and the check that it was reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Floors:
    """The least load that a case needs to show anything; part of a scenario's spec.

    :ivar faults: the number of proven faults that struck while a pair ran
    :ivar before: records acked before each of these faults
    :ivar during: records acked, and records read, while each of these faults was in force; not for faults that may
        block
        clients
    """

    faults: int = 1
    before: int = 100
    during: int = 100


DEFAULT_FLOORS = Floors()


def shortfalls(entries: Sequence[Mapping[str, Any]], floors: Floors) -> list[str]:
    """Return what was below the floors, a sentence each; empty if the case has shown something.

    :param entries: as :func:`harness.measure.fault_costs.measure_faults` returns them
    """
    struck = [entry for entry in entries if entry["proven"] and entry["acked_before"] is not None]
    found = []
    if len(struck) < floors.faults:
        found.append(f"{len(struck)} proven faults struck while a pair ran, at least {floors.faults} wanted")
    for entry in struck:
        during = 0 if entry.get("may_hold_up_clients") else floors.during
        for count, floor, what in (
            (entry["acked_before"], floors.before, "acked before"),
            (entry["acked_during"], during, "acked during"),
            (entry["read_during"], during, "read during"),
        ):
            if count < floor:
                found.append(
                    f"{count} records were {what} {entry['name']} on {entry['target']}, at least {floor} wanted"
                )
    return found
