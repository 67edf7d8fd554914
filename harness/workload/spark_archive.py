"""Makes the class data archive that speeds up the start of Spark's JVM (:mod:`harness.spark.class_archive`).

A JVM writes its archive when it ends. So a process of its own starts a session, warms it up as each case does, and ends
it: ``python -m harness.workload.spark_archive FOLDER JAR…``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.errors import EnvironmentLacks, HarnessError, JbodError
from harness.host import class_data
from harness.host.java import java_version
from harness.spark.class_archive import archive_of
from harness.spark.session import end_spark, spark_session
from harness.workload.warm_up import warm_up

MAKE_S = 240.0
"""The archive took 12 s on idle cores, and 27 s beside another run."""
_WRITE_S = 120.0


def prepare_spark_archive(jars: Sequence[Path], say: Callable[[str], None]) -> None:
    """Make the archive if it does not exist. A failure only makes starts slower, so it goes to ``say``.

    :param jars: Spark's Kafka connector and its dependencies
    :raises EnvironmentLacks: there is no Java
    """

    def make(folder: Path) -> None:
        say("preparing fast starts of Spark, once for this version and Java")
        command = [sys.executable, "-P", "-m", __name__, str(folder), *map(str, jars)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAKE_S)
        except subprocess.TimeoutExpired as error:
            raise HarnessError(f"Spark made no class data archive within {MAKE_S:.0f} s") from error
        if done.returncode:
            raise HarnessError(f"Spark made no class data archive: {(done.stderr.strip().splitlines() or ['?'])[-1]}")

    try:
        class_data.prepare(archive_of(jars), java_version()[1], make)
    except EnvironmentLacks:  # cases would fail too
        raise
    except (JbodError, OSError) as error:
        say(f"Spark will start more slowly: {error}")


if __name__ == "__main__":
    home, *connector = sys.argv[1:]
    warm_up(
        spark_session(
            None, jars=[Path(jar) for jar in connector], jvm_options=[class_data.MAKE_OPTION.format(home=home)]
        )
    )
    end_spark(timeout_s=_WRITE_S)
