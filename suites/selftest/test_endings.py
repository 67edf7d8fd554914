"""A broker that ends by itself breaks a promise, unless its last errors name a cause outside Kafka."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.nodes.node import ClusterContext, Node, NodeSpec
from harness.cluster.nodes.process import ProcessBackend
from harness.cluster.spec import ClusterSpec
from harness.errors import JbodError, NodeDied, PromiseBroken
from harness.host.limits import OPEN_FILES
from harness.host.undo import UndoLog
from harness.journal import Journal
from harness.kafka.distribution import Source
from harness.kafka.versions import Mode
from harness.waiting import await_until
from suites.selftest.fakes import fake_distribution
from suites.selftest.journal_lines import lines_of

STARTS = "[2026-11-27 10:00:00,000] INFO starting (kafka.server.KafkaRaftServer)\n"
FATAL = "[2026-11-27 10:00:01,000] ERROR Exiting Kafka due to fatal exception (kafka.Kafka$)\n"
REFUSED = (
    FATAL + "org.apache.kafka.common.config.ConfigException: Invalid value never for configuration log.retention.ms\n"
)
BENIGN = (
    "[2026-11-27 10:00:00,500] WARN Could not load a plugin (x.Y)\n"
    "java.lang.ClassNotFoundException: x.Plugin\nCaused by: java.lang.NoClassDefFoundError: x/Plugin\n"
)
BUG = (
    STARTS
    + FATAL
    + "java.lang.IllegalStateException: no such directory id\n\tat org.apache.kafka.server.X.y(X.java:1)\n"
)
IN_USE = (
    STARTS + FATAL + "org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:20001\n"
    "Caused by: java.net.BindException: Address already in use\n"
)
FULL = STARTS + FATAL + "java.io.IOException: No space left on device\n"
UP = "[2026-11-27 10:00:00,900] INFO [KafkaRaftServer nodeId=1] Kafka Server started (kafka.server.KafkaRaftServer)\n"
HEAP = STARTS + FATAL + "java.lang.OutOfMemoryError: Java heap space\n"
MAPS = STARTS + FATAL + "java.io.IOException: Map failed\nCaused by: java.lang.OutOfMemoryError: Map failed\n"
FILES = STARTS + FATAL + "java.io.IOException: Too many open files\n"
NO_MEMORY = STARTS + "OpenJDK warning\nError: unable\n# Cannot allocate memory (errno=12)\n"
NO_THREAD = STARTS + FATAL + "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory\n"
OLD_JAVA = (
    "Error: LinkageError occurred while loading main class kafka.Kafka\n"
    "\tjava.lang.UnsupportedClassVersionError: kafka/Kafka has been compiled by a more recent version\n"
)
NO_CLASS = (
    "Error: Could not find or load main class kafka.Kafka\nCaused by: java.lang.ClassNotFoundException: kafka.Kafka\n"
)
NO_OTHER_CLASS = STARTS + FATAL + "java.lang.NoClassDefFoundError: org/apache/kafka/X\n"


Start = Callable[..., tuple[Node, Journal]]


@pytest.fixture
def start(open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a real node whose Java is a script: it prints some lines as its log and ends."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))

    def start(
        printed: str,
        *,
        ends: str = "exit 1",
        is_kafka: bool = True,
        on_volumes: bool = False,
        source: Source = "maven",
        files: int = OPEN_FILES,
        memory: int = 1 << 30,
        amid: Callable[[ClusterContext, Node], object] = lambda _context, _node: None,
    ) -> tuple[Node, Journal]:
        monkeypatch.setattr("harness.host.limits.open_files", lambda: files)
        monkeypatch.setattr("harness.host.limits.memory_left", lambda: (memory, "available"))
        context = ClusterContext(
            spec=ClusterSpec(mode=Mode.KRAFT, volumes="tmpfs" if on_volumes else None),
            distribution=replace(fake_distribution(), source=source),
            record_dir=tmp_path,
            journal=Journal(None),
            undo_log=UndoLog("selftest-endings"),
        )
        ended.callback(context.undo_log.close)
        ended.callback(context.ports.release)
        backend = ProcessBackend(context)
        script = f"printf %s {shlex.quote(printed)} >&2; {ends}"
        backend.runtime = replace(backend.runtime, java=("/bin/sh", "-c", script))
        node = backend.node(NodeSpec(name="broker-1", main_class="kafka.Kafka", properties={}, is_kafka=is_kafka))
        (tmp_path / "1" / "broker.log").write_text(IN_USE)  # of an earlier start
        node.start()
        amid(context, node)
        await_until(lambda: not node.is_alive(), timeout_s=timeouts.STOP_S, what="the script to end")
        return node, context.journal

    with ExitStack() as ended:
        yield start


@pytest.mark.parametrize(
    ("printed", "how", "error", "cause"),
    [
        (BUG, {}, PromiseBroken, None),
        (STARTS, {"ends": "exit 0"}, PromiseBroken, None),
        (STARTS + BENIGN + BUG, {}, PromiseBroken, None),
        (FULL, {"on_volumes": True}, PromiseBroken, None),
        (IN_USE, {}, NodeDied, "a port is in use: Caused by: java.net.BindException: Address already in use"),
        (FULL, {}, NodeDied, "the disk is full: java.io.IOException: No space left on device"),
        (FILES, {}, PromiseBroken, None),
        (FILES, {"files": 1024}, NodeDied, "too few open files are allowed: java.io.IOException: Too many open files"),
        (HEAP, {}, PromiseBroken, None),
        (HEAP, {"memory": 100 << 20}, NodeDied, "this machine has too little memory: java.lang.OutOfMemoryError: Java"),
        (MAPS, {}, PromiseBroken, None),
        (NO_MEMORY, {}, NodeDied, "too little memory: # Cannot allocate memory"),
        (NO_THREAD, {}, NodeDied, "too little memory: java.lang.OutOfMemoryError: unable to create native thread"),
        (OLD_JAVA, {}, NodeDied, "this Java cannot run the build: java.lang.UnsupportedClassVersionError"),
        (NO_CLASS, {}, NodeDied, "no such main class: Error: Could not find or load main class kafka.Kafka"),
        (NO_OTHER_CLASS, {}, PromiseBroken, None),
        (NO_OTHER_CLASS, {"source": "home"}, NodeDied, "the build lacks a class: java.lang.NoClassDefFoundError: org"),
        (
            REFUSED,
            {},
            NodeDied,
            "this build refuses a setting: org.apache.kafka.common.config.ConfigException: Invalid value never",
        ),
        (STARTS + UP + REFUSED, {}, PromiseBroken, None),
        (BUG, {"ends": "kill -9 $$"}, NodeDied, "SIGKILL, which the kernel sends when memory runs out"),
        (BUG, {"is_kafka": False}, NodeDied, None),
    ],
    ids=[
        "bug",
        "no reason",
        "benign",
        "filled",
        "port",
        "disk",
        "files leaked",
        "files",
        "heap leaked",
        "heap",
        "maps leaked",
        "memory",
        "thread",
        "java",
        "main class",
        "class lacking",
        "class",
        "setting",
        "setting later",
        "killed",
        "zk",
    ],
)
def test_who_is_to_blame_for_the_end_of_a_node(
    start: Start, printed: str, how: dict[str, object], error: type[JbodError], cause: str | None
) -> None:
    node, journal = start(printed, **how)
    with pytest.raises(error, match=r"broker-1 ended with exit code -?\d, although nothing stopped it") as raised:
        node.check_alive()
    assert (cause or "") in str(raised.value)
    node.journal_unexpected_end()
    [event] = lines_of(journal, "node.ended_by_itself")
    assert (event["cause"] is None) == (cause is None)
    assert (cause or "") in str(event["cause"])


def test_a_setting_that_a_node_refuses_in_a_later_case_is_no_cause(start: Start, tmp_path: Path) -> None:
    """An earlier case has the log of the node's start."""
    ends = f"trap {shlex.quote(f'printf %s {shlex.quote(REFUSED)} >&2; exit 1')} USR1; echo trapped >&2; "

    def go_on(context: ClusterContext, node: Node) -> None:
        await_until(lambda: "trapped" in node.log.tail(), timeout_s=timeouts.STOP_S, what="the script to set a trap")
        context.record_dir = tmp_path / "later"
        node.switch_logs()
        pid = node.pid()
        assert pid is not None
        os.kill(pid, signal.SIGUSR1)

    node, _ = start(STARTS + UP, ends=ends + "while :; do sleep 0.05; done", amid=go_on)
    with pytest.raises(PromiseBroken, match="ConfigException"):
        node.check_alive()


def test_a_node_may_have_as_many_files_open_as_the_hard_limit_allows() -> None:
    """A JVM raises its own limit to it."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 900)); "
    asked = "from harness.host import limits; print(limits.open_files(), limits.files_are_few())"
    done = subprocess.run([sys.executable, "-c", limit + asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["900", "True"]
