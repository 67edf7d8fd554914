"""A fake Docker engine for states that a real one cannot be brought into.

It listens at a socket and gives the answers that a test sets; no code of Docker's is behind it.
"""

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
    """Answers requests for the engine's version, facts and images."""

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
    """Inside the block, a fake engine listens at this path.

    :param facts: attributes and methods that replace those of :class:`StandIn`
    """
    with socketserver.UnixStreamServer(str(path), type("Engine", (StandIn,), facts)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
