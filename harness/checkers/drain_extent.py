"""Who and what is in a history, and how far the drains got in each partition: the small facts beside the many rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.checkers.settings import RunSettings

_HIGHEST = (1 << 63) - 1

NOWHERE = -1
"""Stands for an unknown partition of a topic in the table of partitions."""


@dataclass(frozen=True, kw_only=True)
class PartitionExtent:
    """One partition (or, with :data:`NOWHERE`, the unknown ones of a topic), and how far the drains got in it.

    What starts with `rc_` is of read_committed drains alone. `past` is one more than the highest offset that a drain
    got past: the larger of the position that the drain noted and the last record that it was handed. `to_end` is true
    only where a row of ``drained`` says so; for the unknown partition, where one does for every partition of the
    topic. `below` is what the scenario itself deleted; of the unknown partition, the most of the topic's.
    """

    topic_id: int
    topic: str
    partition: int
    past: int = 0
    to_end: bool = False
    rc_past: int = 0
    rc_to_end: bool = False
    below: int = 0
    compacted: bool = False


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """One consumer in one role: a name that appears in both is two. `group` is None for drains.

    `read_committed` is true of one that ever read so: it is asked for no more than read_committed shows.
    """

    name: str
    live: bool
    group: int | None
    read_committed: bool


@dataclass(frozen=True, kw_only=True)
class Handed:
    """The highest offset of one partition that a drain was handed."""

    consumer: str
    topic: str
    partition: int
    highest: int
    read_committed: bool


@dataclass(frozen=True, kw_only=True)
class DrainedTo:
    """One row of ``drained``."""

    consumer: str
    topic: str
    partition: int
    end_offset: int
    position: int
    read_committed: bool


@dataclass(frozen=True, kw_only=True)
class Drain:
    """How far one drain got: the next offset that it would have read, by (topic, partition).

    That is the larger of what it noted and the last record that it was handed. `read_committed` as of a consumer.
    """

    read_committed: bool
    past: Mapping[tuple[str, int], int]


def survey_drains(handed: Iterable[Handed], drained: Iterable[DrainedTo]) -> Mapping[str, Drain]:
    """All drains by their names, also those that were handed nothing."""
    committed: set[str] = set()
    past: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)

    def got_past(each: Handed | DrainedTo, offset: int) -> None:
        place = (each.topic, each.partition)
        past[each.consumer][place] = max(offset, past[each.consumer].get(place, offset))
        if each.read_committed:
            committed.add(each.consumer)

    for read in handed:
        got_past(read, min(read.highest + 1, _HIGHEST))
    for row in drained:
        got_past(row, row.position)
    return {name: Drain(read_committed=name in committed, past=of_drain) for name, of_drain in past.items()}


def survey_partitions(
    places: Iterable[tuple[str, int]], handed: Iterable[Handed], drained: Iterable[DrainedTo], settings: RunSettings
) -> list[PartitionExtent]:
    """All partitions of `places`, and the unknown one of each topic, in the order of topic and partition."""
    past: dict[tuple[str, int], int] = defaultdict(int)
    rc_past: dict[tuple[str, int], int] = defaultdict(int)
    ended: set[tuple[str, int]] = set()
    rc_ended: set[tuple[str, int]] = set()

    def got_past(place: tuple[str, int], offset: int, read_committed: bool) -> None:
        past[place] = max(past[place], offset)
        if read_committed:
            rc_past[place] = max(rc_past[place], offset)

    for read in handed:
        got_past((read.topic, read.partition), min(read.highest + 1, _HIGHEST), read.read_committed)
    for row in drained:
        place = (row.topic, row.partition)
        got_past(place, row.position, row.read_committed)
        if row.position >= row.end_offset:
            ended.add(place)
            if row.read_committed:
                rc_ended.add(place)

    by_topic: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for place in sorted(set(places)):
        by_topic[place[0]].append(place)
    result = []
    for topic_id, (topic, of_topic) in enumerate(sorted(by_topic.items())):
        known = [place for place in of_topic if place[1] != NOWHERE]
        result.append(
            PartitionExtent(
                topic_id=topic_id,
                topic=topic,
                partition=NOWHERE,
                to_end=bool(known) and ended.issuperset(known),
                rc_to_end=bool(known) and rc_ended.issuperset(known),
                below=max((below for place, below in settings.deleted_below.items() if place[0] == topic), default=0),
                compacted=topic in settings.compacted,
            )
        )
        result += [
            PartitionExtent(
                topic_id=topic_id,
                topic=topic,
                partition=place[1],
                past=past[place],
                to_end=place in ended,
                rc_past=rc_past[place],
                rc_to_end=place in rc_ended,
                below=settings.deleted_below.get(place, 0),
                compacted=topic in settings.compacted,
            )
            for place in known
        ]
    return result


def survey_consumers(
    names: Iterable[tuple[str, bool]], committed: Collection[tuple[str, bool]], groups: Mapping[str, str]
) -> Sequence[Consumer]:
    """All consumers, of (name, live), in the order of their names; whoever has no group is a group of its own.

    :param committed: those of them that ever read read_committed
    """
    numbers: dict[tuple[str, str], int] = {}

    def group_of(name: str) -> int:
        of = ("group", groups[name]) if name in groups else ("consumer", name)
        return numbers.setdefault(of, len(numbers))

    return [
        Consumer(name=name, live=live, group=group_of(name) if live else None, read_committed=(name, live) in committed)
        for name, live in sorted(set(names))
    ]
