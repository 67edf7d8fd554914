"""Makes the class data archive that speeds up node starts (:mod:`harness.host.class_data`).

A one-broker cluster, started for this purpose, writes the archive.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.cluster.cluster import boot
from harness.cluster.nodes.backends import backend_kind
from harness.cluster.spec import ClusterSpec
from harness.errors import EnvironmentLacks, HarnessError, JbodError
from harness.host import class_data
from harness.journal import Journal
from harness.kafka.distribution import Distribution
from harness.kafka.tools import archive_classes
from harness.kafka.versions import Mode


def prepare_fast_starts(distribution: Distribution, mode: Mode, backend: str, say: Callable[[str], None]) -> bool:
    """Make the class data archive for this build, mode and backend if it does not exist; returns whether it exists.

    A mutant has none: it runs few cases, and the archive would cost as much as it saves. A failure only makes starts
    slower, so it goes to ``say``.

    :raises EnvironmentLacks: the machine does not have the backend
    """
    runtime = backend_kind(backend).runtime(distribution, mode, say)
    if distribution.mutant is not None:
        return False

    def make(folder: Path) -> None:
        say("preparing fast starts, once for this build, mode and Java")
        cluster = boot(
            # The JVM makes no archive while an agent is loaded.
            ClusterSpec(mode=mode, brokers=1, log_dirs=1, mbeans=False, backend=backend),
            distribution,
            run_id=f"classes-{secrets.token_hex(3)}",
            record_dir=folder,
            journal=Journal(None),
            jvm_options=(class_data.MAKE_OPTION,),
        )
        try:
            cluster.create_topic("classes", partitions=1, replicas=1)
            with contextlib.suppress(HarnessError):
                archive_classes(distribution, cluster.bootstrap)
            cluster.brokers[0].stop()
            shutil.copyfile(cluster.undo_log.dir / "broker-1" / class_data.NAME, folder / class_data.NAME)
            shutil.rmtree(folder / "brokers")
        finally:
            cluster.stop()

    try:
        class_data.prepare(runtime.classes(mode), runtime.java_version, make)
    except EnvironmentLacks:  # cases would fail too
        raise
    except (JbodError, OSError) as error:
        say(f"brokers will start more slowly: {error}")
    return runtime.classes(mode).exists()
