"""The class data archive of Spark's JVM (:mod:`harness.host.class_data`).

With it, the session and the warm-up of a case take half the time. They take 4.4 s of CPU instead of 8.4 (Spark 4.2.0,
JDK 17). :mod:`harness.workload.spark_archive` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyspark

from harness.host import class_data
from harness.host.java import java_version


def archive_of(jars: Sequence[Path]) -> Path:
    """The path of the archive for this Spark, these jars and this Java.

    :param jars: Spark's Kafka connector and its dependencies
    """
    home = Path(pyspark.__file__).parent / "jars"
    return class_data.archive_path(
        "spark",
        build=f"pyspark {pyspark.__version__}",
        class_path=[str(home), *map(str, jars)],
        java_version=java_version()[1],
    )


def use_options(jars: Sequence[Path]) -> tuple[str, ...]:
    """The JVM options that use the archive; none if it was not made."""
    archive = archive_of(jars)
    return class_data.use_options(archive) if archive.exists() else ()
