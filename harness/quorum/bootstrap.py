"""The ``bootstrap.checkpoint`` of a KRaft controller, made once a build by ``kafka-storage format`` and cached.

It holds the finalized features of a new cluster (``org.apache.kafka.metadata.bootstrap.BootstrapDirectory``), neither
cluster nor node, so one serves every cluster of that build.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness import timeouts
from harness.errors import DistributionError
from harness.machine.cache import cache_dir, publish
from harness.machine.scratch import scratch
from harness.quorum.kraft import CONTROLLER_ID, random_uuid
from harness.releases.distribution import Distribution
from harness.releases.tools import tool_command
from harness.releases.versions import Tool

_NAME = "bootstrap.checkpoint"


def bootstrap_checkpoint(distribution: Distribution, metadata_version: str | None = None) -> Path:
    """Where this build's checkpoint is; made if it isn't there yet.

    :param metadata_version: with the features of that version, such as 4.2-IV1; None: the build's own
    :raises DistributionError: ``kafka-storage format`` refused, with its last line
    """
    of = "" if metadata_version is None else f"-{metadata_version}"
    target = cache_dir() / f"kraft-bootstrap-{distribution.sha256[:16]}{of}"
    release = () if metadata_version is None else ("--release-version", metadata_version)
    made = publish(
        target, lambda folder: _format(distribution, folder, *release), lambda folder: (folder / _NAME).is_file()
    )
    return made / _NAME


def _format(distribution: Distribution, into: Path, *release: str) -> None:
    with scratch("format") as folder:
        config, log_dir = folder / "server.properties", folder / "metadata"
        config.write_text(
            f"process.roles=controller\nnode.id={CONTROLLER_ID}\nlog.dirs={log_dir}\n"
            f"controller.quorum.voters={CONTROLLER_ID}@127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
            "listeners=CONTROLLER://127.0.0.1:1\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT\n"
        )
        argv = tool_command(distribution, Tool.STORAGE, "format", "-t", random_uuid(), "-c", str(config), *release)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeouts.BOOT_S, check=False)
        made = log_dir / _NAME
        if done.returncode or not made.exists():
            last = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
            raise DistributionError(f"kafka-storage format of {distribution.origin} failed; it said: {last[-1]}")
        (into / _NAME).write_bytes(made.read_bytes())
