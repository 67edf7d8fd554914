"""A log dir or a broker is emptied, as an operator does before taking it away, and is seen to be empty."""

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
from suites.state_check import StateCheck
from suites.steps import reassign_together


def reassign_all_away(state: StateCheck, *brokers: Broker) -> None:
    """All replicas of these brokers are reassigned to others, as an operator does before removing them.

    Each goes to that broker, of those that aren't wholly cordoned, that has the fewest, and none of the partition.

    :raises Inconclusive: one of them has nothing, or something that has no other place
    """
    cluster = state.cluster
    add_internal_topics(state)
    held = {each: sum(len(state.replicas_in(log_dir)) for log_dir in each.log_dirs) for each in cluster.brokers}
    if bare := [str(broker) for broker in brokers if not held[broker]]:
        raise Inconclusive(f"{', '.join(bare)}: nothing is there; to drain it shows nothing")
    open_ones = [each for each in cluster.others(*brokers) if not state.cordoned.issuperset(each.log_dirs)]
    placements = []
    for (topic, index), expected in state.partitions.items():
        on = [cluster.broker(id) for id in expected.replicas]
        for place in set(brokers).intersection(on):
            targets = [each for each in open_ones if each not in on]
            if not targets:
                raise Inconclusive(f"{topic}-{index} on {place} has no other place: {expected.replicas}")
            on[on.index(place)] = target = min(targets, key=held.__getitem__)
            held[target] += 1
        if any(broker.id in expected.replicas for broker in brokers):
            placements.append(Placement(partition=Partition(cluster, topic, index), on=tuple(on)))
    reassign_together(state, *placements)


def add_internal_topics(state: StateCheck) -> None:
    """The topics of Kafka itself, which clients bring about, are in the model too, whenever they came."""
    own = [each for each in state.unknown_partitions(state.cluster.describe()) if each.topic.startswith("__")]
    for name, states in itertools.groupby(own, key=lambda each: each.topic):
        state.add_topic(Topic(state.cluster, name, len(list(states))), cordoned=frozenset())


def placements_within(state: StateCheck, leaving: LogDir, staying: LogDir) -> list[Placement]:
    """All that is in one log dir, in another of the same broker, and elsewhere where it is."""
    add_internal_topics(state)
    placements = []
    for topic, index in sorted(state.replicas_in(leaving)):
        partition = Partition(state.cluster, topic, index)
        brokers = map(state.cluster.broker, state.expected(topic, index).replicas)
        on = tuple(staying if broker == leaving.broker else partition.log_dir_on(broker) for broker in brokers)
        placements.append(Placement(partition=partition, on=on))
    if not placements:
        raise Inconclusive(f"{leaving} has nothing; to empty it shows nothing")
    return placements


def check_empty(*log_dirs: LogDir) -> None:
    """Nothing is in these log dirs, by what their broker says and by the folders on disk.

    :raises PromiseBroken: something is, and stays
    """
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
