"""Applies one function to many arguments, such as row groups, each in a Spark task."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

from harness.errors import JbodError, PipelineError
from harness.host.scratch import scratch
from harness.spark.tasks import last_line

A = TypeVar("A")
B = TypeVar("B")


class SparkMap(Protocol):
    """Applies a function to each argument in a task of its own."""

    def __call__(self, work: Callable[[A], B], arguments: Sequence[A], /) -> list[B]:
        """Return the results, in the order of the arguments.

        :raises JbodError: as ``work`` does
        :raises PipelineError: ``work`` raised another error, or Spark lost a task
        """


def spark_map_over(spark: SparkSession) -> SparkMap:
    """A :class:`SparkMap` over a Spark session.

    A task returns a JbodError as a value, since it would be lost in the pages of text of a Spark error. Results are
    pickled into files, since in Spark's driver they would need several times their size in its heap.
    """

    def spread(work: Callable[[A], B], arguments: Sequence[A], /) -> list[B]:
        with scratch("results") as folder:

            def done(some: Iterable[tuple[int, A]]) -> Iterator[JbodError | Path]:
                for number, argument in some:
                    try:
                        result = work(argument)
                    except JbodError as error:
                        yield error
                        continue
                    path = folder / str(number)
                    with path.open("wb") as file:
                        pickle.dump(result, file, protocol=5)
                    yield path

            if not arguments:
                return []
            numbered = list(enumerate(arguments))
            try:
                answers = spark.sparkContext.parallelize(numbered, len(numbered)).mapPartitions(done).collect()
            except Exception as error:
                raise PipelineError(last_line(error)) from error
            results: list[B] = []
            for answer in answers:
                if isinstance(answer, JbodError):
                    raise answer
                with answer.open("rb") as file:
                    results.append(pickle.load(file))
                answer.unlink()
            return results

    return spread


def cores(spark: SparkSession) -> int:
    """How many tasks can compute in parallel: all slots of a cluster, or at most the cores of this machine.

    A local session has more slots than cores, for tasks that wait (:mod:`harness.spark.session`). The slots of a
    cluster are known when its executors have registered, and a job waits for most of them
    (``spark.scheduler.minRegisteredResourcesRatio``).
    """
    context = spark.sparkContext
    if (context.master or "local").startswith("local"):
        return max(1, min(os.cpu_count() or 1, context.defaultParallelism))
    context.parallelize([0], 1).count()
    return max(1, context.defaultParallelism)
