"""Nodes as local JVMs.

Started by root, a node drops to an ordinary user (a root broker would not notice ``chmod 000``). The kernel kills it
when the harness dies (``setpriv --pdeathsig``), unless the cluster is to stay; and it carries the run's mark in its
environment, by which ``jbod clean`` finds it in any case (:mod:`harness.undo`).

``--pdeathsig`` fires when the *thread* that started the child ends, not its process: nodes must be started from a
thread that lives as long as the harness. So :meth:`ProcessNode.start` only spawns, which takes milliseconds, and
whoever wants several nodes up side by side starts them one after another and then waits for all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import psutil

from harness import timeouts
from harness.broker_log import LAYOUT, BrokerLog
from harness.broker_user import BrokerUser
from harness.distribution import Distribution
from harness.errors import AwaitTimeout, HarnessError, NodeDied
from harness.java import java_command
from harness.journal import Journal
from harness.nodes.base import Node, NodeSpec
from harness.undo import MARK
from harness.waiting import await_until

_LOG4J1 = f"""\
log4j.rootLogger=INFO, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern={LAYOUT}
"""
_LOG4J2 = f"""\
Configuration:
  Appenders:
    Console:
      name: stderr
      target: SYSTEM_ERR
      PatternLayout:
        pattern: "{LAYOUT}"
  Loggers:
    Root:
      level: INFO
      AppenderRef:
        ref: stderr
