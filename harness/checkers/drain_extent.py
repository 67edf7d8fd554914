"""How far the drains got in each partition, and what the scenario did to it: one entry per partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.checkers.columns import Flags, Ints, distinct, joint_key
from harness.checkers.settings import RunSettings

HIGHEST = (1 << 63) - 1

NOWHERE = -1
"""Stands for an unknown partition of a topic."""

Place = tuple[str, int]
"""Topic and partition."""

Stream = tuple[str, bool, bool]
"""A consumer in one role with one isolation: name, live, read_committed."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a drain got in one partition, from the records that it was handed or from its row of ``drained``.

    :ivar past: the next offset that it would have read
    :ivar to_end: its row shows that it read the partition to the end
    """

    consumer: str
    place: Place
    past: int
    read_committed: bool
    to_end: bool = False


@dataclass(frozen=True, kw_only=True)
class Drain:
    """How far one drain got, by partition: the highest position of its :class:`Reach` entries.

    :ivar read_committed: it read with read_committed at least once
    """

    read_committed: bool
    past: Mapping[Place, int]


@dataclass(frozen=True, kw_only=True)
class Log:
    """One entry per partition: how far all drains got in it, and what the scenario did to it.

    Each topic also has an entry for its unknown partition (:data:`NOWHERE`). No drain is past an offset there.

    :ivar known: False for the unknown partition
    :ivar past: the highest position that a drain reached
    :ivar to_end: a drain read it to the end; for the unknown partition: true of every partition of the topic
    :ivar rc_past: as `past`, for read_committed drains only
    :ivar rc_to_end: as `to_end`, for read_committed drains only
    :ivar below: the scenario deleted all offsets below this; for the unknown partition: the topic's highest
    """

    topic_id: Ints
    known: Flags
    past: Ints
    to_end: Flags
    rc_past: Ints
    rc_to_end: Flags
    below: Ints
    compacted: Flags


def handed_to_drains(
    streams: Sequence[Stream], places: Sequence[Place], stream: Ints, tp: Ints, off: Ints
) -> list[Reach]:
    """How far drains got, from the records that they were handed; one entry for each stream and partition.

    :param stream: for each read, an index into `streams`
    :param tp: for each read, an index into `places`
    """
    rows, number = distinct(joint_key(stream, tp))
    highest = np.zeros(len(rows), np.int64)
    np.maximum.at(highest, number, off)
    found = []
    for who, at, offset in zip(stream[rows].tolist(), tp[rows].tolist(), highest.tolist(), strict=True):
        name, live, rc = streams[who]
        if not live:
            found.append(Reach(consumer=name, place=places[at], past=min(offset + 1, HIGHEST), read_committed=rc))
    return found


def survey_drains(reaches: Iterable[Reach]) -> Mapping[str, Drain]:
    """All drains by name, including those that were handed nothing."""
    committed: set[str] = set()
    past: dict[str, dict[Place, int]] = defaultdict(dict)
    for each in reaches:
        of_drain = past[each.consumer]
        of_drain[each.place] = max(each.past, of_drain.get(each.place, 0))
        if each.read_committed:
            committed.add(each.consumer)
    return {name: Drain(read_committed=name in committed, past=of_drain) for name, of_drain in past.items()}


def survey_partitions(number: Mapping[Place, int], reaches: Iterable[Reach], settings: RunSettings) -> Log:
    """Make the :class:`Log` of all partitions.

    :param number: for each topic, the unknown partition and every one that the history names, numbered in this order
    """
    places = list(number)
    topics = {topic: number for number, topic in enumerate(dict.fromkeys(topic for topic, _ in places))}
    topic_id = np.array([topics[topic] for topic, _ in places], np.int64)
    log = Log(
        topic_id=topic_id,
        known=np.array([partition != NOWHERE for _, partition in places], np.bool_),
        past=np.zeros(len(places), np.int64),
        to_end=np.zeros(len(places), np.bool_),
        rc_past=np.zeros(len(places), np.int64),
        rc_to_end=np.zeros(len(places), np.bool_),
        below=np.array([settings.deleted_below.get(place, 0) for place in places], np.int64),
        compacted=np.array([topic in settings.compacted for topic, _ in places], np.bool_),
    )
    for each in reaches:
        tp = number[each.place]
        log.past[tp] = max(log.past[tp], each.past)
        log.to_end[tp] |= each.to_end
        if each.read_committed:
            log.rc_past[tp] = max(log.rc_past[tp], each.past)
            log.rc_to_end[tp] |= each.to_end
    for unknown in np.flatnonzero(~log.known):
        of_topic = log.known & (topic_id == topic_id[unknown])
        log.to_end[unknown] = of_topic.any() and log.to_end[of_topic].all()
        log.rc_to_end[unknown] = of_topic.any() and log.rc_to_end[of_topic].all()
        deleted = [below for (topic, _), below in settings.deleted_below.items() if topic == places[unknown][0]]
        log.below[unknown] = max(deleted, default=0)
    return log
