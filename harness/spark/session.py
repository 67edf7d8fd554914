"""The one Spark session of a run, which starts in the background.

A session takes about five seconds to start, as long as a small Kafka cluster. So a thread starts it while the cluster
starts (:class:`SparkHandle`), and the first task waits for it. An error that shows before a JVM starts, such as a
master that doesn't answer, is raised at once in the caller's thread.

The settings suit long-running tasks. A local master has more slots than the machine has cores, because producers and
consumers mostly wait. Spark never runs a failed task again, because a second producer would send the same records once
more (``spark.task.maxFailures=1``). This does not count a lost executor, which :mod:`harness.spark.tasks` catches.

The JVM is launched with pyspark's ``launch_gateway`` instead of ``SparkSession.builder``, because only the former can
send the JVM's output to a file.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import harness.spark
from harness.errors import HarnessError, PipelineError, UsageError
from harness.host.java import FAST_START
from harness.host.scratch import scratch_folder
from harness.spark.class_archive import use_options
from harness.spark.driver_jvm import DriverJvm, OwnJvm

# Tasks that run at once on the local master: producers, live consumers and the tasks of a drain.
LOCAL_SLOTS = 16
CONNECT_S = 3.0
# If what answers at the port is no master, Spark gives up after three attempts of 20 s. A local master starts in 4 s on
# idle cores, and took 90 s beside the brokers of three runs on a machine at a third of its speed.
START_S = 180.0
STOP_S = 10.0

_LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
_STANDALONE = re.compile(r"spark://([\w.-]+|\[[0-9a-fA-F:]+\]):(\d+)(,([\w.-]+|\[[0-9a-fA-F:]+\]):\d+)*")

Then = Callable[[SparkSession], object]
SessionSource = Callable[[], SparkSession]
"""Returns the Spark session of this process; starts it if there is none."""

_jvm: DriverJvm | None = None  # pyspark has one per process


def check_master(master: str | None) -> None:
    """Check ``--spark-master`` without starting anything.

    :param master: None (the local default), ``local[…]`` or ``spark://host:port[,host:port…]``. Other cluster managers
        are refused, because tasks connect to the driver and to Kafka over 127.0.0.1
    :raises UsageError: the URL has another form
    :raises HarnessError: none of the masters accepts a TCP connection within 3 s
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


def spark_session(
    master: str | None, *, jars: Sequence[Path], jvm_options: Sequence[str] | None = None, heap: str = "1g"
) -> SparkSession:
    """The Spark session of this process; starts one (about 5 s) if there is none.

    :param master: see :func:`check_master`; None is ``local[16]``
    :param jars: Spark's Kafka connector and its dependencies, of pyspark's version; fixed by the first call
    :param jvm_options: more options of the driver's JVM; None: use its class data archive, if there is one
    :param heap: the most memory of the driver's heap
    :raises UsageError, HarnessError: as :func:`check_master`; also if Spark doesn't start, with the end of its log
    """
    check_master(master)
    wanted = master or f"local[{LOCAL_SLOTS}]"
    active = SparkContext._active_spark_context
    if active is not None:
        if active.master != wanted:
            raise HarnessError(f"a Spark session runs on {active.master} already; a run can't have one on {wanted} too")
        return SparkSession(active)
    missing = [str(jar) for jar in jars if not jar.is_file()]
    if missing:
        raise HarnessError(f"Spark can't start, its Kafka connector is missing: {', '.join(missing)}")
    scratch = scratch_folder("spark")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    log = scratch / "spark.log"
    try:
        with log.open("ab") as output:
            options = use_options(jars) if jvm_options is None else jvm_options
            session = _start(_settings(wanted, jars, scratch, options, heap), output)
    except Exception as error:
        end_spark()
        last = _last_words(log)
        shutil.rmtree(scratch, ignore_errors=True)
        raise HarnessError(f"Spark did not start on {wanted}: {last or error}") from error
    return session


JVM_DIED = "Spark's JVM has ended by itself"


