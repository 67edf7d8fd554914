"""The one Spark session of a run, and how it starts without anybody waiting for it.

A session costs about five seconds (a JVM), as much as a small Kafka cluster; so it is started in a thread beside the
cluster (:func:`start_in_background`) and asked for when the first task needs it. What can be known to be wrong before
a JVM starts (a URL of the wrong form, a master that doesn't answer) is said at once, by the caller's own thread.

Long-running tasks decide the settings: a local master has more slots than the machine has cores, because producers and
consumers wait more than they work; a task that failed is never run again by Spark, because a second producer would
send the same records once more (``spark.task.maxFailures=1``; what that setting does not count, a lost executor, is
caught by :mod:`harness.spark.run_once`).

The JVM is launched through pyspark's own ``launch_gateway``, not by ``SparkSession.builder``, for one reason: that is
where its output can be sent to a file.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import harness.spark
from harness.errors import HarnessError, PipelineError, UsageError
from harness.host.java import FAST_START
from harness.host.scratch import scratch_folder

# Tasks that can run at once on the local master: producers, live consumers and the tasks of a drain together.
LOCAL_SLOTS = 16
CONNECT_S = 3.0
# A master that takes a TCP connection and is none is given up by Spark after three attempts of 20 s. A local one comes
# up in 4 s on idle cores, and took 90 s among the brokers of three runs on a machine at a third of its speed.
START_S = 180.0
STOP_S = 10.0

_LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
_STANDALONE = re.compile(r"spark://([\w.-]+|\[[0-9a-fA-F:]+\]):(\d+)(,([\w.-]+|\[[0-9a-fA-F:]+\]):\d+)*")

Then = Callable[[SparkSession], object]

_jvm: Any = None  # Popen of the Spark driver's JVM; pyspark keeps one a process, so this module does too


def check_master(master: str | None) -> None:
    """Say at once what is wrong with ``--spark-master``; starts nothing.

    :param master: None (the local default), ``local[…]`` or ``spark://host:port[,host:port…]``. Other cluster
        managers are refused: tasks talk to the driver and to Kafka over 127.0.0.1
    :raises UsageError: the URL has another form
    :raises HarnessError: none of the masters takes a TCP connection within 3 s
    """
    if master is None or _LOCAL.fullmatch(master):
        return
    if not _STANDALONE.fullmatch(master):
        raise UsageError(f"--spark-master {master}: not a Spark master; use local[N] or spark://host:port")
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if int(port) > 65535:
            raise UsageError(f"--spark-master {master}: no such port: {port}")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            return
    raise HarnessError(f"Spark master {master} doesn't answer; is it running, and is this its RPC port (7077)?")


def spark_session(master: str | None, *, jars: Sequence[Path]) -> SparkSession:
    """The Spark session of this process; starts it (about 5 s) if there is none.

    :param master: see :func:`check_master`; None is ``local[16]``
    :param jars: Spark's Kafka connector and what it needs, of pyspark's own version; fixed by the first call
    :raises UsageError, HarnessError: as :func:`check_master`; and where Spark itself doesn't start, with the end of
        its log
    """
    check_master(master)
    wanted = master or f"local[{LOCAL_SLOTS}]"
    active = SparkContext._active_spark_context
    if active is not None:
        if active.master != wanted:
            raise HarnessError(f"a Spark session is running on {active.master}; one run has one, not {wanted} too")
        return SparkSession(active)
    missing = [str(jar) for jar in jars if not jar.is_file()]
    if missing:
        raise HarnessError(f"Spark can't start, its Kafka connector is missing: {', '.join(missing)}")
    scratch = scratch_folder("spark")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    log = scratch / "spark.log"
    try:
        with log.open("ab") as output:
            session = _start(_settings(wanted, jars, scratch), output)
    except Exception as error:
        end_spark()
        last = _last_words(log)
        shutil.rmtree(scratch, ignore_errors=True)
        raise HarnessError(f"Spark did not start on {wanted}: {last or error}") from error
    return session


JVM_DIED = "Spark's JVM has ended, and nobody had ended it"


class SparkHandle:
    """A Spark session that is starting, or has started, in the background; another one where its JVM has died."""

    def __init__(self, master: str | None, *, jars: Sequence[Path], then: Then | None = None) -> None:
        self.master = master or f"local[{LOCAL_SLOTS}]"
        self._start = partial(spark_session, master, jars=jars)
        self._then = then
        self._lock = threading.Lock()
        self._future = self._begin()

    def _begin(self) -> Future[SparkSession]:
        future: Future[SparkSession] = Future()

        def start() -> None:
            try:
                session = self._start()
            except BaseException as error:
                future.set_exception(error)
                return
            future.set_result(session)
            if self._then is not None:
                with suppress(Exception):
                    self._then(session)

        # A daemon thread: a run that ends before Spark is up must not wait for it.
        threading.Thread(target=start, name="spark-start", daemon=True).start()
        return future

    def session(self) -> SparkSession:
        """The session; blocks until it is up. Who had it when its JVM died sees an error; who asks then gets another.

        :raises HarnessError: Spark did not start, or not within :data:`START_S` seconds
        """
        with self._lock:
            if self._future.done() and jvm_died():
                end_spark()
                self._future = self._begin()
            future = self._future
        try:
            return future.result(timeout=START_S)
        except TimeoutError as error:
            raise HarnessError(f"Spark on {self.master} is not up after {START_S:.0f} s") from error

    def stop(self) -> None:
        """End the session and its JVM; never fails, may be called twice, waits at most 10 s for each step."""
        with suppress(BaseException):
            self._future.result(timeout=STOP_S)
        end_spark()


def start_in_background(master: str | None, *, jars: Sequence[Path], then: Then | None = None) -> SparkHandle:
    """Start Spark in a thread and return at once; arguments as :func:`spark_session`.

    :param then: called with the session once it is up, in the background too, its errors ignored: say
        :func:`harness.workload.warm_up.warm_up`
    :raises UsageError, HarnessError: as :func:`check_master`, before any thread or JVM starts
    """
    check_master(master)
    return SparkHandle(master, jars=jars, then=then)


def end_spark() -> None:
    """End this process's Spark session and JVM, whatever state they are in; nothing happens if there is none.

    ``SparkSession.stop`` alone leaves the JVM, which pyspark keeps for the next session of the process.
    """
    global _jvm
    for running in (SparkSession._instantiatedSession, SparkContext._active_spark_context):
        if running is not None:
            with suppress(Exception):
                running.stop()
    # A session that failed half-way is forgotten too, or pyspark would take it for running.
    SparkSession._instantiatedSession = SparkContext._active_spark_context = None
    with suppress(Exception):
        if SparkContext._gateway is not None:
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if _jvm is not None:
        _jvm.stdin.close()  # the gateway server ends with its stdin
        try:
            _jvm.wait(timeout=STOP_S)
        except Exception:
            _jvm.kill()
            _jvm.wait()
        _jvm = None


def jvm_died(within_s: float = 0.0) -> bool:
    """Whether the JVM of this process's Spark session has ended, and nobody had ended it.

    :param within_s: so long it may take to end: who is killed closes its connections first
    """
    jvm = _jvm  # whoever ends it takes it away, meanwhile too
    if jvm is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        jvm.wait(within_s)
    return jvm is _jvm and jvm.poll() is not None


def check_jvm() -> None:
    """Tell a Spark that was killed from everything that looks like it.

    :raises PipelineError: :func:`jvm_died`
    """
    if jvm_died():
        raise PipelineError(JVM_DIED)


def _settings(master: str, jars: Sequence[Path], scratch: Path) -> SparkConf:
    """Every setting with its reason."""
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("jbod")
    settings = {
        # Everything stays on this machine.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        # By default below the user's home, which a user without an entry in the passwd file doesn't have.
        "spark.jars.ivy": str(scratch / "ivy"),
        "spark.ui.showConsoleProgress": "false",
        # No second run of a task: it would send its records once more.
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
        # One executor is as near to the data as another: nothing is gained by waiting for a slot.
        "spark.locality.wait": "0s",
        # Histories are small: a shuffle into 200 parts costs more than the work.
        "spark.sql.shuffle.partitions": "4",
        # A cluster lives for seconds: by default its readers, and what they fetched, are kept for five minutes.
        "spark.kafka.consumer.cache.timeout": "10s",
        "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
        "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
        "spark.sql.session.timeZone": "UTC",
        # By default stop() waits for a streaming query's thread for ever.
        "spark.sql.streaming.stopTimeout": "10s",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch),
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.driver.defaultJavaOptions": " ".join(FAST_START),
        "spark.executor.defaultJavaOptions": " ".join(FAST_START),
        # It has imported what the workers need.
        "spark.python.daemon.module": harness.spark.__name__ + ".spark_daemon",
        # Workers of a standalone cluster on this machine find this package even where it isn't installed.
        "spark.executorEnv.PYTHONPATH": str(Path(harness.__file__).parent.parent),
    }
    if jars:
        settings["spark.jars"] = ",".join(str(jar.absolute()) for jar in jars)
    for name, value in settings.items():
        conf.set(name, value)
    return conf


def _start(conf: SparkConf, output: IO[bytes]) -> SparkSession:
    global _jvm
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the interpreter with the packages, in the workers too
    gateway = launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    _jvm = getattr(gateway, "proc", None)
    # A context whose master never answered comes back as if all were well, stopped; the session then fails.
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    session.sparkContext.setLogLevel("ERROR")
    return session


def _last_words(log: Path) -> str:
    """The last line of Spark's log that names an error."""
    with suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        telling = [line for line in lines if re.search(r"ERROR|Exception|Error:", line)]
        return telling[-1].strip()[:300] if telling else ""
    return ""
