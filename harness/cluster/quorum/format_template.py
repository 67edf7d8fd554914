"""The files that ``kafka-storage format`` writes, made once for each build and cached as a template for every cluster.

Whatever files the tool writes are copied: a ``bootstrap.checkpoint`` up to 4.3, a snapshot in ``__cluster_metadata-0``
since 4.4. Only ``meta.properties`` has ids, which are written for each node. A run of the tool takes 0.7 to 2 s.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness import timeouts
from harness.errors import DistributionError
from harness.host.cache import cache_dir, publish
from harness.host.scratch import scratch
from harness.kafka.distribution import Distribution
from harness.kafka.tools import reason, tool_command
from harness.kafka.versions import Tool

META = "meta.properties"

Role = Literal["controller", "broker"]
"""A combined node is a controller."""
_ROLES: tuple[Role, ...] = ("controller", "broker")
_KINDS = ("metadata", "data")

_ID = 1


@dataclass(frozen=True, kw_only=True)
class FormatTemplate:
    """A template of formatted folders.

    :ivar path: contains a folder for each role, and that contains two templates: ``metadata`` for the folder with the
        metadata log, and ``data`` for the other folders
    """

    path: Path

    def write(self, dir: Path, *, role: Role, metadata: bool, cluster_id: str, node_id: int) -> None:
        """Format an empty folder of a node; its files get the folder's owner.

        :param metadata: whether the folder is to have the metadata log
        """
        template = self.path / role / ("metadata" if metadata else "data")
        owner = dir.stat()
        ids = {"cluster.id": cluster_id, "node.id": str(node_id), "directory.id": random_uuid()}
        for source in sorted(template.rglob("*")):
            made = dir / source.relative_to(template)
            if source.is_dir():
                made.mkdir()
            elif source.name == META:
                made.write_text(_with_ids(source.read_text(), ids))
            else:
                made.write_bytes(source.read_bytes())
            if owner.st_uid != os.getuid():
                os.chown(made, owner.st_uid, owner.st_gid)

    def names(self) -> set[str]:
        """The names at the top of a formatted folder, of all roles."""
        return {each.name for role in _ROLES for kind in _KINDS for each in (self.path / role / kind).iterdir()}


def format_template(distribution: Distribution, metadata_version: str | None = None) -> FormatTemplate:
    """The template of this build, made if it does not exist.

    :param metadata_version: the release version to format with, such as 4.2-IV1; None: the build's default
    :raises DistributionError: ``kafka-storage format`` failed, or its files can't be a template
    """
    suffix = "" if metadata_version is None else f"-{metadata_version}"
    release = _release_options(metadata_version)
    target = cache_dir() / f"kraft-formatted-{distribution.sha256[:16]}{suffix}"

    def make(folder: Path) -> None:
        for role in _ROLES:
            _format(distribution, folder / role, role, *release)

    return FormatTemplate(path=publish(target, make, _is_whole))


def template_with_users(
    distribution: Distribution, metadata_version: str | None, passwords: Mapping[str, str], into: Path
) -> FormatTemplate:
    """A template for one cluster, whose controllers' metadata log begins with the SCRAM credentials of users.

    :param passwords: by user
    :param into: a new folder
    :raises DistributionError: as :func:`format_template`
    """
    plain = format_template(distribution, metadata_version)
    shutil.copytree(plain.path / "broker", into / "broker")
    _format(
        distribution, into / "controller", "controller", *_release_options(metadata_version), *scram_options(passwords)
    )
    return FormatTemplate(path=into)


def scram_options(passwords: Mapping[str, str]) -> list[str]:
    """The options of ``kafka-storage format`` that add SCRAM credentials (KIP-900)."""
    credentials = [f"SCRAM-SHA-512=[name={user},password={password}]" for user, password in passwords.items()]
    return [word for each in credentials for word in ("--add-scram", each)]


def _release_options(metadata_version: str | None) -> tuple[str, ...]:
    return () if metadata_version is None else ("--release-version", metadata_version)


def random_uuid() -> str:
    """A random UUID in Kafka's format: 22 characters of URL-safe base64 that do not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _is_whole(folder: Path) -> bool:
    return all((folder / role / kind / META).is_file() for role in _ROLES for kind in _KINDS)


def _format(distribution: Distribution, into: Path, role: Role, *options: str) -> None:
    with scratch("format") as folder:
        config = folder / "server.properties"
        dirs = {kind: into / kind for kind in _KINDS}
        listener = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        voter = _ID if role == "controller" else _ID + 1
        config.write_text(
            f"process.roles={role}\nnode.id={_ID}\nlog.dirs={dirs['data']}\nmetadata.log.dir={dirs['metadata']}\n"
            f"controller.quorum.voters={voter}@127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
            f"listeners={listener}://127.0.0.1:1\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        )
        cluster_id = random_uuid()
        argv = tool_command(distribution, Tool.STORAGE, "format", "-t", cluster_id, "-c", str(config), *options)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeouts.BOOT_S, check=False)
        what = f"kafka-storage format of {distribution.origin}"
        if done.returncode:
            raise DistributionError(f"{what} failed: {reason(done.stdout.splitlines(), done.stderr)}")
        for dir in dirs.values():
            if not (dir / META).is_file():
                left = sorted(str(each.relative_to(dir)) for each in dir.rglob("*")) or "nothing"
                raise DistributionError(f"{what} left no {META} in a {role}'s {dir.name} dir, but {left}")
            _check_no_ids(dir, what, cluster_id)


def _check_no_ids(dir: Path, what: str, cluster_id: str) -> None:
    """Check that only meta.properties contains ids, since every cluster gets copies of the other files.

    :raises DistributionError: another file contains an id
    """
    ids = _properties((dir / META).read_text())
    for name, text in {"cluster.id": cluster_id, "directory.id": ids.get("directory.id", "")}.items():
        raw = base64.urlsafe_b64decode(text + "==")
        for file in (each for each in dir.rglob("*") if each.is_file() and each.name != META):
            content = file.read_bytes()
            if text and (text.encode() in content or raw in content):
                raise DistributionError(f"{what} wrote the {name} into {file.name}, which jbod can't replace")


def _properties(text: str) -> Mapping[str, str]:
    lines = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in lines}


def _with_ids(text: str, ids: Mapping[str, str]) -> str:
    """The properties with other ids; adds ``directory.id`` if the build does not write one (before 3.7)."""
    return "".join(f"{key}={value}\n" for key, value in {**_properties(text), **ids}.items())
