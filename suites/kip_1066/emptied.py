"""Empties a log dir or a broker, as an operator does before removing it, and checks that it is empty."""

from __future__ import annotations

import itertools

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.reassignments import reassign_together
from suites.state_check import StateCheck


def reassign_all_away(state: StateCheck, *brokers: Broker) -> None:
    """Reassign all replicas of these brokers to others, as an operator does before removing brokers.

    Each replica goes to the broker with the fewest replicas that has none of the partition and an uncordoned log dir.

    :raises Inconclusive: a broker has no replica, or one that no other broker can take
    """
    cluster = state.cluster
    add_internal_topics(state)
    held = {each: sum(len(state.replicas_in(log_dir)) for log_dir in each.log_dirs) for each in cluster.brokers}
    if bare := [str(broker) for broker in brokers if not held[broker]]:
        raise Inconclusive(f"{', '.join(bare)} had no replica before it was to be emptied")
    open_ones = [each for each in cluster.others(*brokers) if not state.cordoned.issuperset(each.log_dirs)]
    placements = []
    for (topic, index), expected in state.partitions.items():
        on = [cluster.broker(id) for id in expected.replicas]
        for place in set(brokers).intersection(on):
            targets = [each for each in open_ones if each not in on]
            if not targets:
                raise Inconclusive(f"no other broker can take {topic}-{index} from {place}: {expected.replicas}")
            on[on.index(place)] = target = min(targets, key=held.__getitem__)
            held[target] += 1
        if any(broker.id in expected.replicas for broker in brokers):
            placements.append(Placement(partition=Partition(cluster, topic, index), on=tuple(on)))
    reassign_together(state, *placements)


def add_internal_topics(state: StateCheck) -> None:
    """Add Kafka's internal topics to the expected state; clients cause their creation at any time."""
    own = [each for each in state.unknown_partitions(state.cluster.describe()) if each.topic.startswith("__")]
    for name, states in itertools.groupby(own, key=lambda each: each.topic):
        state.add_topic(Topic(state.cluster, name, len(list(states))), cordoned=frozenset())


def placements_within(state: StateCheck, leaving: LogDir, staying: LogDir) -> list[Placement]:
    """Placements that move all replicas of one log dir to another one of the broker, and keep all others.

    :raises Inconclusive: the log dir has no replica
    """
    add_internal_topics(state)
    placements = []
    for topic, index in sorted(state.replicas_in(leaving)):
        partition = Partition(state.cluster, topic, index)
        brokers = map(state.cluster.broker, state.expected(topic, index).replicas)
        on = tuple(staying if broker == leaving.broker else partition.log_dir_on(broker) for broker in brokers)
        placements.append(Placement(partition=partition, on=on))
    if not placements:
        raise Inconclusive(f"{leaving} had no replica before it was to be emptied")
    return placements


def check_empty(*log_dirs: LogDir) -> None:
    """These log dirs have no replica, by DescribeLogDirs and by the folders on disk."""
    [broker] = {log_dir.broker for log_dir in log_dirs}
    paths = {str(log_dir.path) for log_dir in log_dirs}

    def found() -> list[str]:
        described = [state for state in broker.describe_log_dirs() if state.path in paths]
        replicas = [f"{r.topic}-{r.partition} in {state.path}" for state in described for r in state.replicas]
        return replicas + [str(path) for each in log_dirs for path in each.path.iterdir() if path.is_dir()]

    await_until(
        found,
        lambda left: not left,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{' and '.join(map(str, log_dirs))} to be empty",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    broker.journal.write("log_dirs.empty", log_dirs=sorted(paths))
