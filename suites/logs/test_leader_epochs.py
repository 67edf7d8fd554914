"""Shows that brokers know where each leader epoch ends, and fence clients with another one (KIP-101, KIP-320).

A follower truncates its log by the leader's answers. A consumer finds out by them that records it read are gone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from faults.broker import BrokerKilled, BrokerStopped
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from suites.checks import check_refused
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down, write_untracked_records


@scenario("logs/leader-epochs", kip=112, plan="leaders change: every replica knows the leader epochs", judged=False)
def test_leader_epochs(cluster: Cluster) -> None:
    """Four leaders are stopped or killed in turn: every broker, as leader, knows the epochs, and fences all others."""
    events = cluster.create_topic("events")
    state = StateCheck(cluster, events)
    ends: dict[int, int] = {}
    for end in (BrokerStopped, BrokerKilled, BrokerStopped, BrokerKilled):
        write_untracked_records(events, 100)
        leader = leader_of(events[0])
        ends[events[0].describe().leader_epoch] = 100 * (len(ends) + 1)
        with brokers_down(state, end(leader)):
            pass
    for broker in cluster.brokers:
        # Stopped, not killed: after a crash, a broker reads the epochs from the log, and not from its checkpoint.
        with brokers_down(state, *map(BrokerStopped, cluster.others(broker))):
            check_epochs(events[0], ends)
            check_fenced(events[0])


def check_epochs(partition: Partition, ends: Mapping[int, int]) -> None:
    """The leader knows the end of each of these leader epochs; for one without records, it names the one before.

    :param ends: of all leader epochs that have records
    """
    leader, current = partition.leader(), partition.describe().leader_epoch
    with_records = {epoch: max(each for each in ends if each <= epoch) for epoch in range(min(ends), current)}
    wanted = {epoch: (last, ends[last]) for epoch, last in with_records.items()}
    found = {epoch: leader.admin.end_of_epoch(partition.topic, partition.index, epoch) for epoch in wanted}
    leader.journal.write("epochs.known", partition=str(partition), leader=leader.id, ends=[*found.values()])
    if wrong := {epoch: answer for epoch, answer in found.items() if answer != wanted[epoch]}:
        raise PromiseBroken(f"{leader} takes the leader epochs of {partition} to end at {wrong}, instead of {wanted}")


def check_fenced(partition: Partition) -> None:
    """The leader refuses requests that name an older leader epoch than its own, and those that name a newer one."""
    admin, current = partition.leader().admin, partition.describe().leader_epoch
    key = (partition.topic, partition.index)
    for epoch, error in ((current - 1, "FENCED_LEADER_EPOCH"), (current + 1, "UNKNOWN_LEADER_EPOCH")):
        check_refused(functools.partial(admin.fetch, *key, 0, leader_epoch=epoch), error, "")
        check_refused(functools.partial(admin.end_of_epoch, *key, 0, leader_epoch=epoch), error, "")
    if not admin.fetch(*key, 0, leader_epoch=current):
        raise PromiseBroken(f"{partition.leader()} has no record of {partition} at 0")
