"""A blocking connection to one broker, which asks that broker and no other.

It uses kafka-python's protocol classes without its client, which chooses a broker, waits for dead ones and retries. A
connection opens when first used, negotiates versions once (ApiVersions), and closes at any error.
"""

from __future__ import annotations

import socket
import struct
import threading

from kafka.errors import IncompatibleBrokerVersion, KafkaError
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from harness import timeouts
from harness.errors import BuildLacks, HarnessError
from harness.kafka.security import PLAINTEXT, ClientSecurity


class NoAnswer(HarnessError):
    """A broker could not be reached, closed the connection or took too long; its state is unknown."""


class Connection:
    """A connection to the broker at ``host:port``; any thread may use it, one at a time.

    :param timeout_s: seconds to wait for an answer, unless :meth:`ask` has its own
    :param security: how it connects
    :ivar spoke: the version in which each request was last sent, by its name, such as "Metadata"
    """

    def __init__(
        self, host: str, port: int, timeout_s: float = timeouts.REQUEST_S, security: ClientSecurity = PLAINTEXT
    ) -> None:
        self._timeout_s = timeout_s
        self.security = security
        self._tls = security.tls_context()
        self.address = f"{host}:{port}"
        self._host, self._port = host, port
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._protocol = KafkaProtocol(client_id="jbod")
        self._versions: BrokerVersionData | None = None
        self.spoke: dict[str, int] = {}

    def ask(self, request: ApiMessage, timeout_s: float | None = None) -> ApiMessage:
        """Send a request in the highest version that both sides know and return its response.

        :raises NoAnswer: no connection, or no response within ``timeout_s``
        :raises BuildLacks: broker and kafka-python have no version of the request in common
        """
        timeout_s = timeout_s or self._timeout_s
        with self._lock:
            try:
                if self._socket is None:
                    self._open(timeout_s)
                assert self._versions is not None
                request.API_VERSION = self._versions.api_version(request)
                self.spoke[request.name.removesuffix("Request")] = request.API_VERSION
                return self._round_trip(request, timeout_s)
            except IncompatibleBrokerVersion as error:
                raise BuildLacks(f"{self.address} doesn't know {request.name}: {error}") from error
            except (OSError, KafkaError) as error:  # an error of TLS is an OSError
                self._drop()
                raise NoAnswer(
                    f"{self.address} gave no answer to {request.name}: {error or type(error).__name__}"
                ) from error

    def ask_raw(self, message: bytes) -> bytes:
        """Send an encoded request, with its header; returns the response after its length.

        :raises NoAnswer: no connection, or no response
        """
        with self._lock:
            try:
                if self._socket is None:
                    self._open(self._timeout_s)
                assert self._socket is not None
                self._socket.settimeout(self._timeout_s)
                self._socket.sendall(struct.pack(">i", len(message)) + message)
                with self._socket.makefile("rb", buffering=0) as answer:
                    [size] = struct.unpack(">i", _read(answer, 4))
                    return _read(answer, size)
            except (OSError, KafkaError) as error:
                self._drop()
                raise NoAnswer(f"{self.address} gave no answer: {error or type(error).__name__}") from error

    def _open(self, timeout_s: float) -> None:
        self._socket = socket.create_connection((self._host, self._port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self._socket = self._tls.wrap_socket(self._socket, server_hostname=self._host)
        self._protocol = KafkaProtocol(client_id="jbod")
        hello = ApiVersionsRequest(client_software_name="jbod", client_software_version="1")
        hello.API_VERSION = 3  # every broker since 2.4 knows it
        answer = self._round_trip(hello, timeout_s)
        self._versions = BrokerVersionData(
            api_versions={k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
        )
        self._log_in(timeout_s)

    def _log_in(self, timeout_s: float) -> None:
        """Give the user's name and proof of the password, if there is a user."""
        user = self.security
        if not user.user:
            return
        login = get_sasl_mechanism(user.mechanism)(
            sasl_plain_username=user.user, sasl_plain_password=user.password, sasl_mechanism=user.mechanism
        )
        handshake = SaslHandshakeRequest(mechanism=user.mechanism)
        self.spoke |= {"SaslHandshake": 1, "SaslAuthenticate": 2}
        handshake.API_VERSION = 1  # the version after which SaslAuthenticate follows
        answers = [self._round_trip(handshake, timeout_s)]
        while not login.is_done() and not answers[-1].error_code:
            proof = SaslAuthenticateRequest(auth_bytes=login.auth_bytes())
            proof.API_VERSION = 2
            answers.append(self._round_trip(proof, timeout_s))
            if not answers[-1].error_code:
                login.receive(answers[-1].auth_bytes)
        if code := answers[-1].error_code:
            why = getattr(answers[-1], "error_message", None) or "unknown mechanism"
            raise ConnectionRefusedError(f"login of {user.user} refused, error {code}: {why}")

    def _round_trip(self, request: ApiMessage, timeout_s: float) -> ApiMessage:
        assert self._socket is not None
        self._socket.settimeout(timeout_s)
        self._protocol.send_request(request)
        self._socket.sendall(self._protocol.send_bytes())
        while True:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("connection closed by the broker")
            for _, response in self._protocol.receive_bytes(data):
                return response

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Close the connection; the next request would open it again."""
        with self._lock:
            self._drop()


def _read(stream: socket.SocketIO, size: int) -> bytes:
    """Read so many bytes.

    :raises ConnectionResetError: there are fewer
    """
    data = b""
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            raise ConnectionResetError("connection closed by the broker")
        data += more
    return data
