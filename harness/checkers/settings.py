"""Reads the judge's settings from run.json: what the scenario did to the log, and what its clients do not promise.

The file is required, since a run without a readable run.json may be half a run. Every setting is optional. A value of
the wrong form is an error, because each setting turns findings off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from harness.errors import HistoryError

RUN_FILE = "run.json"

T = TypeVar("T")

Group = tuple[bool, str]
"""A consumer group by name, or (False) a consumer on its own."""


class Session(NamedTuple):
    """A range of offsets whose batches are of one producer session: a producer id with its epoch (KIP-98).

    Within a session, a broker appends a batch once, however often it is sent. A client that takes a new epoch resends.
    """

    first: int
    last: int
    producer_id: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The part of run.json that decides how a history is judged.

    :ivar deleted_below: by partition, the offset below which the scenario deleted everything or let it expire
    :ivar compacted: the topics that are compacted
    :ivar groups: the consumer group of each consumer that has one
    :ivar producer_sessions: by partition, the offsets in batches of idempotent producers, ascending; empty if unknown
    :ivar promised: not from run.json: by producer, the seq below which it promised a row for each record
        (:func:`harness.history.write_ahead.promised`)
    """

    run_id: str
    allow_duplicates: bool = False
    allow_reordering: bool = False
    deleted_below: Mapping[tuple[str, int], int] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    groups: Mapping[str, str] = field(default_factory=dict)
    producer_sessions: Mapping[tuple[str, int], Sequence[Session]] = field(default_factory=dict)
    promised: Mapping[str, int] = field(default_factory=dict)

    def group_of(self, consumer: str) -> Group:
        """The consumer's group; a consumer without one is a group of its own."""
        return (True, self.groups[consumer]) if consumer in self.groups else (False, consumer)


def refuse_unpromised(senders: Iterable[str], settings: RunSettings) -> None:
    """Check that either all producers promised their rows or none did.

    :raises HistoryError: a producer promised nothing, though others did: its file in ``history/reserved`` is missing
    """
    if settings.promised:
        for name in sorted(set(senders) - set(settings.promised)):
            raise HistoryError(
                f"history/reserved/{name}.json is missing: without it, missing rows of {name} cannot be detected"
            )


def read_settings(run_dir: Path) -> RunSettings:
    """Read run.json. A setting that is absent or null is off; the default run id is the folder's name.

    :raises HistoryError: run.json is missing, cut off or not an object, or a setting has the wrong form
    """
    path = run_dir / RUN_FILE
    try:
        loaded = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise HistoryError(
            f"{path} is missing: this is not a run folder, or the run ended before its case began"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise HistoryError(f"{path} is cut off or not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise HistoryError(f"{path} must hold a JSON object, and holds a {type(loaded).__name__}")

    def refuse(name: str, expected: str) -> HistoryError:
        return HistoryError(f"{path}: {name} is {loaded[name]!r}, expected {expected}")

    def setting(name: str, default: T) -> T:
        value = loaded.get(name)
        if value is None:
            return default
        if not isinstance(value, type(default)):
            raise refuse(name, type(default).__name__)
        return value

    def by_partition(name: str, expected: str, parse: Callable[[object], T | None]) -> dict[tuple[str, int], T]:
        found = {}
        topics: dict[str, object] = setting(name, {})
        for topic, values in topics.items():
            if not isinstance(values, dict):
                raise refuse(name, expected)
            for partition, value in values.items():
                parsed = parse(value)
                if not (partition.isascii() and partition.isdigit() and len(partition) <= 10) or parsed is None:
                    raise refuse(name, expected)
                found[topic, int(partition)] = parsed
        return found

    compacted: list[object] = setting("compacted", [])
    if not all(isinstance(topic, str) for topic in compacted):
        raise refuse("compacted", "a list of topics")
    groups: dict[str, object] = setting("groups", {})
    if not all(isinstance(group, str) for group in groups.values()):
        raise refuse("groups", "group names by consumer")
    return RunSettings(
        run_id=setting("run_id", run_dir.absolute().name),
        allow_duplicates=setting("allow_duplicates", False),
        allow_reordering=setting("allow_reordering", False),
        deleted_below=by_partition("deleted_below", 'offsets by partition, as {"topic": {"0": 500}}', _long),
        compacted=frozenset(map(str, compacted)),
        groups={consumer: str(group) for consumer, group in groups.items()},
        producer_sessions=by_partition(
            "producer_sessions",
            'first and last offset, producer id and epoch by partition, ascending, as {"topic": {"0": [[0, 9, 7, 0]]}}',
            _sessions,
        ),
    )


def _long(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _sessions(value: object) -> tuple[Session, ...] | None:
    """Sessions in order that do not overlap, of idempotent producers (others have the id -1); None for other values."""
    if not (isinstance(value, list) and all(isinstance(each, list) and len(each) == 4 for each in value)):
        return None
    if any((number := _long(each)) is None or number < 0 for session in value for each in session):
        return None
    sessions = tuple(Session(*each) for each in value)
    in_order = all(before.last < after.first for before, after in pairwise(sessions))
    return sessions if in_order and all(each.first <= each.last for each in sessions) else None
