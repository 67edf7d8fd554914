"""Tells whether a disk of this machine is full."""

from __future__ import annotations

import os
from pathlib import Path

_LEAST_MB = 16


def why_full(folder: Path) -> str | None:
    """Return why an ordinary user can write nothing more below a folder; None if the disk has room."""
    disk = os.statvfs(folder)
    if (left := disk.f_bavail * disk.f_frsize) < _LEAST_MB << 20:
        return f"the disk of {folder} is full: {left >> 20} MB are left"
    if disk.f_files and not disk.f_favail:
        return f"the disk of {folder} is full: no inode is left"
    return None
