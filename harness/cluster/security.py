"""What protects the listeners of a cluster: certificates, users, and what each user may do.

With ``tls``, each node has a certificate of the cluster's own authority. With ``sasl_tls``, brokers and clients also
have passwords (SCRAM), and an authorizer decides by ACLs. A controller knows SCRAM credentials only once it has read
the metadata log, which controllers replicate only if they can log in. So users of the controllers' listener log in with
PLAIN, which needs no stored credentials (KAFKA-15513).

Certificates, keys and passwords are made for each cluster and are in its work folder only. Each node has a folder that
only its own user can read.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from harness.host.ports import HOST
from harness.kafka.acl_requests import Acl
from harness.kafka.security import PLAINTEXT, ClientSecurity, ListenerSecurity, login_module, properties_text
from harness.kafka.versions import Mode

User = Literal["broker", "admin", "client", "stranger", "describer", "mover", "cordoner"]
"""The users of a cluster: its nodes, the harness, the producers and consumers, and those that only scenarios use."""
USERS: tuple[User, ...] = get_args(User)
SUPER_USERS: tuple[User, ...] = ("broker", "admin")
"""The users that may do everything."""

ACLS = (
    Acl(user="client", resource="topic", name="*", operation="READ"),
    Acl(user="client", resource="topic", name="*", operation="WRITE"),
    Acl(user="client", resource="group", name="*", operation="READ"),
    Acl(user="client", resource="transactional_id", name="*", operation="WRITE"),
)
"""What producers and consumers need."""

_AUTHORIZERS: Mapping[Mode, str] = {
    Mode.KRAFT: "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    Mode.ZK: "kafka.security.authorizer.AclAuthorizer",
}


class ClusterSecurity:
    """The certificates, users and settings of one cluster.

    :param work_dir: the cluster's folder
    """

    def __init__(self, listeners: ListenerSecurity, work_dir: Path) -> None:
        self.listeners = listeners
        self._work_dir = work_dir
        self._passwords: Mapping[str, str] = {user: secrets.token_hex(16) for user in USERS}

    @property
    def has_users(self) -> bool:
        """Whether clients have users."""
        return self.listeners is ListenerSecurity.SASL_TLS

    @cached_property
    def _authority(self) -> trustme.CA:
        return trustme.CA()

    @cached_property
    def _ca(self) -> str:
        return self._authority.cert_pem.bytes().decode()

    # --- clients ------------------------------------------------------------------------------------------------------

    def client(self, user: User = "admin") -> ClientSecurity:
        """How a user connects to brokers."""
        if self.listeners is ListenerSecurity.PLAINTEXT:
            return PLAINTEXT
        known = ClientSecurity(listeners=self.listeners, ca=self._ca, tool_config=_tool_config(self._work_dir, user))
        return replace(known, user=user, password=self._passwords[user]) if self.has_users else known

    def controller_client(self, user: User = "admin") -> ClientSecurity:
        """How a user connects to controllers, which no tool does."""
        of_brokers = self.client(user)
        return replace(of_brokers, mechanism="PLAIN", tool_config=None) if self.has_users else of_brokers

    @property
    def passwords(self) -> Mapping[str, str]:
        """The passwords of all users; empty if clients have no users."""
        return self._passwords if self.has_users else {}

    # --- nodes --------------------------------------------------------------------------------------------------------

    def keys_dir(self, node: str) -> Path:
        """The folder of a node's key and passwords, which belongs to the node's user."""
        return self._work_dir / f"{node}-keys"

    def node_settings(self, node: str, mode: Mode, *, is_broker: bool = True) -> Mapping[str, str]:
        """The settings of a broker or controller.

        :param mode: that of the node's metadata
        """
        if self.listeners is ListenerSecurity.PLAINTEXT:
            return {}
        keys = self.keys_dir(node)
        protocol = self.listeners.protocol
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keys / "node.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(keys / "ca.pem"),
        }
        if is_broker:
            settings["inter.broker.listener.name"] = protocol
        if not self.has_users:
            return settings
        settings |= {
            "authorizer.class.name": _AUTHORIZERS[mode],
            "super.users": ";".join(f"User:{user}" for user in SUPER_USERS),
        }
        # A controller needs the second one, too: in a migration it sends requests to brokers in ZooKeeper mode.
        settings |= {
            f"listener.name.{protocol.lower()}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        }
        if mode is Mode.KRAFT:
            settings |= {
                "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.controller.protocol": "PLAIN",
            }
        return settings

    def broker_client(self, broker: str) -> Mapping[str, str]:
        """The settings with which a broker's own clients connect to brokers; its JAAS file has the password."""
        if self.listeners is ListenerSecurity.PLAINTEXT:
            return {}
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.keys_dir(broker) / "ca.pem")}
        return {**trust, **({"sasl.mechanism": "SCRAM-SHA-512"} if self.has_users else {})}

    def jvm_options(self, node: str) -> tuple[str, ...]:
        """The JVM options of a broker or controller."""
        return (f"-Djava.security.auth.login.config={self.keys_dir(node) / 'jaas.conf'}",) if self.has_users else ()

    def write_client_files(self) -> None:
        """Write the settings of clients for Kafka's tools, which run as the harness's own user."""
        if self.listeners is ListenerSecurity.PLAINTEXT:
            return
        for client in map(self.client, USERS):
            assert client.tool_config is not None
            _write_private(client.tool_config, properties_text(client.java))

    def write_node_files(self, node: str) -> None:
        """Write a node's certificate, key and passwords into its folder; the files get the folder's owner."""
        folder = self.keys_dir(node)
        # Java's clients look up the name of an address, so they may ask for localhost.
        made = self._authority.issue_cert(HOST, "localhost", node)
        key = load_pem_private_key(made.private_key_pem.bytes(), password=None)
        # Kafka reads no other format of keys.
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        chain = "".join(each.bytes().decode() for each in made.cert_chain_pems)
        _write_private(folder / "node.pem", pem + chain)
        _write_private(folder / "ca.pem", self._ca)
        if self.has_users:
            _write_private(folder / "jaas.conf", self._jaas())

    def _jaas(self) -> str:
        """The passwords by which a node logs in, and those that the controllers' listener accepts."""
        own = {"username": "broker", "password": self._passwords["broker"]}
        accepted = {f"user_{user}": password for user, password in self._passwords.items()}
        brokers, controllers = login_module("SCRAM-SHA-512", **own), login_module("PLAIN", **own, **accepted)
        sections = {
            f"{self.listeners.protocol.lower()}.KafkaServer": brokers,
            "controller.KafkaServer": controllers,
            "KafkaClient": brokers,
        }
        return "".join(f"{name} {{ {entry} }};\n" for name, entry in sections.items())


def security_of(properties: Mapping[str, str]) -> ClientSecurity:
    """Return how the harness connects to a broker with these properties, also after the run that started it.

    :raises OSError: the cluster's work folder is gone
    """
    if (trusted := properties.get("ssl.truststore.location")) is None:
        return PLAINTEXT
    return ClientSecurity.read(_tool_config(Path(trusted).parent.parent, "admin"))


def _tool_config(work_dir: Path, user: User) -> Path:
    return work_dir / f"client-{user}.properties"


UNPROTECTED = ClusterSecurity(ListenerSecurity.PLAINTEXT, Path())
"""That of a cluster without any protection."""


def _write_private(file: Path, text: str) -> None:
    """Write a file that only the owner of its folder can read."""
    owner = file.parent.stat()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as opened:  # noqa: PTH123
        opened.write(text)
    if owner.st_uid != os.getuid():
        os.chown(file, owner.st_uid, owner.st_gid)
