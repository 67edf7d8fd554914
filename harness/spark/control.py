"""How the driver and its long-running tasks talk while Spark only waits.

Spark tells a driver nothing of a task before it ends; a scenario needs to know within a second whether records get
through, and must be able to end a task in good order. So every task holds one connection to a server in the driver:
it reports its progress some times a second, and takes commands. The connection is also the leash: when it breaks, the
driver is dead (or has let go of this task) and the task ends by itself.

JSON lines over a socket on 127.0.0.1, opened by a secret that travels with the task, and not
``multiprocessing.connection``: its ``accept`` waits for whoever connects first to prove himself, and it unpickles
what it is sent. Nothing here is on the data path: a thread of its own sends the newest progress and drops the rest.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

REPORT_S = 0.1
_CONNECT_S = 10.0

STOP = "stop"
"""End in good order: a producer settles all that it has sent, a consumer ends where it is or at the offsets given."""
ABORT = "abort"
"""End at once; what is not settled is written down as it stands."""

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskEndpoint:
    """What a task needs to connect to its driver; travels with the task."""

    port: int
    secret: str
    task: str


class Channel:
    """The driver's end of the connection to one task."""

    def __init__(self, task: str, on_close: Callable[[], object], on_report: Callable[[Message], object]) -> None:
        self.task = task
        self._on_close = on_close
        self._on_report = on_report
        self.progress: Message | None = None
        """The newest report; None before the first."""
        self.connected = False
        self.closed = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._waiting: list[Message] = []

    def send(self, command: str, **arguments: Any) -> None:
        """Tell the task something, now or as soon as it connects; a task that is gone hears nothing."""
        message = {"do": command} | arguments
        with self._lock:
            if self._socket is None:
                self._waiting.append(message)
            else:
                with suppress(OSError):
                    self._socket.sendall(_line(message))

    def close(self) -> None:
        """Let go of the task: it ends by itself within :data:`REPORT_S` or so."""
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
            for message in self._waiting:
                connection.sendall(_line(message))
            return True


class ControlServer:
    """The driver's end of all connections; one a run."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(16)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._channels: dict[str, Channel] = {}
        threading.Thread(target=self._accept, name="pipeline-control", daemon=True).start()

    def open(
        self,
        task: str,
        *,
        on_close: Callable[[], object] = lambda: None,
        on_report: Callable[[Message], object] = lambda _: None,
    ) -> tuple[Channel, TaskEndpoint]:
        """Expect a task of this name, once; the invitation is for the task, the channel for the driver.

        :param on_close: called when the connection has ended, from whichever side, if there ever was one
        :param on_report: called with each report, in the connection's thread
        """
        if task in self._channels:
            raise ValueError(f"a task named {task} was started before")
        channel = self._channels[task] = Channel(task, on_close, on_report)
        return channel, TaskEndpoint(port=self._listener.getsockname()[1], secret=self._secret, task=task)

    def close(self) -> None:
        """Let go of all tasks and take no more."""
        # shutdown, not only close: on Linux close alone leaves the accepting thread waiting.
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
        channel: Channel | None = None
        try:
            with connection, connection.makefile("rb") as lines:
                hello = json.loads(lines.readline() or b"{}")
                if not secrets.compare_digest(str(hello.get("secret")), self._secret):
                    return
                channel = self._channels.get(hello["task"])
                if channel is None or not channel._attach(connection):
                    channel = None
                    return
                for line in lines:
                    report = channel.progress = json.loads(line)
                    channel._on_report(report)
        except (OSError, ValueError):
            pass  # the task is gone; what it left behind is its Spark job's to say
        finally:
            if channel is not None:
                channel.closed = True
                channel._on_close()


class DriverLink:
    """The task's end: publish progress, look at what was commanded."""

    def __init__(self, invitation: TaskEndpoint) -> None:
        self.driver_gone = threading.Event()
        self.command: Message | None = None
        """The newest command, None before the first."""
        self._published: Message | None = None
        self._socket = socket.create_connection(("127.0.0.1", invitation.port), timeout=_CONNECT_S)
        self._socket.sendall(_line({"secret": invitation.secret, "task": invitation.task}))
        self._socket.settimeout(None)  # only this thread ever waits for the driver
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._talk, name="driver-link", daemon=True)
        self._thread.start()

    def publish(self, progress: Message) -> None:
        """Set the newest progress; sent within :data:`REPORT_S`, never waits."""
        self._published = progress

    def close(self) -> None:
        """Send the last progress and end the connection."""
        self._closing.set()
        self._thread.join(timeout=2 * _CONNECT_S)

    def _talk(self) -> None:
        sent: Message | None = None
        received = b""
        try:
            while True:
                closing = self._closing.is_set()
                newest = self._published
                if newest is not sent and newest is not None:
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
                    self.command = json.loads(line)
        except OSError:
            self.driver_gone.set()
        finally:
            self._socket.close()


def _line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
