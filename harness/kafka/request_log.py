"""The requests that a broker or controller answers, with their versions and fields, from its request log.

A node writes the request log while the level of :data:`LOGGER` is DEBUG. The level is set at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import msgspec

from harness.journal import now
from harness.kafka.admin import Admin
from harness.kafka.broker_log import BrokerLog

LOGGER = "kafka.request.logger"
_END = f" ({LOGGER})"


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request and its response, with the fields that their version has.

    :ivar at: when the node logged them, after the response
    :ivar name: of the request, such as BROKER_HEARTBEAT
    :ivar client_id: the name that the client gave itself
    """

    at: datetime
    name: str
    client_id: str | None = None
    version: int
    request: Mapping[str, object]
    response: Mapping[str, object]


class _Header(msgspec.Struct, rename="camel"):
    request_api_key_name: str
    request_api_version: int
    client_id: str | None = None


class _Line(msgspec.Struct, rename="camel"):
    """The fields of a line that are read. Kafka logs some requests, such as FETCH, with null or a text for theirs."""

    request_header: _Header
    request: dict[str, object] | str | None
    response: dict[str, object] | str | None


@dataclass(frozen=True, kw_only=True)
class RequestLog:
    """The request log of a node from one time on."""

    log: BrokerLog
    since: datetime

    def of(self, name: str) -> list[Exchange]:
        """The requests of this name so far, oldest first."""
        return [each for each in self._all() if each.name == name]

    def _all(self) -> Iterator[Exchange]:
        for line in self.log.lines(since=self.since):
            text = line.text.rstrip()
            if "Completed request:" in line.text and text.endswith(_END):  # else the line is not complete yet
                read = msgspec.json.decode(text.removeprefix("Completed request:").removesuffix(_END), type=_Line)
                yield Exchange(
                    at=line.at,
                    name=read.request_header.request_api_key_name,
                    client_id=read.request_header.client_id,
                    version=read.request_header.request_api_version,
                    request=read.request if isinstance(read.request, dict) else {},
                    response=read.response if isinstance(read.response, dict) else {},
                )


@contextmanager
def requests_logged(admin: Admin, node: int, log: BrokerLog) -> Iterator[RequestLog]:
    """Inside the block, a node logs its requests.

    :param admin: of the node
    :param node: its id
    :param log: of the node
    """
    since = now()
    with admin.log_levels(node, {LOGGER: "DEBUG"}):
        yield RequestLog(log=log, since=since)
