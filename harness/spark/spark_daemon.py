"""Spark's daemon that forks Python's workers, with all imported that these would each import by themselves.

Run by Spark, in place of its own, as ``python -m harness.spark.spark_daemon pyspark.worker``
(``spark.python.daemon.module``, ``PythonWorkerFactory``); it ends as that does.

Spark has its own copies of pyspark and py4j first in the path, as archives, although both are installed here. Each task
begins with ``importlib.invalidate_caches()``, and each folder of an archive then reads the whole archive's directory
again (``zipimporter.invalidate_caches``, Python 3.11): 50 ms of CPU a task, some twenty tasks a case. So they go out of
the path.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_ARCHIVES = ("pyspark.zip", "py4j-")
_OF_TASKS = (
    "harness.checkers.judge",
    "harness.workload.group",
    "harness.workload.transactional",
    # What libraries import only when it is first used.
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