"""


@dataclass(frozen=True, kw_only=True)
class ProcessBackend:
    """Makes nodes that are local processes.

    :ivar work_dir: the run's folder in the workspace, open to the broker user
    :ivar record_dir: the run folder's ``brokers/``: configuration and logs for people
    :ivar mark: the run's mark, see :mod:`harness.undo`
    :ivar outlives: the nodes may outlive the harness (``--keep-cluster``, ``cluster up``)
    :ivar jvm_options: for every node; ``{home}`` in them is the node's own folder
    """

    distribution: Distribution
    user: BrokerUser
    work_dir: Path
    record_dir: Path
    journal: Journal
    mark: str
    outlives: bool = False
    jvm_options: tuple[str, ...] = ()

    def node(self, spec: NodeSpec) -> Node:
        """A node that has not been started."""
        return ProcessNode(self, spec)


class ProcessNode:
    """One local JVM; see :class:`harness.nodes.base.Node`."""

    def __init__(self, backend: ProcessBackend, spec: NodeSpec) -> None:
        self.spec = spec
        self._backend = backend
        self._record_dir = backend.record_dir / spec.name.removeprefix("broker-")
        self._record_dir.mkdir(parents=True, exist_ok=True)
        self.log = BrokerLog(self._record_dir / "broker.log")
        self.config = backend.work_dir / spec.name / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self._meant_to_run = False

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See :meth:`harness.nodes.base.Node.start`."""
        if self.is_alive():
            return
        # In this order: the kernel forgets a pdeathsig when credentials change.
        leash = [] if self._backend.outlives else ["setpriv", "--pdeathsig", "KILL"]
        argv = [*self._backend.user.command(), *leash, *self._java()]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", MARK: self._backend.mark}
        with self._append("broker.log") as broker_log, self._append("stdout.log") as stdout:
            self._process = subprocess.Popen(
                argv,
                cwd=self._backend.work_dir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=broker_log,
                start_new_session=True,  # a Ctrl-C in the terminal is for the harness, which then stops its nodes
            )
        self._meant_to_run = True
        self._journal("node.started", pid=self._process.pid)

    def request_stop(self) -> None:
        """See :meth:`harness.nodes.base.Node.request_stop`."""
        self._signal(signal.SIGTERM, "node.stopping")

    def stop(self, timeout_s: float = timeouts.STOP_S) -> None:
        """See :meth:`harness.nodes.base.Node.stop`."""
        self.request_stop()
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._journal("node.stop_timed_out", after_s=timeout_s)
                self.kill()
        self._journal("node.stopped", exit_code=self.exit_code())

    def kill(self) -> None:
        """See :meth:`harness.nodes.base.Node.kill`."""
        self._signal(signal.SIGKILL, "node.killed")
        if self._process is not None:
            self._process.wait(timeouts.STOP_S)

    def pause(self) -> None:
        """See :meth:`harness.nodes.base.Node.pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._journal("node.paused")

    def resume(self) -> None:
        """See :meth:`harness.nodes.base.Node.resume`."""
        if self.is_alive():
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)
            self._journal("node.resumed")

    def is_alive(self) -> bool:
        """See :meth:`harness.nodes.base.Node.is_alive`."""
        return self._process is not None and self._process.poll() is None

    def is_paused(self) -> bool:
        """See :meth:`harness.nodes.base.Node.is_paused`."""
        if not self.is_alive():
            return False
        assert self._process is not None
        # The kernel stops a process's threads one by one after kill(2) has returned.
        with contextlib.suppress(psutil.NoSuchProcess, AwaitTimeout):
            process = psutil.Process(self._process.pid)
            await_until(
                lambda: process.status() == psutil.STATUS_STOPPED, timeout_s=1.0, what=f"{self.spec.name} to stop"
            )
            return True
        return False

    def let_end(self) -> None:
        """See :meth:`harness.nodes.base.Node.let_end`."""
        self._meant_to_run = False

    def pid(self) -> int | None:
        """See :meth:`harness.nodes.base.Node.pid`."""
        return self._process.pid if self._process is not None and self.is_alive() else None

    def exit_code(self) -> int | None:
        """See :meth:`harness.nodes.base.Node.exit_code`."""
        return None if self._process is None else self._process.poll()

    def check_alive(self) -> None:
        """See :meth:`harness.nodes.base.Node.check_alive`."""
        if self._meant_to_run and not self.is_alive():
            raise NodeDied(
                f"{self.spec.name} ended with exit code {self.exit_code()} and nobody had stopped it; "
                f"its log ends with:\n{self.log.tail()}"
            )

    def configure(self, changes: Mapping[str, str]) -> None:
        """See :meth:`harness.nodes.base.Node.configure`."""
        self.spec = replace(self.spec, properties={**self.spec.properties, **changes})
        self._journal("node.configured", changes=dict(changes))

    # --- its surroundings -----------------------------------------------------------------------------------------

    def run_as_user(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """See :meth:`harness.nodes.base.Node.run_as_user`."""
        return subprocess.run(
            [*self._backend.user.command(), *argv],
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", MARK: self._backend.mark},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeouts.PROBE_S,
            check=False,
        )

    def make_dir(self, path: Path) -> None:
        """See :meth:`harness.nodes.base.Node.make_dir`."""
        path.mkdir(parents=True)
        if self._backend.user.drop:
            os.chown(path, self._backend.user.uid, self._backend.user.gid)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals, event: str) -> None:
        self._meant_to_run = False
        if self.is_alive():
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                self._process.send_signal(number)
                self._journal(event)

    def _java(self) -> list[str]:
        backend, spec = self._backend, self.spec
        config, home = self.config, self.config.parent
        if not home.exists():
            self.make_dir(home)
        config.write_text("".join(f"{key}={value}\n" for key, value in sorted(spec.properties.items())))
        config.chmod(0o644)
        shutil.copyfile(config, self._record_dir / "server.properties")
        if backend.distribution.version.uses_log4j2:
            logging, option = home / "log4j2.yaml", "log4j2.configurationFile"
            logging.write_text(_LOG4J2)
        else:
            logging, option = home / "log4j.properties", "log4j.configuration"
            logging.write_text(_LOG4J1)
        logging.chmod(0o644)
        return [
            *java_command(),
            f"-Xmx{spec.heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            *(option.format(home=home) for option in backend.jvm_options),
            *spec.jvm_options,
            "-Duser.timezone=UTC",
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            f"-D{option}=file:{logging}",
            "-Djava.awt.headless=true",
            "-cp",
            os.pathsep.join(map(str, backend.distribution.class_path)),
            spec.main_class,
            str(config),
        ]

    def _append(self, name: str) -> IO[bytes]:
        try:
            return (self._record_dir / name).open("ab")
        except OSError as error:
            raise HarnessError(f"{self._record_dir / name} can't be written: {error.strerror}") from error

    def _journal(self, kind: str, **fields: object) -> None:
        self._backend.journal.write(kind, node=self.spec.name, **fields)
