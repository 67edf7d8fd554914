"""Asks a build which broker properties it knows, before any broker starts.

A broker ignores properties that it does not know. The classes of the build know them all, also internal ones, which
neither kafka-configs nor the documentation has.
"""

from __future__ import annotations

from collections.abc import Mapping

from py4j.java_gateway import JVMView

from harness.errors import BuildLacks
from harness.kafka.distribution import Distribution
from harness.kafka.tools_jvm import ask_java, public_methods

_CONFIG = "kafka.server.KafkaConfig"
_OF_LISTENER = "listener.name."


def refusals(distribution: Distribution, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a build does not take, each with the reason as the end of a sentence.

    Values are checked on builds whose ``KafkaConfig`` shows its definition (3.0 and later).

    :raises HarnessError: the build's classes cannot be asked
    """
    if not properties:
        return {}
    methods = public_methods(distribution, _CONFIG)
    if not any(".configNames()" in method for method in methods):
        raise BuildLacks(f"{_CONFIG} does not show which broker properties there are")
    shows_definition = any(".configDef()" in method for method in methods)

    def ask(jvm: JVMView) -> dict[str, str]:
        config = jvm.kafka.server.KafkaConfig
        known = str(config.configNames().mkString(",")).split(",")
        refused = {key: "has no such broker property" for key in properties if not _is_known(key, known)}
        if shows_definition:
            given = jvm.java.util.HashMap()
            for key, value in properties.items():
                given.put(key, value)
            # Arrays: the end of a Java iterator is an exception, in which pyspark's handler for py4j looks for Spark.
            for checked in config.configDef().validate(given).toArray():
                if checked.name() in properties and (errors := checked.errorMessages().toArray()):
                    refused[str(checked.name())] = f"refuses it: {errors[0]}"
        return refused

    return ask_java(distribution, ask)


def _is_known(key: str, known: list[str]) -> bool:
    """Whether a property is known, for all listeners or for one (``listener.name.NAME.PROPERTY``)."""
    return key in known or (key.startswith(_OF_LISTENER) and any(key.endswith(f".{each}") for each in known))
