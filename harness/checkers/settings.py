"""What run.json tells the judge: what the scenario itself did to the log, and what its clients don't promise.

Everything is optional but the file: a run without a readable run.json may be half a run, and is not judged. A value
of the wrong form is refused and not guessed at, because each of them turns findings off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import HistoryError

RUN_FILE = "run.json"


class Session(NamedTuple):
    """Offsets next to each other whose batches are of one producer session (KIP-98): a producer id, with its epoch.

    Within one, a broker appends a batch once however often it is sent; a client that takes a new epoch sends anew.
    """

    first: int
    last: int
    producer_id: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The part of run.json that decides how a history is judged."""

    run_id: str
    allow_duplicates: bool = False
    allow_reordering: bool = False
    deleted_below: Mapping[tuple[str, int], int] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    groups: Mapping[str, str] = field(default_factory=dict)
    producer_sessions: Mapping[tuple[str, int], Sequence[Session]] = field(default_factory=dict)
    """By partition, the offsets that lie in batches of idempotent producers, ascending; empty: nobody looked."""
    promised: Mapping[str, int] = field(default_factory=dict)
    """Not from run.json: by producer, below which seq it has a row for each record
    (:func:`harness.history.write_ahead.promised`).
    """


def refuse_unpromised(senders: Iterable[str], settings: RunSettings) -> None:
    """:raises HistoryError: one of those who sent has promised nothing, though others have: its promise has gone"""
    if settings.promised:
        for name in sorted(set(senders) - set(settings.promised)):
            raise HistoryError(
                f"history/reserved/{name}.json is missing: nobody can tell whether {name}'s rows are all there"
            )


def read_settings(run_dir: Path) -> RunSettings:
    """The settings in `run_dir`'s run.json; what is absent or null is off, and the run's id is the folder's name.

    :raises HistoryError: run.json is missing, cut off or no object, or a setting has another form
    """
    path = run_dir / RUN_FILE
    try:
        loaded = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise HistoryError(f"{path} is missing: this is no run folder, or the run ended before it began") from error
    except (OSError, ValueError, RecursionError) as error:
        raise HistoryError(f"{path} is cut off or no JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise HistoryError(f"{path} holds no JSON object but {type(loaded).__name__}")

    def of_form(name: str, kind: type, default: Any) -> Any:
        value = loaded.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise HistoryError(f"{path}: {name} is {value!r}, expected {kind.__name__}")
        return value

    def refuse(name: str, expected: str) -> HistoryError:
        return HistoryError(f"{path}: {name} is {loaded[name]!r}, expected {expected}")

    def by_partition(name: str, expected: str, fits: Callable[[Any], bool]) -> Iterator[tuple[tuple[str, int], Any]]:
        for topic, values in of_form(name, dict, {}).items():
            if not isinstance(values, dict):
                raise refuse(name, expected)
            for partition, value in values.items():
                if not (partition.isascii() and partition.isdigit() and len(partition) <= 10 and fits(value)):
                    raise refuse(name, expected)
                yield (topic, int(partition)), value

    deleted = dict(by_partition("deleted_below", 'offsets by partition, as {"topic": {"0": 500}}', _is_long))
    sessions = {
        where: tuple(Session(*each) for each in stored)
        for where, stored in by_partition(
            "producer_sessions",
            'first and last offset, producer id and epoch by partition, ascending, as {"topic": {"0": [[0, 9, 7, 0]]}}',
            _are_sessions,
        )
    }
    compacted = of_form("compacted", list, [])
    if not all(isinstance(topic, str) for topic in compacted):
        raise refuse("compacted", "a list of topics")
    groups = of_form("groups", dict, {})
    if not all(isinstance(group, str) for group in groups.values()):
        raise refuse("groups", "group names by consumer")
    return RunSettings(
        run_id=of_form("run_id", str, run_dir.absolute().name),
        allow_duplicates=of_form("allow_duplicates", bool, False),
        allow_reordering=of_form("allow_reordering", bool, False),
        deleted_below=deleted,
        compacted=frozenset(compacted),
        groups=groups,
        producer_sessions=sessions,
    )


def _is_long(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 63


def _are_sessions(value: Any) -> bool:
    """None overlaps the one before, and none is of a producer that is not idempotent (its id is -1)."""
    if not (isinstance(value, list) and all(isinstance(each, list) and len(each) == 4 for each in value)):
        return False
    if not all(_is_long(number) and number >= 0 for each in value for number in each):
        return False
    return all(first <= last for first, last, *_ in value) and all(
        before[1] < after[0] for before, after in pairwise(value)
    )