class SparkHandle:
    """A Spark session that starts in a thread, and is replaced if its JVM dies; arguments as :func:`spark_session`.

    :param then: called with the session in that thread, such as :func:`harness.workload.warm_up.warm_up`; its errors
        are ignored
    :param first: returns the first session, such as one of a JVM that several processes share; if it fails, and
        after its JVM has died, :func:`spark_session` is called
    :raises UsageError, HarnessError: as :func:`check_master`, before any thread or JVM starts
    """

    def __init__(
        self,
        master: str | None,
        *,
        jars: Sequence[Path],
        then: Then | None = None,
        first: SessionSource | None = None,
    ) -> None:
        check_master(master)
        self.master = master or f"local[{LOCAL_SLOTS}]"
        self._start = partial(spark_session, master, jars=jars)
        self._then = then
        self._lock = threading.Lock()
        self._future = self._begin(self._start if first is None else partial(self._first_or_own, first))

    def _first_or_own(self, first: SessionSource) -> SparkSession:
        try:
            return first()
        except HarnessError:
            return self._start()

    def _begin(self, source: SessionSource) -> Future[SparkSession]:
        future: Future[SparkSession] = Future()

        def start() -> None:
            try:
                session = source()
            except BaseException as error:
                future.set_exception(error)
                return
            future.set_result(session)
            if self._then is not None:
                with suppress(Exception):
                    self._then(session)

        # A daemon thread, so that a run can end before Spark is up.
        threading.Thread(target=start, name="spark-start", daemon=True).start()
        return future

    def session(self) -> SparkSession:
        """The session; blocks until it is up. After its JVM has died, the next call starts another one.

        :raises HarnessError: Spark did not start, or not within :data:`START_S` seconds
        """
        with self._lock:
            if self._future.done() and jvm_died():
                end_spark()
                self._future = self._begin(self._start)
            future = self._future
        try:
            return future.result(timeout=START_S)
        except TimeoutError as error:
            raise HarnessError(f"Spark on {self.master} is not up after {START_S:.0f} s") from error

    def stop(self) -> None:
        """End the session and its JVM; never fails, waits at most 10 s for each step, may be called twice."""
        with suppress(BaseException):
            self._future.result(timeout=STOP_S)
        end_spark()


def end_spark(timeout_s: float = STOP_S) -> None:
    """End the Spark session and the JVM of this process, if any, whatever state they are in.

    ``SparkSession.stop`` alone leaves the JVM to the next session of the process.

    :param timeout_s: the JVM is killed after this time
    """
    global _jvm
    jvm = _jvm
    if jvm is not None and jvm.is_shared:
        _let_go()
    else:
        for running in (SparkSession._instantiatedSession, SparkContext._active_spark_context):
            if running is not None:
                with suppress(Exception):
                    running.stop()
        with suppress(Exception):
            if SparkContext._gateway is not None:
                SparkContext._gateway.shutdown()
    # pyspark would take a session that failed half-way for a running one.
    SparkSession._instantiatedSession = SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    if jvm is not None:
        jvm.end(timeout_s)
        _jvm = None


def _let_go() -> None:
    """Close this process's connections to a JVM that others use; the Spark context stays theirs."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    with suppress(Exception):
        if context is not None:
            context._jsc = None  # else stop() would end it for all
            context.stop()
    with suppress(Exception):
        if gateway is not None:
            gateway.shutdown()  # its own server (harness.spark.shared)


def jvm_died(within_s: float = 0.0) -> bool:
    """Whether the JVM of this process's Spark session has ended without :func:`end_spark`.

    :param within_s: how long to wait for its end: a killed process closes its connections first
    """
    jvm = _jvm  # end_spark may clear it meanwhile
    return jvm is not None and jvm.ended(within_s) and jvm is _jvm


def driver_jvm() -> DriverJvm | None:
    """The JVM of this process's Spark session; None if there is none."""
    return _jvm


def use_jvm(jvm: DriverJvm) -> None:
    """Make this the JVM of this process's Spark session."""
    global _jvm
    _jvm = jvm


def check_jvm() -> None:
    """Raise PipelineError if Spark's JVM has died (:func:`jvm_died`)."""
    if jvm_died():
        raise PipelineError(JVM_DIED)


def _settings(master: str, jars: Sequence[Path], scratch: Path, jvm_options: Sequence[str], heap: str) -> SparkConf:
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("jbod")
    settings = {
        # All connections stay on this machine.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        # The default is in the home folder, which a user without an entry in the passwd file doesn't have.
        "spark.jars.ivy": str(scratch / "ivy"),
        "spark.ui.showConsoleProgress": "false",
        # A second run of a task would send its records once more.
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
        # All executors are equally near to the data, so there is no better slot to wait for.
        "spark.locality.wait": "0s",
        # Histories are small; the default of 200 parts would cost more than the work itself.
        "spark.sql.shuffle.partitions": "4",
        # A cluster lives for seconds; by default its consumers and their data are cached for five minutes.
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
        "spark.driver.memory": heap,
        "spark.executor.memory": "1g",
        "spark.driver.defaultJavaOptions": " ".join([*FAST_START, *jvm_options]),
        "spark.executor.defaultJavaOptions": " ".join(FAST_START),
        "spark.python.daemon.module": harness.spark.__name__ + ".spark_daemon",
        # So that workers of a standalone cluster find this package even where it isn't installed.
        "spark.executorEnv.PYTHONPATH": str(Path(harness.__file__).parent.parent),
    }
    if jars:
        settings["spark.jars"] = ",".join(str(jar.absolute()) for jar in jars)
    for name, value in settings.items():
        conf.set(name, value)
    return conf


def _start(conf: SparkConf, output: IO[bytes]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the interpreter that has the packages
    gateway = launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    use_jvm(OwnJvm(gateway.proc))
    # If the master never answered, this context is stopped, and the session can't be made.
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    session.sparkContext.setLogLevel("ERROR")
    return session


def _last_words(log: Path) -> str:
    """The last line of Spark's log that names an error."""
    with suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if re.search(r"ERROR|Exception|Error:", line)]
        return errors[-1].strip()[:300] if errors else ""
    return ""
