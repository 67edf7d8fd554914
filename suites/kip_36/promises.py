"""The promises about an assignment, as pure checks: each yields how it is broken, one sentence each.

KIP-36 ("Proposed Changes", the properties of a rack-aware assignment) promises :func:`over_racks`,
:func:`even_leaders` and :func:`even_replicas`. KRaft's placer (``StripedReplicaPlacer``, its "Goals", "Constraints" and
"Algorithm") promises :func:`over_racks_evenly`, :func:`striped` and :func:`in_turn_within_racks`. Both promise
:func:`well_formed` and :func:`followers_vary`.

The oracle (:mod:`suites.kip_36.oracle`) is separate: it has one algorithm. These promises hold for any algorithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from suites.kip_36.oracle import Assignment, Racks


def well_formed(brokers: Iterable[int], assignment: Assignment, partitions: int, replicas: int) -> Iterator[str]:
    """The assignment has the requested partitions and replicas, on existing brokers, with no two replicas on one."""
    known = set(brokers)
    if sorted(assignment) != list(range(partitions)):
        yield f"partitions {sorted(assignment)} instead of 0 to {partitions - 1}"
    for partition, ids in assignment.items():
        if len(ids) != replicas or len(set(ids)) != len(ids) or not set(ids) <= known:
            yield f"partition {partition} on {list(ids)} instead of {replicas} of the brokers {sorted(known)}"


def over_racks(racks: Racks, assignment: Assignment) -> Iterator[str]:
    """Replicas are on as many racks as possible: at most one a rack or, with too few racks, at least one."""
    number = len(set(racks.values()))
    for partition, ids in assignment.items():
        reached = {racks[id] for id in ids}
        if len(reached) < min(number, len(ids)):
            yield f"partition {partition} on {_placed(racks, ids)}: {len(reached)} of {number} racks"


def even_leaders(racks: Racks, assignment: Assignment) -> Iterator[str]:
    """All brokers are the preferred leader of equally many partitions; if that is impossible, some lead one more.

    "Each broker will have the same leader count" when the partitions are a multiple of the brokers; leaders are "chosen
    from rack alternated list round-robin".
    """
    yield from _even("leads", Counter(ids[0] for ids in assignment.values()), racks)


def even_replicas(racks: Racks, assignment: Assignment) -> Iterator[str]:
    """All brokers have equally many replicas, if the partitions are a multiple of the brokers and racks are equal."""
    if len(assignment) % len(racks) == 0 and len(set(Counter(racks.values()).values())) == 1:
        yield from _even("has", Counter(id for ids in assignment.values() for id in ids), racks)


def over_racks_evenly(racks: Mapping[int, str | None], assignment: Assignment) -> Iterator[str]:
    """No rack has two replicas more than another that has brokers left: "as evenly as we can across racks"."""
    sizes = Counter(racks.values())
    for partition, ids in assignment.items():
        counts = Counter(racks[id] for id in ids)
        most = max(counts.values())
        if any(counts[rack] < most - 1 and counts[rack] < size for rack, size in sizes.items()):
            yield f"partition {partition} on {_placed(racks, ids)}: not as even over the racks as they allow"


def striped(racks: Mapping[int, str | None], assignment: Assignment) -> Iterator[str]:
    """Each rack in turn has the preferred leader: "round-robin", "each partition advances the starting offset by one".

    After as many partitions as there are brokers, the racks are shuffled and it starts again ("shuffle the rack list").
    """
    number, block = len(set(racks.values())), len(racks)
    leads = [racks[ids[0]] for _, ids in sorted(assignment.items())]
    for begin in range(0, len(leads), block):
        turn = leads[begin : begin + block]
        in_turn = all(turn[index] == turn[index - number] for index in range(number, len(turn)))
        if len(set(turn)) < min(number, len(turn)) or not in_turn:
            yield f"partitions {begin} to {begin + len(turn) - 1} are led from racks {turn}, which is not each in turn"


def in_turn_within_racks(racks: Mapping[int, str | None], assignment: Assignment) -> Iterator[str]:
    """Within each rack, the brokers take turns from one partition with a replica there to the next.

    Each rack's list "advances the starting offset by one" for each partition, and is shuffled as in :func:`striped`.
    """
    partitions, block, sizes = sorted(assignment), len(racks), Counter(racks.values())
    for begin in range(0, len(partitions), block):
        for rack, size in sizes.items():
            there = [[id for id in assignment[p] if racks[id] == rack] for p in partitions[begin : begin + block]]
            first = [ids[0] for ids in there if ids]
            in_turn = all(first[index] == first[index - size] for index in range(size, len(first)))
            if len(set(first[:size])) < len(first[:size]) or not in_turn:
                yield f"from partition {partitions[begin]} on rack {rack} has replicas on {first}, which is not in turn"


def followers_vary(assignment: Assignment) -> Iterator[str]:
    """Over many rounds, the partitions that a broker is to lead have more than one other broker as their next replica.

    ZooKeeper mode shifts the followers in each round, and KRaft shuffles the brokers. So several brokers take over from
    one that fails.
    """
    next_ones = dict[int, Counter[int]]()
    for leader, follower, *_ in assignment.values():
        next_ones.setdefault(leader, Counter())[follower] += 1
    for leader, counts in next_ones.items():
        if len(counts) == 1 and counts.total() > 1:
            yield f"all {counts.total()} partitions of broker {leader} are followed by broker {next(iter(counts))}"


def _even(does: str, counts: Counter[int], racks: Racks) -> Iterator[str]:
    by_broker = {id: counts[id] for id in sorted(racks)}
    least, most = min(by_broker.values()), max(by_broker.values())
    if most - least > (1 if sum(by_broker.values()) % len(racks) else 0):
        yield f"one broker {does} {most}, another {least}: {by_broker} on racks {dict(sorted(racks.items()))}"


def _placed(racks: Mapping[int, str | None], ids: Iterable[int]) -> str:
    return ", ".join(f"{id} ({racks[id]})" for id in ids)
