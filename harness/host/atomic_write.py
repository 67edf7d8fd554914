"""Files that others read while we live, or after we were killed: they are whole, or what they were before."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> Path:
    """Put this text in place of what `path` was; returns `path`. Its folder must be there.

    Written beside it first, under a hidden name of this thread's own, and then renamed: a reader sees all or nothing.
    Not synced: what we guard against is our own end, not the machine's.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    hidden.write_text(text, encoding="utf-8")
    return hidden.replace(path)
