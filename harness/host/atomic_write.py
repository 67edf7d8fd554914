"""Writes a file atomically: a reader sees the old content or the new, even if the writer is killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> Path:
    """Replace the content of ``path``, whose folder must exist; returns ``path``.

    Writes a hidden file of this thread beside it, then renames it. It does not sync: it guards against the end of the
    process, not of the machine.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    hidden.write_text(text, encoding="utf-8")
    return hidden.replace(path)
