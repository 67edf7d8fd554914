"""How long to wait for what never ends on builds with a bug.

On a slow machine, a fixed time-out would take what only lasts longer for the bug. So a scenario first measures a step
that ends on every build.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from faults.targets import follower_of, leader_of
from harness.cluster.topic import Partition
from suites.reassignments import await_no_reassignment
from suites.state_check import StateCheck

LEAST_S = 6.0
TIMES = 3.0
"""What may never end gets so many times as long as the measured step, and more on a crowded machine
(:func:`harness.waiting.await_until`)."""


def patience_s(step: Callable[[], object]) -> float:
    """Do a step that ends on every build, and return how long to wait for a similar one."""
    began = time.monotonic()
    step()
    return max(LEAST_S, TIMES * (time.monotonic() - began))


def patience_to_reassign(state: StateCheck, partition: Partition) -> float:
    """Reassign a partition's follower to the third broker, and return how long to wait for another reassignment."""
    cluster, leader = state.cluster, leader_of(partition)
    [third] = cluster.others(leader, follower_of(partition))

    def reassign() -> None:
        cluster.reassign(partition, [leader, third])
        await_no_reassignment(cluster)

    enough_s = patience_s(reassign)
    state.reassigned(partition, [partition.log_dir_on(leader), partition.log_dir_on(third)])
    state.check()
    return enough_s
