"""The limits of this machine below which a node's error may be the machine's fault."""

from __future__ import annotations

import resource

from harness.host.room import memory_left

# A broker of a case had at most 740 files open (kip-112/no-fault), most of them jars and segments.
OPEN_FILES = 4096
# A node has about 450 MB. If memory ran out, that is what its end has left.
_LOW_MEMORY_BYTES = 512 << 20
UNLIMITED = 1 << 62


def open_files() -> int:
    """Return how many files a node may have open. A JVM raises its own limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if hard == resource.RLIM_INFINITY else hard


def files_are_few() -> bool:
    """Whether a node without a leak may reach the limit of open files."""
    return open_files() < OPEN_FILES


def memory_is_low() -> bool:
    """Whether this machine has hardly any memory left now."""
    left, _ = memory_left()
    return left < _LOW_MEMORY_BYTES
