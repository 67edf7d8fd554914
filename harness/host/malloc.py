"""The memory of a process that runs hundreds of cases: what a large one took is given back after it.

Nothing keeps it, but allocators do: Arrow's own (mimalloc) for good, glibc's until something asks it. A worker that has
measured a history of a million rows would have hundreds of megabytes to the end of the night.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa


def keep_no_pages() -> None:
    """From now on Arrow allocates as everything else does; as quick, for what is done outside the judge's tasks."""
    pa.set_memory_pool(pa.system_memory_pool())


def give_back() -> None:
    """Free pages go back to the machine; of glibc only, other libraries for C do it by themselves or never."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
