"""What run.json tells the judge: what the scenario itself did to the log, and what its clients don't promise.

Everything is optional but the file: a run without a readable run.json may be half a run, and is not judged. A value
of the wrong form is refused and not guessed at, because each of them turns findings off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HistoryError

RUN_FILE = "run.json"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The part of run.json that decides how a history is judged."""

    run_id: str
    allow_duplicates: bool = False
    allow_reordering: bool = False
    deleted_below: Mapping[tuple[str, int], int] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    groups: Mapping[str, str] = field(default_factory=dict)
    promised: Mapping[str, int] = field(default_factory=dict)
    """Not from run.json: by producer, below which seq it has a row for each record
    (:func:`harness.pipeline.reserved.promised`).
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

    deleted: dict[tuple[str, int], int] = {}
    for topic, offsets in of_form("deleted_below", dict, {}).items():
        if not isinstance(offsets, dict):
            raise refuse("deleted_below", 'offsets by partition, as {"topic": {"0": 500}}')
        for partition, offset in offsets.items():
            if (
                not (partition.isascii() and partition.isdigit() and len(partition) <= 10)
                or type(offset) is not int
                or abs(offset) >= 1 << 63
            ):
                raise refuse("deleted_below", 'offsets by partition, as {"topic": {"0": 500}}')
            deleted[topic, int(partition)] = offset
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
    )
