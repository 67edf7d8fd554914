"""What this machine can do, found out by doing it.

Each ability has a probe (:mod:`harness.host.probes`). A probe does not guess from kernel versions or group memberships:
containers, security modules and mount options make such guesses wrong.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from harness.errors import JbodError, UsageError
from harness.host.probes import PROBES


@dataclass(frozen=True, kw_only=True)
class Ability:
    """One thing that the machine can do, or can't.

    :ivar name: short and stable, such as "loop mounts"; faults list the abilities that they need by this name
    :ivar found: what the probe saw, for people
    :ivar needed_for: what doesn't work without it
    :ivar fix: a command or a sentence that brings it
    :ivar required: nothing at all runs without it
    """

    name: str
    present: bool
    found: str
    needed_for: str
    fix: str
    required: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.found} ({self.fix})"


def abilities(names: Collection[str] | None = None) -> tuple[Ability, ...]:
    """Probe abilities side by side; all of them take about a second.

    :param names: only these and the required ones; None for all
    """
    wanted = [name for name, probe in PROBES.items() if names is None or name in names or probe.required]
    if any(PROBES[name].asks_docker for name in wanted):
        import harness.host.engine  # noqa: F401 - Docker's SDK may deadlock if two threads import it
    with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
        return tuple(pool.map(ability, wanted))


@functools.cache
def ability(name: str) -> Ability:
    """Return one ability; the first call probes it, later calls return the same result.

    :raises UsageError: there is no ability of that name
    """
    probe = PROBES.get(name)
    if probe is None:
        raise UsageError(f"there is no ability {name!r}; there are: {', '.join(PROBES)}")
    try:
        present, found = (False, "you are not root") if probe.as_root and os.geteuid() else probe.look()
    except JbodError as error:
        present, found = False, str(error)
    except OSError as error:
        present, found = False, f"{error.strerror}: {error.filename}"
    about = {"needed_for": probe.needed_for, "fix": probe.fix}
    return Ability(name=name, present=present, found=found, required=probe.required, **about)


def doctor_json() -> dict[str, object]:
    """What ``jbod doctor --json`` prints: the abilities, and whether all required ones are present."""
    found = abilities()
    return {
        "schema": 1,
        "able": all(each.present for each in found if each.required),
        "abilities": [asdict(each) for each in found],
    }
