"""Kafka's tools in a JVM that stays print the same as in a JVM of their own, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest
from pyspark.errors.exceptions.captured import install_exception_handler

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.errors import BuildLacks, HarnessError, ToolFailed
from harness.events import Note
from harness.journal import Journal
from harness.kafka import tools_jvm
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.distribution import Distribution
from harness.kafka.tools import tool_output
from harness.kafka.tools_jvm import ask_java, end_tools, tool_lines
from harness.kafka.versions import Mode, Tool
from harness.waiting import await_until

NOWHERE = "127.0.0.1:1"
"""No program listens at this address."""

HOLDER = """
import sys
from harness.kafka import tools_jvm
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.main_classes import exit_hook
from harness.kafka.versions import Mode
build = Builds.choose(BuildOptions()).of(Mode.KRAFT)
print(tools_jvm._ToolsJvm(build, exit_hook(build.class_path))._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def build() -> Iterator[Distribution]:
    yield Builds.choose(BuildOptions()).of(Mode.KRAFT)
    end_tools()
    assert not tools_jvm._standing


def jvm_of(build: Distribution) -> int:
    """The JVM of this build's tools."""
    pid: int = tools_jvm._standing[build.class_path]._process.pid
    return pid


def await_end(pid: int) -> None:
    def runs() -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return False

    await_until(runs, lambda still: not still, timeout_s=10, what=f"process {pid} to end")


def test_java_answers_or_fails_with_its_reason(build: Distribution) -> None:
    install_exception_handler()
    assert ask_java(build, lambda jvm: str(jvm.java.lang.Integer.toHexString(255))) == "ff"
    for wrong in (lambda jvm: jvm.java.lang.Integer.parseInt("x"), lambda jvm: jvm.java.util.Properties().nothing()):
        with pytest.raises(HarnessError, match="did not answer"):
            ask_java(build, wrong)
    assert ask_java(build, lambda jvm: int(jvm.java.lang.Integer.parseInt("7"))) == 7


@pytest.mark.cluster
def test_they_say_the_same_in_either_jvm(lone_broker: Cluster) -> None:
    """This includes failures, by an exit code or an exception, also where pyspark has replaced py4j's error."""
    install_exception_handler()
    build, at = lone_broker.distribution, lone_broker.bootstrap.of_tool(Tool.TOPICS)
    lone_broker.create_topic("orders", partitions=3, replicas=1)
    pids = set()
    for tool, arguments in (
        (Tool.TOPICS, ("--describe",)),
        (Tool.TOPICS, ("--describe", "--under-replicated-partitions")),
        (Tool.LOG_DIRS, ("--describe", "--broker-list", "1")),
    ):
        with tool_output(build, tool, *at, *arguments, timeout_s=timeouts.TOOL_S) as output:
            alone = [*output]
        assert tool_lines(build, tool, *at, *arguments) == alone
        pids.add(jvm_of(build))
    assert len(pids) == 1
    failing: tuple[tuple[Tool, tuple[str, ...], str], ...] = (
        (Tool.TOPICS, (*at, "--describe", "--topic", "none"), "none"),
        (Tool.DUMP_LOG, ("--files", "/nowhere/0.log"), "nowhere"),
    )
    for tool, wrong, why in failing:
        with (
            pytest.raises(ToolFailed, match=why) as in_its_own,
            tool_output(build, tool, *wrong, timeout_s=timeouts.TOOL_S),
        ):
            pass
        with pytest.raises(ToolFailed, match=why) as standing:
            tool_lines(build, tool, *wrong)
        assert str(standing.value).rpartition(": ")[2] == str(in_its_own.value).rpartition(": ")[2]
    end_tools()
    await_end(*pids)


def test_one_that_hangs_is_ended(build: Distribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "QUESTION_S", 1.0)
    with pytest.raises(ToolFailed, match="kafka-topics did not end within 1 s"):
        tool_lines(build, Tool.TOPICS, "--bootstrap-server", NOWHERE, "--describe")
    assert not tools_jvm._standing


@pytest.mark.cluster
def test_a_jvm_that_has_died_is_reported_and_replaced(build: Distribution, lone_broker: Cluster) -> None:
    question = (*lone_broker.bootstrap.of_tool(Tool.TOPICS), "--list")
    said = tool_lines(build, Tool.TOPICS, *question)
    died = jvm_of(build)
    os.kill(died, signal.SIGKILL)
    await_end(died)
    with pytest.raises(HarnessError, match="kafka-topics did not end: its JVM no longer answers"):
        tool_lines(build, Tool.TOPICS, *question)
    assert tool_lines(build, Tool.TOPICS, *question) == said
    assert jvm_of(build) != died


def test_a_jvm_that_does_not_start_says_why_and_is_not_left(
    monkeypatch: pytest.MonkeyPatch, build: Distribution
) -> None:
    monkeypatch.setattr(tools_jvm, "_OPTIONS", ("-XX:+NoSuchOption",))
    with pytest.raises(HarnessError, match=r"a JVM for Kafka's tools did not start: Unrecognized VM option"):
        tool_lines(build, Tool.TOPICS, "--list")
    assert not tools_jvm._standing


def test_a_build_without_kafka_in_it_is_reported(build: Distribution) -> None:
    with pytest.raises(BuildLacks, match=r"has no topics tool: its jars have no class TopicCommand"):
        tool_lines(replace(build, class_path=build.class_path[:1]), Tool.TOPICS, "--list")
    assert not tools_jvm._standing


def test_a_build_without_the_exit_hook_has_a_jvm_for_each_question(
    monkeypatch: pytest.MonkeyPatch, build: Distribution
) -> None:
    standing = tool_lines(build, Tool.TOPICS, "--version")
    end_tools()
    monkeypatch.setattr(tools_jvm, "exit_hook", lambda _class_path: None)
    assert tool_lines(build, Tool.TOPICS, "--version") == standing
    assert not tools_jvm._standing


def test_each_call_is_in_the_journal_of_the_case(monkeypatch: pytest.MonkeyPatch, build: Distribution) -> None:
    """Each has its tool, arguments, seconds and exit code, in the JVM for all calls and in one of its own."""
    journal = Journal(None)
    journal.follow_process()
    tool_lines(build, Tool.TOPICS, "--version")
    end_tools()
    monkeypatch.setattr(tools_jvm, "exit_hook", lambda _class_path: None)
    with pytest.raises(ToolFailed):
        tool_lines(build, Tool.DUMP_LOG, "--files", "/nowhere/0.log")
    journal.close()
    calls = [event.fields for event in journal.events if isinstance(event, Note) and event.kind == "tool.called"]
    assert [(call["tool"], call["arguments"], call["exit_code"]) for call in calls] == [
        ("topics", "--version", 0),
        ("dump-log", "--files /nowhere/0.log", 1),
    ]
    assert all(isinstance(call["took_s"], float) and call["took_s"] > 0 for call in calls)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, as in a run, also after a Spark session set a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_ctrl_c(build: Distribution) -> None:
    """Ctrl-C interrupts the question; the next one gets another JVM, since the first may still print."""
    threading.Timer(2.0, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        tool_lines(build, Tool.TOPICS, "--bootstrap-server", NOWHERE, "--describe")
    assert not tools_jvm._standing


def test_it_does_not_outlive_a_harness_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        jvm = int(holder.stdout.readline())
        assert psutil.pid_exists(jvm)
        holder.kill()
    await_end(jvm)
