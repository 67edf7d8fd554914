"""Runs one function on many arguments, in Spark tasks, where the work is by row group and not by row."""

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
    """Applies a function to each argument, each in a task, and brings the results back in the arguments' order."""

    def __call__(self, work: Callable[[A], B], arguments: Sequence[A], /) -> list[B]:
        """All results.

        :raises JbodError: as `work` does
        :raises PipelineError: `work` raised something else, or Spark lost a task
        """


def spark_map_over(spark: SparkSession) -> SparkMap:
    """Spark's tasks; an error of ours comes back as itself and not as pages of Spark's.

    Results come back in files, pickled: through Spark's driver they would have to fit into its heap, several times.
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
    """How many tasks can really work at once: of a cluster all its slots; of this machine not more than it has cores.

    A local session has more slots, for tasks that wait (:mod:`harness.spark.session`). A cluster's are known when
    its executors have come, and a job waits for most of them (``spark.scheduler.minRegisteredResourcesRatio``).
    """
    context = spark.sparkContext
    if (context.master or "local").startswith("local"):
        return max(1, min(os.cpu_count() or 1, context.defaultParallelism))
    context.parallelize([0], 1).count()
    return max(1, context.defaultParallelism)
