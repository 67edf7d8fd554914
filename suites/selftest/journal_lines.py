"""Events as lines of ``events.jsonl``, for tests that write or read a journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from harness.events import Event, from_json
from harness.journal import Journal


def lines_of(journal: Journal, kind: str) -> list[dict[str, Any]]:
    """The journal's events of a kind, oldest first, as their lines in the file."""
    return [json.loads(json.dumps(event.to_json())) for event in journal.events if event.kind == kind]


def events_of(lines: Iterable[Mapping[str, Any]]) -> list[Event]:
    """The events of these lines."""
    return [from_json(line) for line in lines]
