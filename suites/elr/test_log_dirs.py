"""Shows which replica leads after all replicas of a partition went offline, with log dirs among the causes (KIP-966).

A replica that leaves an ISR below ``min.insync.replicas`` is an eligible leader replica. It leads again without a loss,
if its broker had a clean shutdown. A failed log dir has no mark of a clean shutdown, so its replica is no longer
eligible once its broker starts. The last leader leads again only if no replica is eligible.
"""

from __future__ import annotations

from contextlib import ExitStack

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.kafka.versions import Mode
from suites.checks import check_noticed, check_refused
from suites.eligible_replicas import (
    BEFORE,
    await_isr,
    check_complete_again,
    check_does_not_lead,
    check_eligible,
    check_leads,
    created_with_records,
)
from suites.leadership import ELECTS_ELIGIBLE
from suites.scenario import scenario
from suites.steps import await_checkpoints, format_new_dirs, replace_by_empty_disk, write_untracked_records

PLAN = "2. A log directory stops working on a broker during runtime: with min.insync.replicas=2 (KIP-966), "
LONGER_THAN_LAG = 12
"""Checkpoints that a broker writes in more than ``replica.lag.time.max.ms``."""


@scenario(
    "elr/all-in-turn",
    kip=112,
    plan=PLAN + "on all replicas in turn",
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    judged=False,
)
def test_all_in_turn(cluster: Cluster) -> None:
    """All replicas' log dirs fail in turn: only the last leader leads again, though the second to last is back first.

    Both are eligible until their brokers start. The last leader's broker starts first, with its log dir still failed,
    and must not lead. Acks are refused as soon as one replica is left.
    """
    log = created_with_records(cluster)
    last, (first, second) = leader_of(log), log.followers()
    with ExitStack() as on_first, ExitStack() as on_second, ExitStack() as on_last:
        fail_log_dir(log, first, on_first)
        await_isr(log, last, second)
        check_eligible(log, leader=last, isr=(last, second), eligible=(), via=first)
        write_more(log)
        fail_log_dir(log, second, on_second)
        await_isr(log, last)
        check_eligible(log, leader=last, isr=(last,), eligible=(second,), via=first)
        check_refused(lambda: last.admin.produce(log.topic, log.index, b"refused", acks=-1), "NOT_ENOUGH_REPLICAS", "")
        fail_log_dir(log, last, on_last)
        check_eligible(log, leader=None, isr=(), eligible=(last, second), via=first)
        last.restart()
        check_eligible(log, leader=None, isr=(), eligible=(second,), via=first)
        heal_and_restart(second, on_second)
        check_does_not_lead(log, second)
        check_eligible(log, leader=None, isr=(), eligible=(), via=first)
        heal_and_restart(last, on_last)
        check_leads(log, last)
        await_isr(log, last, second)
        check_eligible(log, leader=last, isr=(last, second), eligible=(), via=first)
        heal_and_restart(first, on_first)
    check_complete_again(log)


@scenario(
    "elr/stopped-leads",
    kip=112,
    plan=PLAN + "on the last replica in sync, while one that has every acked record is stopped",
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    judged=False,
)
def test_stopped_leads(cluster: Cluster) -> None:
    """The last replica's log dir fails: a stopped replica leads when it is back, and one that lacks records does not.

    The latter's log dir had failed first, and its broker is back before the stopped one.
    """
    log = created_with_records(cluster)
    last, (first, second) = leader_of(log), log.followers()
    with ExitStack() as on_first, ExitStack() as on_last:
        one_stopped_others_failed(log, first, on_first, second, on_last)
        heal_and_restart(first, on_first)
        check_does_not_lead(log, first)
        second.start()
        check_leads(log, second)
        await_isr(log, second, first)
        check_eligible(log, leader=second, isr=(second, first), eligible=(), via=first)
        heal_and_restart(last, on_last)
    check_complete_again(log)


@scenario(
    "elr/emptied-last",
    kip=112,
    plan="4. The disk (or log directory) gets fixed: replaced by an empty one, of the last replica in sync (KIP-966)",
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    judged=False,
)
def test_emptied_last(cluster: Cluster) -> None:
    """The last leader comes back with an empty disk: it does not lead, and an eligible replica does when it is back."""
    log = created_with_records(cluster)
    last, (first, second) = leader_of(log), log.followers()
    log_dir = log.log_dir_on(last)
    with ExitStack() as on_first, ExitStack() as on_last:
        one_stopped_others_failed(log, first, on_first, second, on_last)
        on_last.close()
        last.stop()
        replace_by_empty_disk(log_dir)
        format_new_dirs(cluster, last)
        last.start()
        check_does_not_lead(log, last)
        check_eligible(log, leader=None, isr=(), eligible=(second,), via=first)
        second.start()
        check_leads(log, second)
        heal_and_restart(first, on_first)
    check_complete_again(log)


def one_stopped_others_failed(
    log: Partition, first: Broker, on_first: ExitStack, second: Broker, on_last: ExitStack
) -> None:
    """The first replica's log dir fails, the second one's broker is stopped, and then the leader's log dir fails.

    The first one lacks records that the others have.
    """
    last = leader_of(log)
    fail_log_dir(log, first, on_first)
    await_isr(log, last, second)
    write_more(log)
    second.stop()
    await_isr(log, last)
    fail_log_dir(log, last, on_last)
    check_eligible(log, leader=None, isr=(), eligible=(last, second), via=first)


def write_more(log: Partition) -> None:
    """Write records that the first replica lacks, and wait until all of the ISR have them.

    A KRaft leader waits for a follower with a failed log dir for ``replica.lag.time.max.ms``, and looks again when
    another follower fetches. A write before that would be repeated after the client's time-out.
    """
    await_checkpoints(log.log_dir_on(leader_of(log)), LONGER_THAN_LAG)
    write_untracked_records(log.cluster.topics[log.topic], BEFORE)


def fail_log_dir(log: Partition, broker: Broker, until: ExitStack) -> None:
    """The log dir of the partition's replica on this broker fails, until the stack is closed."""
    check_noticed(until.enter_context(injected(Chmod000(log.log_dir_on(broker)))))


def heal_and_restart(broker: Broker, until: ExitStack) -> None:
    """Undo the fault, and restart the broker with a clean shutdown."""
    until.close()
    broker.restart()
