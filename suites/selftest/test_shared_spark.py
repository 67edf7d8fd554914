"""One Spark JVM for several processes: each is a driver of its own, and none ends what the others use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

_OWNER = """
import sys
from pathlib import Path
from harness.spark.session import end_spark
from harness.spark.shared import share

share(sys.argv[2] or None, 2, jars=[Path(jar) for jar in sys.argv[3:]], file=Path(sys.argv[1]))
sys.stdin.readline()
end_spark()
"""
_WORKER = """
import sys
from functools import partial
from pathlib import Path
from harness.errors import PipelineError
from harness.spark.session import SparkHandle, driver_jvm, end_spark, jvm_died
from harness.spark.shared import shared_session

spark = SparkHandle(None, jars=[], first=partial(shared_session, Path(sys.argv[1])))
streams, batches = {}, []
for line in sys.stdin:
    session = spark.session()
    numbers = session.sparkContext.parallelize(range(10), 2).map(lambda each: each * 2)
    session.createDataFrame([(1,)], "a int").createOrReplaceTempView(line.strip())
    if session not in streams:
        rate = session.readStream.format("rate").load().writeStream
        streams[session] = rate.foreachBatch(lambda batch, number: batches.append(number)).start()
    more = len(batches) + 2
    for _ in range(300):
        if len(batches) < more:
            streams[session].awaitTermination(0.1)
    assert len(batches) >= more, streams[session].exception()
    print(numbers.sum(), driver_jvm().is_shared, [each.name for each in session.catalog.listTables()], flush=True)
    if line == "last\\n":
        print(jvm_died(within_s=30), flush=True)
end_spark()
print("ended", flush=True)
"""


@contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs this code."""
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], line: str) -> str:
    """Send a line to a process; return the next one that it prints."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return heard(process)


def heard(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_workers_share_a_jvm_that_ends_with_its_owner_and_outlive_it(tmp_path: Path) -> None:
    """Each has a stream, which calls it back for each batch."""
    address = tmp_path / "address.json"
    with python(_OWNER, address, "") as owner, python(_WORKER, address) as one, python(_WORKER, address) as two:
        assert say(one, "mine") == "90 True ['mine']"
        assert say(two, "other") == "90 True ['other']"  # a session of its own
        assert say(one, "too") == "90 True ['mine', 'too']"  # its stream goes on
        assert one.stdin is not None
        one.stdin.close()
        assert heard(one) == "ended"
        assert say(two, "again") == "90 True ['again', 'other']"
        assert say(two, "last") == "90 True ['again', 'last', 'other']"
        owner.kill()  # the JVM ends, too
        assert heard(two) == "True"
        assert say(two, "mine") == "90 False ['mine']"  # a JVM of its own


def test_a_jvm_that_does_not_start_is_replaced_by_one_of_the_worker(tmp_path: Path) -> None:
    address = tmp_path / "address.json"
    with python(_OWNER, address, "", tmp_path / "missing.jar"), python(_WORKER, address) as worker:
        assert say(worker, "mine") == "90 False ['mine']"
    assert "connector is missing" in msgspec.json.decode(address.read_bytes())["failed"]
