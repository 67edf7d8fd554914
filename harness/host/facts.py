"""The facts of this machine that run.json has; each may change the outcome of a case."""

from __future__ import annotations

import os
import platform

from harness.errors import JbodError
from harness.host.broker_user import broker_user
from harness.host.java import java_version


def machine_facts() -> dict[str, int | str | None]:
    """Return the cores, the versions of kernel, Python and Java, and the uid of brokers; None for an unknown one."""
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _java(),
        "broker_uid": _broker_uid(),
    }


def _java() -> str | None:
    try:
        return java_version()[1]
    except JbodError:
        return None


def _broker_uid() -> int | None:
    try:
        return broker_user().uid
    except JbodError:
        return None
