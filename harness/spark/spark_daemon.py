"""The daemon that forks Spark's Python workers. It first imports what each of them would import.

Spark runs it instead of its own daemon, as ``python -m harness.spark.spark_daemon pyspark.worker``
(``spark.python.daemon.module``, ``PythonWorkerFactory``).

It removes Spark's archives of pyspark and py4j from the path, as both are installed. Each task begins with
``importlib.invalidate_caches()``. Each folder of an archive then reads the directory of the whole archive again
(``zipimporter.invalidate_caches``, Python 3.11). That would cost 50 ms of CPU for each of some twenty tasks of a case.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_ARCHIVES = ("pyspark.zip", "py4j-")
_OF_TASKS = (
    "harness.workload.group",
    "harness.workload.transactional",
    # Libraries import these when they first need them.
    "confluent_kafka.admin",
    "encodings.idna",
    "numpy.ma",
)

if __name__ == "__main__":
    for path in [path for path in sys.path if Path(path).name.startswith(_ARCHIVES)]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)
    for name in _OF_TASKS:
        importlib.import_module(name)
    importlib.import_module("pyspark.daemon").manager()
