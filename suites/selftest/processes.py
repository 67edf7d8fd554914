"""Which processes a run has, by the mark that each of its nodes carries."""

from __future__ import annotations

from pathlib import Path

from harness.machine.undo import MARK


def marked(mark: str) -> list[int]:
    """Processes of a run, by the mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found
