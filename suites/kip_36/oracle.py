"""KIP-36's algorithm as a pure function: which brokers get the replicas of a topic's partitions.

It follows the KIP's text. Where the text leaves something open, it follows
``AdminUtils.assignReplicasToBrokersRackAware`` (the same in 3.9 and in 4.3's tools). There the shift begins anywhere. A
round begins at each partition number that is a multiple of the number of brokers, also if the topic got partitions
later. Brokers of a rack are in the order of their ids. Kafka begins at random places, so an assignment is right if
it is the oracle's for *some* start and shift (:func:`origin`).

An assignment maps partition numbers to broker ids, the preferred leader first. Racks are by broker id.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Racks = Mapping[int, str]
Assignment = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The two random numbers of an assignment.

    :ivar start: the position of partition 0's leader in the list of brokers
    :ivar shift: the shift of the first follower in the first round
    """

    start: int = 0
    shift: int = 0


def rack_alternated(racks: Racks) -> tuple[int, ...]:
    """The rack-alternated broker list: a broker of each rack in turn, racks by name, brokers by id."""
    by_rack = [sorted(id for id in racks if racks[id] == rack) for rack in sorted(set(racks.values()))]
    return tuple(id for turn in itertools.zip_longest(*by_rack) for id in turn if id is not None)


def assign(racks: Racks, partitions: int, replicas: int, origin: Origin = Origin(), *, first: int = 0) -> Assignment:
    """KIP-36's assignment of so many partitions with so many replicas each.

    :param first: the number of the first partition; above 0 where partitions are added to a topic
    :raises ValueError: more replicas than brokers
    """
    brokers, number_of_racks = rack_alternated(racks), len(set(racks.values()))
    _check(brokers, replicas)
    assignment: dict[int, tuple[int, ...]] = {}
    for partition, leader, shift in _turns(len(brokers), partitions, origin, first):
        chosen = [brokers[leader]]
        candidates = _followers(brokers, leader, shift * number_of_racks)
        while len(chosen) < replicas:
            used = {racks[id] for id in chosen}
            all_used = len(used) == number_of_racks
            chosen.append(next(id for id in candidates if id not in chosen and (all_used or racks[id] not in used)))
        assignment[partition] = tuple(chosen)
    return assignment


def assign_without_racks(
    brokers: Sequence[int], partitions: int, replicas: int, origin: Origin = Origin()
) -> Assignment:
    """The "current implementation (as if no broker has the rack information)", over a list of brokers in any order.

    :raises ValueError: more replicas than brokers
    """
    _check(brokers, replicas)
    return {
        partition: (brokers[leader], *itertools.islice(_followers(brokers, leader, shift), replicas - 1))
        for partition, leader, shift in _turns(len(brokers), partitions, origin, first=0)
    }


def origin(racks: Racks, assignment: Assignment) -> Origin | None:
    """The start and shift from which :func:`assign` gives this assignment; None if there are none."""
    partitions, replicas, first = _shape(assignment)
    if set(map(len, assignment.values())) != {replicas} or replicas > len(racks):
        return None
    return next(
        (each for each in _origins(len(racks)) if assign(racks, partitions, replicas, each, first=first) == assignment),
        None,
    )


def origin_without_racks(assignment: Assignment, brokers: int) -> Origin | None:
    """The start and shift from which :func:`assign_without_racks` gives this assignment; None if there are none.

    The leaders show the order of the brokers.

    :raises ValueError: fewer partitions than brokers, so the leaders do not show the order
    """
    partitions, replicas, first = _shape(assignment)
    if partitions < brokers or first:
        raise ValueError(f"{partitions} partitions from {first} on don't show the order of {brokers} brokers")
    order = [assignment[partition][0] for partition in range(brokers)]
    for each in _origins(brokers):
        rotated = [order[(index - each.start) % brokers] for index in range(brokers)]
        if len(set(order)) == brokers and assign_without_racks(rotated, partitions, replicas, each) == assignment:
            return each
    return None


def _check(brokers: Sequence[int], replicas: int) -> None:
    if not 0 < replicas <= len(brokers):
        raise ValueError(f"{replicas} replicas on {len(brokers)} brokers")


def _shape(assignment: Assignment) -> tuple[int, int, int]:
    """Partitions, replicas of the first one, and its number."""
    first = min(assignment)
    return len(assignment), len(assignment[first]), first


def _origins(brokers: int) -> Iterator[Origin]:
    return (Origin(start=start, shift=shift) for start in range(brokers) for shift in range(brokers))


def _turns(brokers: int, partitions: int, origin: Origin, first: int) -> Iterator[tuple[int, int, int]]:
    """For each partition its number, its leader's position in the list, and the shift of its first follower."""
    shift = origin.shift
    for partition in range(first, first + partitions):
        if partition > 0 and partition % brokers == 0:
            shift += 1
        yield partition, (partition + origin.start) % brokers, shift


def _followers(brokers: Sequence[int], leader: int, shift: int) -> Iterator[int]:
    """The other brokers in order, endlessly; the first is ``shift`` places after the broker next to the leader.

    A broker that was skipped while some rack had no replica may be needed later.
    """
    others = len(brokers) - 1
    return (brokers[(leader + 1 + (shift + step) % others) % len(brokers)] for step in itertools.count())
