"""A stand-in for a Docker engine, for what a real one can't be brought to: it listens at a socket and says what a test
has it say. Nothing behind it is Docker's."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers as an engine of the given version does when it is asked for it."""

    version = "20.10.24"
    api = "1.41"
    security: tuple[str, ...] = ()
    folder = "/nowhere/docker"

    def do_GET(self) -> None:
        facts = {"Version": self.version, "ApiVersion": self.api, "SecurityOptions": [*self.security], "ExitCode": 3}
        has = {"DockerRootDir": self.folder}
        self.answer([] if self.path.partition("?")[0].endswith("/images/json") else facts | has)

    def answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def answering(path: Path, **facts: Any) -> Iterator[None]:
    """Inside the block a stand-in listens at this path.

    :param facts: what it has in place of :class:`StandIn`'s attributes and methods
    """
    with socketserver.UnixStreamServer(str(path), type("Engine", (StandIn,), facts)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
