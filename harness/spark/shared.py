"""One Spark JVM for all workers of a run.

The process that distributes the cases starts it and writes a file that says how to connect to it. Each worker is a
Spark driver of its own in that JVM: it has its own Py4J server, session and jobs. Without it each worker would start a
JVM: that costs 4 s of CPU each time, and the first tasks of each JVM are slow.

If the JVM dies, the cases that use it fail, and each worker starts a JVM of its own for its next case.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from harness.errors import HarnessError
from harness.host.atomic_write import write_atomically
from harness.spark.driver_jvm import OwnJvm, SharedJvm
from harness.spark.session import LOCAL_SLOTS, START_S, driver_jvm, end_spark, spark_session, use_jvm
from harness.waiting import await_until

_POLL_S = 0.05
_HEAP = "2g"


class _Address(msgspec.Struct, kw_only=True):
    """The content of the file.

    :ivar failed: why the JVM did not start; the rest is then missing
    """

    pid: int = 0
    port: int = 0
    secret: str = ""
    failed: str = ""


def share(master: str | None, workers: int, *, jars: Sequence[Path], file: Path) -> None:
    """Start the JVM in a thread, and write the file when it is up; :func:`harness.spark.session.end_spark` ends it.

    :param file: in a folder that only this user can read, as it has a secret
    """
    threading.Thread(target=_start, args=(master, workers, jars, file), name="spark-shared", daemon=True).start()


def _start(master: str | None, workers: int, jars: Sequence[Path], file: Path) -> None:
    try:
        session = spark_session(master or f"local[{LOCAL_SLOTS * workers}]", jars=jars, heap=_HEAP)
        jvm, gateway = driver_jvm(), session.sparkContext._gateway
        assert isinstance(jvm, OwnJvm)
        assert gateway is not None
        of = gateway.gateway_parameters
        address = _Address(pid=jvm.pid, port=of.port, secret=of.auth_token)
    except BaseException as error:
        address = _Address(failed=str(error))
    with suppress(OSError):  # the run has ended, and its folder is gone
        write_atomically(file, msgspec.json.encode(address).decode())


def shared_session(file: Path) -> SparkSession:
    """Connect to the JVM as a driver of its own; waits until it is up.

    :raises HarnessError: it did not start, or has died
    """
    address = await_until(
        partial(_read, file),
        timeout_s=START_S,
        what="the Spark of this run to start",
        poll_s=_POLL_S,
        failure=HarnessError,
        for_kafka=False,
    )
    assert address is not None
    if address.failed:
        raise HarnessError(address.failed)
    try:
        jvm = SharedJvm(address.pid)
    except ProcessLookupError as error:
        raise HarnessError("the Spark of this run has ended by itself") from error
    os.environ["PYSPARK_PYTHON"] = sys.executable
    use_jvm(jvm)
    try:
        gateway = _connect_alone(address)
        java = gateway.jvm.org.apache.spark
        context = java.api.java.JavaSparkContext.fromSparkContext(java.SparkContext.getOrCreate())
        # A session of its own, whose queries and settings no other worker sees.
        return SparkSession(
            SparkContext(conf=SparkConf(_jconf=context.getConf()), gateway=gateway, jsc=context)
        ).newSession()
    except Exception as error:
        end_spark()
        raise HarnessError(f"no connection to the Spark of this run: {error}") from error


def _connect_alone(address: _Address) -> JavaGateway:
    """Connect to a Py4J server of our own in the JVM.

    A server calls back only the process that connected to it last, and each batch of a stream is a call back.
    """
    shared = _connect(address.port, address.secret)
    try:
        java = shared.jvm.org.apache.spark
        server = java.api.python.Py4JServer(java.SparkConf())
        server.start()
        return _connect(server.getListeningPort(), server.secret())
    finally:
        shared.close()


def _connect(port: int, secret: str) -> JavaGateway:
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def _read(file: Path) -> _Address | None:
    with suppress(FileNotFoundError):
        return msgspec.json.decode(file.read_bytes(), type=_Address)
    return None
