"""Skips a test that this machine cannot run."""

from __future__ import annotations

import pytest

from harness.host.abilities import ability


def require(*names: str) -> None:
    """Skip the test, with the reason and the fix, unless this machine has all of these abilities."""
    for name in names:
        if not (found := ability(name)).present:
            pytest.skip(f"{name}: {found.found} ({found.fix})")
