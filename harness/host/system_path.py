"""Where the system's own programs are."""

from __future__ import annotations

import shutil


def system_program(name: str) -> str | None:
    """Programs of the system are often not on an ordinary user's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
