"""The connection between the driver and a long-running task, for reports and commands.

Spark reports nothing to the driver about a task before the task ends. A scenario must know within a second whether
records get through, and must be able to stop a task cleanly. So each task connects to a server in the driver, reports
its progress several times a second, and takes commands. If the connection breaks, the driver is gone or has dropped the
task, and the task ends by itself.

Messages are lines of JSON over a socket on 127.0.0.1, guarded by a secret that is sent with the task.
``multiprocessing.connection`` does not fit: its ``accept`` blocks until the first client has authenticated, and it
unpickles what it receives. Records do not pass here. In the task, a separate thread sends the newest report and drops
older ones.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import msgspec

REPORT_S = 0.1
_CONNECT_S = 10.0

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command to a task: what it must do now."""

    do: Literal["stop", "abort"]
    at: Mapping[int, int] = field(default_factory=dict)
    """By partition: the offsets up to which a consumer reads before it stops."""


STOP = Command(do="stop")
"""End cleanly: a producer waits for the outcome of all records sent, a consumer reads up to the given offsets."""
ABORT = Command(do="abort")
"""End immediately; records without an outcome are stored as they are."""


@dataclass(frozen=True, kw_only=True)
class TaskEndpoint:
    """What a task needs to connect to its driver; it is sent with the task."""

    port: int
    secret: str
    task: str


class _Hello(msgspec.Struct):
    """The first message of a task."""

    secret: str = ""
    task: str = ""


class Channel(Generic[R_co]):
    """The driver's end of the connection to one task.

    :param first: the report before the task has sent one; all its reports have this type
    :ivar report: the newest report
    """

    def __init__(
        self, task: str, first: R_co, on_close: Callable[[], object], on_report: Callable[[R_co], object]
    ) -> None:
        self.task = task
        self.report = first
        self.connected = False
        self.closed = False
        self._on_close = on_close
        self._on_report = on_report
        self._decoder = msgspec.json.Decoder(type(first))
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._waiting: list[Command] = []

    def send(self, command: Command) -> None:
        """Send a command now, or as soon as the task connects; does nothing if the task is gone."""
        with self._lock:
            if self._socket is None:
                self._waiting.append(command)
            else:
                with suppress(OSError):
                    self._socket.sendall(_line(command))

    def close(self) -> None:
        """Drop the task: it ends by itself within about :data:`REPORT_S`."""
        with self._lock:
            self.closed = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _attach(self, connection: socket.socket) -> bool:
        with self._lock:
            if self.closed or self.connected:
                return False
            self._socket, self.connected = connection, True
            for command in self._waiting:
                connection.sendall(_line(command))
            return True

    def _receive(self, line: bytes) -> None:
        self.report = self._decoder.decode(line)
        self._on_report(self.report)


class ControlServer:
    """The driver's end of all connections; one per run."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(16)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._channels: dict[str, Channel[object]] = {}
        threading.Thread(target=self._accept, name="pipeline-control", daemon=True).start()

    def open(
        self,
        task: str,
        first: R,
        *,
        on_close: Callable[[], object] = lambda: None,
        on_report: Callable[[R], object] = lambda _: None,
    ) -> tuple[Channel[R], TaskEndpoint]:
        """Prepare for a task; the driver uses the channel, the task the endpoint.

        :param task: a name that is used once
        :param first: see :class:`Channel`
        :param on_close: called when the connection has ended, whichever side ended it
        :param on_report: called with each report, in the connection's thread
        """
        if task in self._channels:
            raise ValueError(f"a task named {task} was started before")
        channel = Channel(task, first, on_close, on_report)
        self._channels[task] = channel
        return channel, TaskEndpoint(port=self._listener.getsockname()[1], secret=self._secret, task=task)

    def close(self) -> None:
        """Drop all tasks and accept no more."""
        # On Linux, close alone leaves the accepting thread waiting.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for channel in self._channels.values():
            channel.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="pipeline-task", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        channel: Channel[object] | None = None
        try:
            with connection, connection.makefile("rb") as lines:
                hello = msgspec.json.decode(lines.readline() or b"{}", type=_Hello)
                if not secrets.compare_digest(hello.secret, self._secret):
                    return
                channel = self._channels.get(hello.task)
                if channel is None or not channel._attach(connection):
                    channel = None
                    return
                for line in lines:
                    channel._receive(line)
        except (OSError, ValueError, msgspec.MsgspecError):
            pass  # the task is gone, and its Spark job has the error
        finally:
            if channel is not None:
                channel.closed = True
                channel._on_close()


class DriverLink:
    """The task's end of the connection.

    :ivar command: the newest command; None before the first
    :ivar driver_gone: set when the connection has ended
    """

    def __init__(self, endpoint: TaskEndpoint) -> None:
        self.driver_gone = threading.Event()
        self.command: Command | None = None
        self._published: object = None
        self._socket = socket.create_connection(("127.0.0.1", endpoint.port), timeout=_CONNECT_S)
        self._socket.sendall(_line(_Hello(secret=endpoint.secret, task=endpoint.task)))
        self._socket.settimeout(None)  # only this thread ever waits for the driver
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._talk, name="driver-link", daemon=True)
        self._thread.start()

    @property
    def aborted(self) -> bool:
        """Whether the task must end immediately."""
        return self.driver_gone.is_set() or self.command == ABORT

    @property
    def told_to_end(self) -> bool:
        """Whether the task must end, immediately or cleanly."""
        return self.driver_gone.is_set() or self.command is not None

    def publish(self, report: object) -> None:
        """Set the newest report, which is sent within :data:`REPORT_S`; never blocks."""
        self._published = report

    def close(self) -> None:
        """Send the last report and end the connection."""
        self._closing.set()
        self._thread.join(timeout=2 * _CONNECT_S)

    def _talk(self) -> None:
        sent: object = None
        received = b""
        try:
            while True:
                closing = self._closing.is_set()
                newest = self._published
                if newest is not sent:
                    self._socket.sendall(_line(newest))
                    sent = newest
                if closing:
                    return
                if not select.select([self._socket], [], [], REPORT_S)[0]:
                    continue
                chunk = self._socket.recv(65536)
                if not chunk:
                    self.driver_gone.set()
                    return
                *lines, received = (received + chunk).split(b"\n")
                for line in lines:
                    self.command = msgspec.json.decode(line, type=Command)
        except OSError:
            self.driver_gone.set()
        finally:
            self._socket.close()


def _line(message: object) -> bytes:
    return msgspec.json.encode(message) + b"\n"
