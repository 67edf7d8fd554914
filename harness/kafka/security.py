"""How clients connect to listeners: in plain text, with TLS, or with TLS and a user's password (SASL).

This is the one place that knows the settings of each client library. :class:`ClientSecurity` belongs to one user of one
cluster, and :class:`Bootstrap` adds the addresses of brokers.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from harness.kafka.versions import Tool

Mechanism = Literal["SCRAM-SHA-512", "PLAIN"]
_MODULES: Mapping[Mechanism, str] = {
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
}


class ListenerSecurity(StrEnum):
    """What protects the listeners of a cluster (``--listener-security``).

    :cvar PLAINTEXT: nothing
    :cvar TLS: TLS; clients verify brokers, and are not asked who they are
    :cvar SASL_TLS: TLS, users with passwords, and an authorizer with ACLs
    """

    PLAINTEXT = "plaintext"
    TLS = "tls"
    SASL_TLS = "sasl_tls"

    @property
    def protocol(self) -> str:
        """Kafka's name of the protocol."""
        return {"plaintext": "PLAINTEXT", "tls": "SSL", "sasl_tls": "SASL_SSL"}[self]

    @property
    def protocol_id(self) -> int:
        """Kafka's number of the protocol (``SecurityProtocol``)."""
        return {"plaintext": 0, "tls": 1, "sasl_tls": 3}[self]


def login_module(mechanism: Mechanism, **options: str) -> str:
    """Return an entry of a JAAS configuration (``sasl.jaas.config``)."""
    given = "".join(f' {name}="{value}"' for name, value in options.items())
    return f"{_MODULES[mechanism]} required{given};"


@dataclass(frozen=True, kw_only=True)
class ClientSecurity:
    """How one user connects.

    :ivar listeners: what protects the listeners
    :ivar ca: the certificate that signed those of the brokers, as PEM
    :ivar user: empty: no user
    :ivar tool_config: a file with :attr:`java` for Kafka's tools
    """

    listeners: ListenerSecurity = ListenerSecurity.PLAINTEXT
    ca: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: Mechanism = "SCRAM-SHA-512"
    tool_config: Path | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a client needs no settings."""
        return self.listeners is ListenerSecurity.PLAINTEXT

    @property
    def java(self) -> Mapping[str, str]:
        """The settings of a Java client."""
        if self.is_plain:
            return {}
        tls = {
            "security.protocol": self.listeners.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.ca,
        }
        if not self.user:
            return tls
        return {
            **tls,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": login_module(self.mechanism, username=self.user, password=self.password),
        }

    @property
    def librdkafka(self) -> Mapping[str, str]:
        """The settings of a librdkafka client."""
        if self.is_plain:
            return {}
        tls = {"security.protocol": self.listeners.protocol.lower(), "ssl.ca.pem": self.ca}
        if not self.user:
            return tls
        return {**tls, "sasl.mechanisms": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}

    @classmethod
    def read(cls, file: Path) -> ClientSecurity:
        """The user of a file with :attr:`java`.

        :raises OSError: there is no such file
        """
        settings = dict(line.split("=", 1) for line in file.read_text().splitlines())
        login = dict(re.findall(r'(\w+)="([^"]*)"', settings.get("sasl.jaas.config", "")))
        of_protocol = {each.protocol: each for each in ListenerSecurity}
        return cls(
            listeners=of_protocol[settings["security.protocol"]],
            ca=settings["ssl.truststore.certificates"].replace("\\n", "\n"),
            user=login.get("username", ""),
            password=login.get("password", ""),
            tool_config=file,
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS settings of a socket; None if it has no TLS."""
        return None if self.is_plain else ssl.create_default_context(cadata=self.ca)


PLAINTEXT = ClientSecurity()
"""A client that needs no settings."""

_CONFIG_OPTIONS: Mapping[Tool, str] = {
    Tool.CLUSTER: "--config",
    Tool.LEADER_ELECTION: "--admin.config",
    Tool.VERIFIABLE_PRODUCER: "--producer.config",
    Tool.VERIFIABLE_CONSUMER: "--consumer.config",
}
"""The option for the client's settings, where it is not ``--command-config``."""


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """The brokers that a client asks first, and how it connects.

    :ivar addresses: ``host:port``, several with commas
    """

    addresses: str
    security: ClientSecurity = PLAINTEXT

    def __str__(self) -> str:
        return self.addresses

    @property
    def librdkafka(self) -> Mapping[str, str]:
        """The settings with which a librdkafka client connects."""
        return {"bootstrap.servers": self.addresses, **self.security.librdkafka}

    @property
    def java(self) -> Mapping[str, str]:
        """The settings with which a Java client connects."""
        return {"bootstrap.servers": self.addresses, **self.security.java}

    @property
    def spark(self) -> Mapping[str, str]:
        """The options with which Spark's Kafka source connects."""
        return {f"kafka.{name}": value for name, value in self.java.items()}

    def of_tool(self, tool: Tool) -> tuple[str, ...]:
        """The options with which one of Kafka's tools connects."""
        at = ("--bootstrap-server", self.addresses)
        if self.security.tool_config is None:
            return at
        return (*at, _CONFIG_OPTIONS.get(tool, "--command-config"), str(self.security.tool_config))


def properties_text(settings: Mapping[str, str]) -> str:
    """Return a Java properties file; line breaks in values are escaped."""
    escaped = {name: value.replace("\n", "\\n") for name, value in settings.items()}
    return "".join(f"{name}={value}\n" for name, value in escaped.items())
