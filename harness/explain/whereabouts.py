"""Finds where records lie now: in which replica's folder, on which log dir, and whether the broker serves it.

It reads the log dirs from the run folder (each broker's ``server.properties``) and not from the running harness, so it
also works later, on a cluster that was kept. "Now" is right after the verdict, or when ``jbod explain`` is called while
the cluster still exists. A record counts only on a log dir that its broker reports as online.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.security import security_of
from harness.errors import HarnessError
from harness.explain.records import Facts
from harness.explain.segments import Contents, Name, StoredRecord, read_contents
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.connection import Connection, NoAnswer
from harness.kafka.distribution import Distribution
from harness.kafka.security import ClientSecurity

ONLINE = "online"
_NOT_PROPER = ("-future", "-delete", "-stray")


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A folder of a partition on one broker, and what it holds of a record.

    :ivar folder: such as ``orders-0``; that of a future, deleted or stray replica ends in ``-future``, ``-delete`` or
        ``-stray``
    :ivar state: of the log dir: "online", its error, or that its broker does not answer
    :ivar copies: where the record lies in the segments; empty if it does not
    :ivar instead: offsets at which this record was acked or read and another record is now, with that record's name
    :ivar offsets: the first and last offset of the log; None if it is empty
    :ivar log_start: the log start offset of the leader; segments may still hold records below it, which were deleted
        or expired. None if there is no leader
    """

    broker: int
    log_dir: str
    folder: str
    state: str
    copies: tuple[StoredRecord, ...] = ()
    instead: tuple[tuple[int, str], ...] = ()
    offsets: tuple[int, int] | None = None
    log_start: int | None = None

    @property
    def serves(self) -> bool:
        """Whether it is the folder of a current replica, on a log dir that is online."""
        return self.state == ONLINE and not self.folder.endswith(_NOT_PROPER)

    @property
    def held(self) -> tuple[StoredRecord, ...]:
        """The records that count: in a folder that the broker serves, and not below the log start offset."""
        return tuple(copy for copy in self.copies if self.serves and copy.offset >= (self.log_start or 0))

    @property
    def why_not_held(self) -> str:
        """Why the records do not count as :attr:`held`."""
        if self.state != ONLINE:
            return self.state
        return f"deleted, the log starts at {self.log_start}" if self.serves else "not a current replica"


@dataclass(frozen=True, kw_only=True)
class _Broker:
    """A broker, from its server.properties."""

    id: int
    host: str
    port: int
    log_dirs: tuple[Path, ...]
    security: ClientSecurity

    def connection(self) -> Connection:
        """A connection of the harness's own user."""
        return Connection(self.host, self.port, security=self.security)


def brokers_of(run_dir: Path) -> list[_Broker]:
    """Return the brokers of a run folder that have a log dir which still exists.

    :raises HarnessError: a server.properties does not say where clients reach its broker
    """
    found = []
    for path in run_dir.glob("brokers/*/server.properties"):
        settings = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
        if path.parent.name.isdigit() and "log.dirs" in settings:
            # The last one is for clients (in a container, the first is for the other brokers).
            listeners = settings.get("advertised.listeners", "")
            host, _, port = listeners.rpartition("://")[2].rpartition(":")
            if not port.isdecimal():
                raise HarnessError(
                    f"{path}: advertised.listeners is {listeners!r}, which has no port: jbod did not write this file"
                )
            dirs = tuple(map(Path, settings["log.dirs"].split(",")))
            if any(each.exists() for each in dirs):
                security, id = security_of(settings), int(path.parent.name)
                found.append(_Broker(id=id, host=host, port=int(port), log_dirs=dirs, security=security))
    return sorted(found, key=lambda broker: broker.id)


@dataclass(frozen=True, kw_only=True)
class _Folder:
    """One folder of a partition on one log dir."""

    path: Path
    partition: tuple[str, int]
    broker: int
    state: str
    log_start: int | None


def look(
    run_dir: Path, distribution: Distribution, run_token: str, records: Sequence[Facts]
) -> dict[Name, list[Replica]]:
    """Look for each record in every folder of its partitions.

    :raises HarnessError: as :func:`harness.explain.segments.read_contents`
    """
    partitions = {place[:2] for facts in records for place in facts.places}
    brokers = brokers_of(run_dir)
    starts = _log_starts(brokers, partitions)
    folders = []
    for broker in brokers:
        states = _log_dir_states(broker)
        for log_dir in broker.log_dirs:
            state = states.get(log_dir, "its broker does not describe it")
            for partition in sorted(partitions):
                folders += [
                    _Folder(path=p, partition=partition, broker=broker.id, state=state, log_start=starts.get(partition))
                    for p in _folders(log_dir, *partition)
                ]
    offsets = {place[2] for facts in records for place in facts.places if place[2] is not None}
    names = {facts.name for facts in records}
    contents = read_contents(distribution, [folder.path for folder in folders], run_token, names, offsets)
    return {
        facts.name: [
            _replica(facts, folder, contents[folder.path])
            for folder in folders
            if any(place[:2] == folder.partition for place in facts.places)
        ]
        for facts in records
    }


def _log_starts(brokers: Sequence[_Broker], partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the log start offset of each partition that has a leader."""
    found = {}
    for broker in brokers:
        connection = broker.connection()
        for partition in partitions:
            with suppress(NoAnswer, Refused):  # this broker is not the leader
                found[partition] = Admin(connection).start_offset(*partition)
        connection.close()
    return found


def _folders(log_dir: Path, topic: str, partition: int) -> list[Path]:
    """Return the folders of a partition in a log dir: of its current, future, deleted and stray replicas."""
    try:
        names = [path for path in log_dir.iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(p for p in names if p.name == f"{topic}-{partition}" or p.name.startswith(f"{topic}-{partition}."))


def _log_dir_states(broker: _Broker) -> dict[Path, str]:
    connection = broker.connection()
    try:
        return {Path(state.path): state.error or ONLINE for state in Admin(connection).describe_log_dirs()}
    except NoAnswer:
        return dict.fromkeys(broker.log_dirs, "its broker does not answer")
    finally:
        connection.close()


def _replica(facts: Facts, folder: _Folder, contents: Contents) -> Replica:
    offsets = sorted({place[2] for place in facts.places if place[:2] == folder.partition and place[2] is not None})
    lying = [(offset, contents.at[offset]) for offset in offsets if offset in contents.at]
    return Replica(
        broker=folder.broker,
        log_dir=folder.path.parent.name,
        folder=folder.path.name,
        state=folder.state,
        copies=tuple(contents.copies.get(facts.name, ())),
        instead=tuple(
            (offset, "a record of no producer of the run" if name is None else f"{name[0]} #{name[1]}")
            for offset, name in lying
            if name != facts.name
        ),
        offsets=None if contents.first is None or contents.last is None else (contents.first, contents.last),
        log_start=folder.log_start,
    )
