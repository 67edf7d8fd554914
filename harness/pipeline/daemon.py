"""Spark's daemon that forks Python's workers, with all imported that these would each import by themselves (0.3 s).

Run by Spark, in place of its own, as ``python -m harness.pipeline.daemon pyspark.worker``
(``spark.python.daemon.module``, ``PythonWorkerFactory``); it ends as that does.
"""

from __future__ import annotations

import pyspark.daemon

import harness.pipeline.consumer
import harness.pipeline.producer  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
