"""Fixtures that tests share: folders, a Spark session, a broker, planted suites."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import hypothesis
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from harness.cluster.cluster import Cluster, boot
from harness.cluster.spec import ClusterSpec
from harness.journal import Journal
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.security import Bootstrap
from harness.kafka.versions import Mode
from harness.spark.session import SessionSource, end_spark, spark_session
from suites.selftest.forked_commands import Commands, fork_server
from suites.selftest.planted import Planted

hypothesis.settings.register_profile("no clock", deadline=None)  # hypothesis allows 0.2 s for an example by default
hypothesis.settings.load_profile("no clock")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """An empty folder that the brokers' user may enter; it is removed after the test.

    Not in ``tmp_path``: each pytest that starts on the machine closes the folder above it to other users.
    """
    with tempfile.TemporaryDirectory(prefix="jbod-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def planted(open_folder: Path) -> Planted:
    """A checkout with planted suites, whose verdicts a test sets."""
    return Planted(open_folder)


@pytest.fixture(scope="session")
def server() -> ForkServerContext:
    """Forks a process for each command."""
    return fork_server()


@pytest.fixture
def commands(server: ForkServerContext, open_folder: Path) -> Commands:
    """Runs commands of jbod, with a folder of their own."""
    return Commands(server, open_folder)


@pytest.fixture(scope="module")
def judge_spark() -> Iterator[SessionSource]:
    """Returns a Spark session for large histories; starts it when it is first called.

    The session ends with the module: tests of the pipeline need another one.
    """
    running = SparkContext._active_spark_context  # the session of the pipeline's tests outlives the module
    if running is not None:
        yield lambda: SparkSession(running)
        return
    yield lambda: spark_session("local[2]", jars=())
    end_spark()


@pytest.fixture(scope="module")
def lone_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one real broker."""
    cluster = boot(
        ClusterSpec(
            mode=Mode.KRAFT,
            brokers=1,
            overrides=dict.fromkeys(
                ("offsets.topic.replication.factor", "transaction.state.log.replication.factor"), "1"
            ),
        ),
        Builds.choose(BuildOptions()).of(Mode.KRAFT),
        run_id=f"selftest-{secrets.token_hex(3)}",
        record_dir=tmp_path_factory.mktemp("broker"),
        journal=Journal(None),
    )
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def bootstrap(lone_broker: Cluster) -> Bootstrap:
    """The address of a real broker."""
    return lone_broker.bootstrap


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The socket where jbod looks for the Docker engine; nothing listens there yet."""
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    return path
