"""Reads the records of a metadata log, by ``kafka-dump-log --cluster-metadata-decoder``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ToolFailed
from harness.kafka.distribution import Distribution
from harness.kafka.tools_jvm import tool_lines
from harness.kafka.versions import Tool

_SNAPSHOT = re.compile(r"Dumping \S+/(\d+)-\d+\.checkpoint")
_BATCH = re.compile(r"baseOffset: (\d+) ")
_RECORD = re.compile(r"\| offset: (\d+) (?:.*? )?payload: (.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataRecord:
    """A record of a metadata log or of a snapshot.

    :ivar offset: in its file: a snapshot counts its own records
    :ivar batch: the offset of the first record of its batch
    :ivar kind: such as ``PARTITION_CHANGE_RECORD``
    :ivar data: the fields; one of a change has only those that change
    """

    offset: int
    batch: int
    kind: str
    version: int
    data: Mapping[str, Any]
    in_snapshot: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {json.dumps(self.data)}"


def read_records(lines: Iterable[str]) -> Iterator[MetadataRecord]:
    """Yield the records in the lines of a dump, in their order.

    Control records are not among them, nor those of a log that a snapshot before it has.

    :raises ToolFailed: Kafka's tool could not decode a record
    """
    batch, in_snapshot, begins = 0, False, 0
    for line in lines:
        if dumped := _SNAPSHOT.match(line):
            in_snapshot, begins = True, int(dumped[1])
        elif line.startswith("Dumping "):
            in_snapshot = False
        elif found := _BATCH.match(line):
            batch = int(found[1])
        elif found := _RECORD.match(line):
            if not in_snapshot and int(found[1]) < begins:
                continue
            try:
                content = json.loads(found[2])
            except ValueError as error:
                raise ToolFailed(f"kafka-dump-log could not decode the record at offset {found[1]}: {line}") from error
            yield MetadataRecord(
                offset=int(found[1]),
                batch=batch,
                kind=content["type"],
                version=content["version"],
                data=content["data"],
                in_snapshot=in_snapshot,
            )


def dump_records(distribution: Distribution, *files: Path) -> list[MetadataRecord]:
    """Return the records in files of a metadata log, and in snapshots, in the order of the files.

    :raises ToolFailed: the build's tool can't read a file
    """
    arguments = ("--cluster-metadata-decoder", "--files", ",".join(map(str, files)))
    return list(read_records(tool_lines(distribution, Tool.DUMP_LOG, *arguments)))


def read_metadata_log(distribution: Distribution, metadata_log: Path) -> list[MetadataRecord]:
    """Return the records of a metadata log, after those of a snapshot if it has no offset 0.

    :raises ToolFailed: the build's tool can't read a file
    """
    return dump_records(distribution, *_files_of(metadata_log))


def _files_of(metadata_log: Path) -> list[Path]:
    """Return the segments of a metadata log, after the snapshot that it begins with if it has no offset 0."""
    logs = sorted(metadata_log.glob("*.log"))
    begins = int(logs[0].stem) if logs else 0
    snapshots = [
        each for each in sorted(metadata_log.glob("*.checkpoint")) if begins <= int(each.stem.partition("-")[0])
    ]
    return [*snapshots[:1], *logs] if begins else logs
