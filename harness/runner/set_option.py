"""``--set KEY=VALUE``: broker properties for all cases of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pytest

from harness.cluster.profile import FAST
from harness.errors import UsageError
from harness.kafka.security import ListenerSecurity

OWNED = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "broker.id.generation.enable",
        "broker.rack",
        "control.plane.listener.name",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "cordoned.log.dirs",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "node.id",
        "process.roles",
        "security.inter.broker.protocol",
        "zookeeper.connect",
        "zookeeper.metadata.migration.enable",
    }
)
"""Properties that say which node this is, where it is and where its data is. A cluster of jbod needs its own values."""
# Java reads a backslash in a properties file as the start of an escape.
_FORM = re.compile(r"(?P<key>[a-z][\w.-]*)=(?P<value>[^\\\r\n]*)")


def parse(text: str) -> tuple[str, str]:
    """Read a value of ``--set``: the property and its value.

    :raises UsageError: it has another form, or jbod itself must set the property
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"--set {text!r}: not KEY=VALUE, with a broker property and without backslash and line break")
    if found["key"] in OWNED:
        raise UsageError(f"--set {text}: jbod itself sets {found['key']}, since nodes and log dirs depend on it")
    return found["key"], found["value"].strip()


def checked(text: str) -> str:
    """Return the value of ``--set`` if it can be read.

    :raises pytest.UsageError: it cannot
    """
    try:
        return "=".join(parse(text))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def settings_of(values: Iterable[str]) -> dict[str, str]:
    """Return the properties that the values of ``--set`` name.

    :raises UsageError: one has two values
    """
    settings: dict[str, str] = {}
    for key, value in map(parse, values):
        if settings.setdefault(key, value) != value:
            raise UsageError(f"--set {key}={value}: {key} has two values, {settings[key]} and {value}")
    return settings


def values_of(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of ``--set`` that name these properties."""
    return tuple(f"{key}={value}" for key, value in settings.items())


def options_of(
    profile: str, settings: Mapping[str, str], listener_security: str = ListenerSecurity.PLAINTEXT
) -> dict[str, str | tuple[str, ...] | None]:
    """Return the options, by their Python names, that give a run this profile, these properties and this security."""
    return {
        "profile": None if profile == FAST.name else profile,
        "set": values_of(settings),
        "listener_security": None if listener_security == ListenerSecurity.PLAINTEXT else listener_security,
    }


def conflict(settings: Mapping[str, str], overrides: Mapping[str, str]) -> str | None:
    """Return why a scenario with these overrides cannot run with the properties of the run; None if it can."""
    differing = [key for key, value in settings.items() if overrides.get(key, value) != value]
    if not differing:
        return None
    says = ", ".join(f"{key}={overrides[key]}" for key in differing)
    return f"the scenario itself needs {says}, and --set has {', '.join(f'{key}={settings[key]}' for key in differing)}"
