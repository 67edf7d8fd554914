"""Requests that kafka-python does not know, as classes made from the schemas in a build's own jar kafka-clients."""

from __future__ import annotations

import functools
import sys
import types
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

from kafka.protocol.api_message import ApiMessage

from harness.errors import BuildLacks
from harness.kafka import schemas_read
from harness.kafka.distribution import Distribution

_FOLDER = "common/message/"


def request_class(distribution: Distribution, name: str) -> type[ApiMessage]:
    """kafka-python's class of a request, such as "ShareFetch"; it then knows the response, too.

    :raises BuildLacks: the build has no such request
    """
    jar = next(jar for jar in distribution.class_path if jar.name.startswith("kafka-clients-"))
    try:
        return _request_class(jar, name)
    except FileNotFoundError as error:
        raise BuildLacks(f"{jar.name} has no schema of the request {name}") from error


@functools.cache
def _request_class(jar: Path, name: str) -> type[ApiMessage]:
    """Make the classes once for each build: the response's class is found by the request's key."""
    schemas = _schemas_in(jar)
    with schemas_read():
        request, response = (
            types.new_class(f"{name}{kind}", (ApiMessage,), {"load_json": schemas}) for kind in ("Request", "Response")
        )
    _RESPONSES.append(response)
    return request


_RESPONSES: list[type] = []
"""The classes of responses, to which kafka-python keeps weak references only."""


def _schemas_in(jar: Path) -> types.ModuleType:
    """A package whose resources are the schemas in a jar: kafka-python reads schemas from a package."""
    name = f"{__name__}.{jar.stem}"
    package = types.ModuleType(name)
    package.__package__ = name
    package.__spec__ = ModuleSpec(name, _InJar(jar), is_package=True)  # type: ignore[arg-type]
    sys.modules[name] = package
    return package


class _InJar:
    """The loader of such a package, which only has resources (:mod:`importlib.resources`)."""

    def __init__(self, jar: Path) -> None:
        self._jar = jar

    def get_resource_reader(self, _package: str) -> _InJar:
        """This loader."""
        return self

    def files(self) -> zipfile.Path:
        """The folder with the schemas."""
        return zipfile.Path(self._jar, _FOLDER)
