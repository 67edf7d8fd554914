"""The part of a node that is the same in every backend: its folder, its configuration, and its JVM's command line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harness.cluster.nodes.endings import cause_in_environment
from harness.cluster.nodes.node import Backend, ClusterContext, NodeSpec, Runtime
from harness.errors import NodeDied, PromiseBroken
from harness.host import class_data
from harness.host.broker_user import BrokerUser
from harness.host.disk_space import why_full
from harness.host.java import FAST_START
from harness.kafka.broker_log import LAYOUT, BrokerLog
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Tool

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

# A broker runs for seconds in a case, mostly interpreted code. Compiling after half as many calls takes 7 % less CPU
# (all processes of eight KIP-112 cases: 126 s instead of 135; after a quarter as many calls: 134).
_COMPILE_EARLY = "-XX:CompileThresholdScaling=0.5"

LOG, STDOUT = "broker.log", "stdout.log"
"""The files in a node's record folder: its log, from standard error, and its standard output."""


def rotate_open_file(file: Path, to: Path) -> None:
    """Rename a file that a process appends to, and leave a copy under the old name; the process then writes to ``to``.

    ``to`` is empty afterwards. The process must not write meanwhile: bytes written after the copy would be lost.

    :raises OSError: it failed, for example because the names are on two file systems
    """
    copy = file.with_name(f"{file.name}.copy")
    try:
        os.link(file, to)
        with to.open("rb") as there, copy.open("wb") as here:
            while piece := there.read(1 << 20):
                here.write(piece)
        os.truncate(to, 0)
        copy.replace(file)
    except OSError:
        for each in (to, copy):
            each.unlink(missing_ok=True)
        raise


class JvmBackend(Backend, Protocol):
    """A backend whose nodes are JVMs.

    :ivar user: the user of the nodes
    """

    context: ClusterContext
    user: BrokerUser

    def runtime_of(self, build: Distribution) -> Runtime:
        """The Java and the jars of another build.

        :raises EnvironmentLacks: all nodes of the backend run the same build
        """


