"""How long to wait for what never ends on builds with a bug.

On a slow machine, a fixed time-out would take what only lasts longer for the bug. So a scenario first measures a step
that ends on every build.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_S = 6.0
TIMES = 5.0
"""What may never end gets so many times as long as the measured step."""


def patience_s(step: Callable[[], object]) -> float:
    """Do a step that ends on every build, and return how long to wait for a similar one."""
    began = time.monotonic()
    step()
    return max(LEAST_S, TIMES * (time.monotonic() - began))
