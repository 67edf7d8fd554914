"""The error that a block of a test must raise, if any."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest

from harness.errors import PromiseBroken


def breaks_promise(says: str | None) -> AbstractContextManager[object]:
    """The block must raise PromiseBroken with a message that matches ``says``; None: it must raise nothing."""
    return nullcontext() if says is None else pytest.raises(PromiseBroken, match=says)