class JvmNode(ABC):
    """The part of a node that is the same in every backend; see :class:`harness.cluster.nodes.node.Node`."""

    def __init__(self, backend: JvmBackend, spec: NodeSpec) -> None:
        context = backend.context
        self.spec = spec
        self._backend: JvmBackend = backend
        self._context = context
        self._runtime = backend.runtime
        self._user = backend.user
        self._record_dir = self._make_record_dir()
        self.log = BrokerLog(self._record_dir / LOG)
        self.config = context.work_dir / spec.name / "server.properties"
        self._should_run = False
        self._original = self._started = spec
        self._printed_before: Mapping[Path, int] = {}  # the size of each log when the node was started
        self._served_before = False  # an earlier case has the log of its start

    @abstractmethod
    def is_alive(self) -> bool: ...

    @abstractmethod
    def paused_proof(self) -> str | None: ...

    @abstractmethod
    def exit_code(self) -> int | None: ...

    @abstractmethod
    def _launch(self, command: Sequence[str]) -> Mapping[str, object]:
        """Start the process; returns fields for the journal, such as its id."""

    @abstractmethod
    def _logging_paused(self) -> AbstractContextManager[object]:
        """A context manager: inside its block the node writes nothing into its logs."""

    @abstractmethod
    def _send(self, signum: signal.Signals) -> None:
        """Send a signal to the process, which was alive just now."""

    def start(self) -> None:
        if self.is_alive():
            return
        self.journal_unexpected_end()
        self._started = self.spec
        command = self.prepare_start()
        self._printed_before = {log: log.stat().st_size for log in self._logs() if log.exists()}
        self._journal("node.started", kafka=str(self.build.version), **self._launch(command))
        self._should_run = True
        self._served_before = False

    def is_paused(self) -> bool:
        return self.paused_proof() is not None

    def request_stop(self) -> None:
        self._end(signal.SIGTERM, "node.stopping")

    def _end(self, signum: signal.Signals, event: str) -> None:
        """Send a signal that ends the node, after a check whether it had ended by itself."""
        self.journal_unexpected_end()
        self.expect_end()
        if self.is_alive():
            self._send(signum)
            self._journal(event)

    def expect_end(self) -> None:
        self._should_run = False

    def check_alive(self) -> None:
        if not self._should_run or self.is_alive():
            return
        ended = f"{self.spec.name} ended with exit code {self.exit_code()}, although nothing stopped it"
        log = f"its log ends with:\n{self.log.tail()}"
        if cause := self._cause_in_environment():
            raise NodeDied(f"{ended}: {cause}; {log}")
        if not self.spec.is_kafka:
            raise NodeDied(f"{ended}; {log}")
        raise PromiseBroken(f"{self.spec.name} should keep running: {ended}; {log}")

    def journal_unexpected_end(self) -> None:
        if self._should_run and not self.is_alive():
            self._should_run = False
            self._journal("node.ended_by_itself", exit_code=self.exit_code(), cause=self._cause_in_environment())

    def _cause_in_environment(self) -> str | None:
        """Why the node ended, if that is not Kafka's fault."""
        printed = ""
        for log in self._logs():
            with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
                file.seek(self._printed_before.get(log, 0))
                printed += file.read().decode(errors="replace") + "\n"
        # A fault fills a log dir on a volume of its own, and not the run's disk.
        may_be_full = self._context.spec.volumes is not None and why_full(self._context.work_dir) is None
        return cause_in_environment(
            self.exit_code(),
            printed,
            may_be_full=may_be_full,
            starting=not self._served_before,
            own_build=self.build.source == "home",
        )

    def _logs(self) -> tuple[Path, Path]:
        """The node's output: raw lines first, so that they do not seem to belong to an event of the log."""
        return self._record_dir / STDOUT, self._record_dir / LOG

    def configure(self, changes: Mapping[str, str | None]) -> None:
        changed = {**self.spec.properties, **changes}
        self.spec = replace(self.spec, properties={key: value for key, value in changed.items() if value is not None})
        self._journal("node.configured", changes=dict(changes))

    @property
    def build(self) -> Distribution:
        return self.spec.build or self._context.distribution

    def use_build(self, build: Distribution) -> None:
        self._runtime = self._backend.runtime_of(build)
        self.spec = replace(self.spec, build=build, main_class=build.main_class(Tool.BROKER))
        self._journal("node.build_changed", version=str(build.version), sha256=build.sha256)

    def is_unchanged(self) -> bool:
        return self.spec == self._started == self._original and self._should_run

    def switch_logs(self) -> None:
        """The process that writes the logs keeps its open files, which get new names; the old names get copies."""
        old, self._record_dir = self._record_dir, self._make_record_dir()
        with self._logging_paused():
            for name in (LOG, STDOUT):
                rotate_open_file(old / name, self._record_dir / name)
        shutil.copyfile(self.config, self._record_dir / "server.properties")
        self.log.path = self._record_dir / LOG
        self._served_before = True
        self._journal("node.goes_on")

    def _make_record_dir(self) -> Path:
        folder = self._context.record_dir / self.spec.name.removeprefix("broker-")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def make_dir(self, path: Path) -> None:
        path.mkdir(parents=True)
        if self._user.drop:
            os.chown(path, self._user.uid, self._user.gid)

    def prepare_start(self) -> list[str]:
        """Write the configuration of the node and of its logging; returns the command that starts the node."""
        home = self.config.parent
        if not home.exists():
            self.make_dir(home)
        if self.build.uses_log4j2:
            logging, text, option = home / "log4j2.yaml", _LOG4J2, "log4j2.configurationFile"
        else:
            logging, text, option = home / "log4j.properties", _LOG4J1, "log4j.configuration"
        logging.write_text(text)
        self.config.write_text("".join(f"{key}={value}\n" for key, value in sorted(self.spec.properties.items())))
        for file in (self.config, logging):
            file.chmod(0o644)
        shutil.copyfile(self.config, self._record_dir / "server.properties")
        return [
            *self._runtime.java,
            f"-Xmx{self.spec.heap_mb}m",
            *FAST_START,
            _COMPILE_EARLY,
            *(each.replace("{home}", str(home)) for each in (*self._common_options(), *self.spec.jvm_options)),
            "-Duser.timezone=UTC",
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            f"-D{option}=file:{logging}",
            "-Djava.awt.headless=true",
            "-cp",
            os.pathsep.join(self._runtime.class_path),
            self.spec.main_class,
            str(self.config),
        ]

    def _common_options(self) -> tuple[str, ...]:
        """The JVM options of all nodes: those of the context, or those that use the build's archive of classes."""
        if self._context.jvm_options is not None:
            return self._context.jvm_options
        archive = self._runtime.classes(self._context.spec.mode)
        return class_data.use_options(self._backend.file(archive)) if archive.exists() else ()

    def _journal(self, kind: str, **fields: object) -> None:
        self._context.journal.write(kind, node=self.spec.name, **fields)
