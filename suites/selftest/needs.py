"""What a test needs of this machine, and is skipped without."""

from __future__ import annotations

import pytest

from harness.host.abilities import ability


def require(*names: str) -> None:
    """Skip, with the reason and what would help, unless this machine has all of these abilities."""
    for name in names:
        if not (found := ability(name)).present:
            pytest.skip(f"{name}: {found.found} ({found.fix})")
