"""What "validate client/cluster state" of KIP-112's test plan means, as checks that a scenario calls by name.

"Brokers are all running and show expected error message; topic description shows expected results for all topics; a
pair of producer and consumer can successfully produce/consume from a topic without message loss or duplication."
Running brokers, topic description and log dirs are :meth:`suites.model.World.check`; the message is
:func:`check_noticed`; the pair without loss or duplication is :func:`check_delivery`.
"""

from __future__ import annotations

from datetime import datetime

from faults.base import Fault
from harness import timeouts
from harness.errors import Inconclusive, PromiseBroken
from harness.waiting import await_until
from harness.workload import CaseWorkload


def check_noticed(fault: Fault, since: datetime | None = None) -> None:
    """The broker's log shows the message by which it says that it noticed the fault.

    :raises PromiseBroken: it doesn't, within the time that noticing may take
    """
    assert fault.noticed_by is not None, f"{fault} names no log line by which a broker notices it"
    pattern = fault.noticed_by
    line = await_until(
        lambda: fault.broker.log.first(pattern, since=since or fault.injected_at),
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{fault.broker} to log that it noticed {fault}",
        watch=fault.broker.node.check_alive,
        failure=PromiseBroken,
        hint=f"looked for /{pattern}/ in {fault.broker.log.path}",
    )
    assert line is not None
    fault.broker.journal.write(
        "fault.noticed", broker=fault.broker.id, logged_at=line.at.isoformat(), line=line.text[:300]
    )


def check_delivery(workload: CaseWorkload) -> None:
    """Drain the healed cluster and judge the whole history: nothing lost, nothing twice, nothing out of place.

    The judge's word, and the floors that the load must have reached, bind the case whether or not a scenario heeds them
    (:mod:`harness.outcomes`); here they end it.

    :raises PromiseBroken: the verdict is invalid
    :raises Inconclusive: it is unknown
    """
    verdict = workload.drain_and_judge()
    if verdict.verdict != "valid":
        raise {"invalid": PromiseBroken, "unknown": Inconclusive}[verdict.verdict]("; ".join(verdict.reasons))
