"""A bad --spark-master fails before a JVM starts, a task's error is one line, and workers have their modules."""

import socket
import subprocess
from collections.abc import Iterable, Iterator

import pytest

from harness.errors import HarnessError, UsageError
from harness.spark import session
from harness.spark.driver_jvm import OwnJvm
from harness.spark.session import SessionSource, SparkHandle, check_master, jvm_died
from harness.spark.tasks import last_line


@pytest.mark.parametrize("master", [None, "local", "local[4]", "local[*]", "local[4,2]"])
def test_local_masters_need_no_other_host(master: str | None) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master",
    [
        "",
        "gopher://h",
        "spark://",
        "spark://h",
        "spark://h:",
        "spark://h:x",
        "spark://h:99999",
        "yarn",
        "local[",
        "h:7077",
    ],
)
def test_other_forms_are_usage_errors(master: str) -> None:
    with pytest.raises(UsageError, match="--spark-master"):
        check_master(master)
    with pytest.raises(UsageError):
        SparkHandle(master, jars=[])


def test_a_master_that_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(HarnessError, match=f"spark://127.0.0.1:{port} doesn't answer") as raised:
        check_master(f"spark://127.0.0.1:{port}")
    assert raised.value.exit_code == 3


def test_one_answering_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as master:
        dead = free.getsockname()[1]
        free.close()
        check_master(f"spark://127.0.0.1:{dead},127.0.0.1:{master.getsockname()[1]}")


PYTHON_ERROR = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 0.0 (TID 0) (127.0.0.1 executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "claim.py", line 1, in claim
FileExistsError: [Errno 17] File exists

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 1, in main
harness.errors.PipelineError: task p0 was started a second time

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.net.SocketException: Connection reset
"""
LOST_WORKER = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 0.0 (TID 0) (127.0.0.1 executor driver): org.apache.spark.SparkException: Python \
worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner
Caused by: java.net.SocketException: Connection reset
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PYTHON_ERROR, "PipelineError: task p0 was started a second time"),
        (LOST_WORKER, "Python worker exited unexpectedly (crashed)."),
        ("one line", "one line"),
        ("", "Exception"),
    ],
)
def test_a_tasks_error_is_one_line(text: str, line: str) -> None:
    assert last_line(Exception(text)) == line


def test_a_jvm_that_is_just_dying_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM closes its connections before it ends."""
    with subprocess.Popen(["sleep", "60"]) as jvm:
        monkeypatch.setattr(session, "_jvm", OwnJvm(jvm))
        assert not jvm_died()
        assert not jvm_died(within_s=0.05)
        jvm.kill()
        assert jvm_died(within_s=30)
        assert jvm_died()
    monkeypatch.setattr(session, "_jvm", None)
    assert not jvm_died(within_s=30)


def test_pythons_workers_have_all_imported_and_read_no_archives(judge_spark: SessionSource) -> None:
    def look(_: Iterable[int]) -> Iterator[tuple[list[str], bool]]:
        import sys

        archives = [path for path in sys.path_importer_cache if "pyspark.zip" in path]
        yield archives, "harness.workload.transactional" in sys.modules

    [(archives, imported)] = judge_spark().sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert not archives
    assert imported
