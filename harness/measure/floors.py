"""The least load that a case needs to show anything, and the check that it was reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.fault_costs import FaultCosts


@dataclass(frozen=True, kw_only=True)
class Floors:
    """The least load that a case needs to show anything; part of a scenario's spec.

    :ivar faults: the number of proven faults that struck while a pair ran
    :ivar before: records acked before each of these faults
    :ivar during: records acked, and records read, while each of these faults was in force; 0 if clients must make no
        progress. A fault with ``may_hold_up_clients`` has no such floor
    """

    faults: int = 1
    before: int = 100
    during: int = 100


DEFAULT_FLOORS = Floors()


def shortfalls(faults: Sequence[FaultCosts], floors: Floors) -> list[str]:
    """Return what was below the floors, a sentence each; empty if the case has shown something."""
    struck = [fault for fault in faults if fault.proven and fault.acked_before is not None]
    found = []
    if len(struck) < floors.faults:
        found.append(f"{len(struck)} proven faults struck while a pair ran, at least {floors.faults} wanted")
    for fault in struck:
        during = 0 if fault.may_hold_up_clients else floors.during
        for count, floor, what in (
            (fault.acked_before, floors.before, "acked before"),
            (fault.acked_during, during, "acked during"),
            (fault.read_during, during, "read during"),
        ):
            if count is not None and count < floor:
                found.append(f"{count} records were {what} {fault.name} on {fault.target}, at least {floor} wanted")
    return found
