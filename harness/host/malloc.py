"""Gives memory back to the machine in a process that runs hundreds of cases.

Allocators keep freed memory: Arrow's own (mimalloc) for good, glibc's until it is asked. A worker that has measured a
history of a million rows would keep hundreds of megabytes.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa


def keep_no_pages() -> None:
    """Let Arrow allocate by malloc, which is as quick for the work outside the judge's tasks."""
    pa.set_memory_pool(pa.system_memory_pool())


def give_back() -> None:
    """Give free pages back to the machine (glibc only; other C libraries do so by themselves or never)."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
