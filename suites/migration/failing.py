"""Lets a log dir fail on a broker in migration mode: Kafka ends the broker, whichever log dir it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from faults.log_dir import LogDirFault
from harness import timeouts
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.waiting import await_until
from suites.checks import check_ends
from suites.followers_behind import injected_ahead
from suites.migration.roll import Roll
from suites.state_check import StateCheck

ENDS = r"Shutdown broker because some log directory has failed during migration mode: {path}"
"""The log line of a broker in migration mode that ends since a log dir has failed."""


@contextmanager
def broker_ended(roll: Roll, state: StateCheck, fault: LogDirFault, ahead: Topic) -> Iterator[None]:
    """Inside the block a broker has ended, since one of its log dirs failed in migration mode, and others lead.

    Afterwards the log dir is good again, and the broker does not run.

    :param ahead: the topic whose leader gets ahead of its followers before
    """
    broker = fault.broker
    with injected_ahead(ahead, fault):
        check_ends(broker, exit_code=1, saying=ENDS.format(path=re.escape(str(fault.log_dir.path))))
        state.broker_gone(broker)
        state.check(also=roll.sources())
        await_unregistered(roll, broker.id)
        yield


def await_unregistered(roll: Roll, broker: int) -> None:
    """Wait until the session of a dead broker with ZooKeeper has ended, since it cannot start before."""
    await_until(
        roll.migration.zookeeper.registrations,
        lambda registered: broker not in registered,
        timeout_s=timeouts.BROKER_FAILURE_S,
        what=f"ZooKeeper to end the session of broker {broker}",
        failure=PromiseBroken,
    )
