"""Writes a file whole or not at all, for readers at any time, also after the writer was killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> Path:
    """Replace the content of ``path``, whose folder must exist; returns ``path``.

    Writes a hidden file of this thread beside it, then renames it. No sync: this guards against the end of the process,
    not of the machine.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    hidden.write_text(text, encoding="utf-8")
    return hidden.replace(path)
