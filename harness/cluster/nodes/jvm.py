"""What is the same of a node whatever it runs in: its folder, its configuration, the command line of its JVM."""

from __future__ import annotations

import os
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from harness.cluster.nodes.node import NodeSpec, Runtime, ClusterContext
from harness.errors import NodeDied
from harness.host.broker_user import BrokerUser
from harness.host.java import FAST_START
from harness.kafka.broker_log import LAYOUT, BrokerLog

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

# What a broker does in a case it does for seconds, and mostly interpreted. Compiled after half as many calls it takes
# 7 % less CPU (eight cases of KIP-112, all their processes: 126 s instead of 135; after a quarter as many: 134).
_COMPILES_EARLY = "-XX:CompileThresholdScaling=0.5"

LOG, STDOUT = "broker.log", "stdout.log"
"""What a node prints, by the files' names in its folder of the run: its log, on standard error, and the rest."""


def rotate_open_file(file: Path, to: Path) -> None:
    """Give a file that somebody appends to another name and an empty beginning; under its old one stays what it has.

    Nobody may write meanwhile: what is written between the last look and the cut would be lost.

    :raises OSError: it can't be done, such as between two file systems
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


def _command(spec: NodeSpec, config: Path, runtime: Runtime, log4j2: bool) -> list[str]:
    """Write a node's configuration and that of its logging, and return the command that starts it."""
    home = config.parent
    config.write_text("".join(f"{key}={value}\n" for key, value in sorted(spec.properties.items())))
    if log4j2:
        logging, text, option = home / "log4j2.yaml", _LOG4J2, "log4j2.configurationFile"
    else:
        logging, text, option = home / "log4j.properties", _LOG4J1, "log4j.configuration"
    logging.write_text(text)
    for file in (config, logging):
        file.chmod(0o644)
    return [
        *runtime.java,
        f"-Xmx{spec.heap_mb}m",
        *FAST_START,
        _COMPILES_EARLY,
        *(each.replace("{home}", str(home)) for each in spec.jvm_options),
        "-Duser.timezone=UTC",
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",
        f"-D{option}=file:{logging}",
        "-Djava.awt.headless=true",
        "-cp",
        os.pathsep.join(runtime.class_path),
        spec.main_class,
        str(config),
    ]


class JvmNode(ABC):
    """The part of :class:`harness.cluster.nodes.node.Node` that is no backend's business."""

    def __init__(self, context: ClusterContext, runtime: Runtime, user: BrokerUser, spec: NodeSpec) -> None:
        self.spec = spec
        self._context = context
        self._runtime = runtime
        self._user = user
        self._record_dir = self._page()
        self.log = BrokerLog(self._record_dir / LOG)
        self.config = context.work_dir / spec.name / "server.properties"
        self._meant_to_run = False
        self._made = self._started = spec

    @abstractmethod
    def is_alive(self) -> bool:
        """See :meth:`harness.cluster.nodes.node.Node.is_alive`."""

    @abstractmethod
    def paused_proof(self) -> str | None:
        """See :meth:`harness.cluster.nodes.node.Node.paused_proof`."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """See :meth:`harness.cluster.nodes.node.Node.exit_code`."""

    @abstractmethod
    def _launch(self, command: Sequence[str]) -> Mapping[str, object]:
        """Start the process; returns what the journal should have of it."""

    @abstractmethod
    def _logging_paused(self) -> AbstractContextManager[object]:
        """Nothing is written into its logs inside the block."""

    @abstractmethod
    def _send(self, signum: signal.Signals) -> None:
        """Send the process, which was alive just now, a signal."""

    def start(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.start`."""
        if self.is_alive():
            return
        self.journal_unexpected_end()
        self._started = self.spec
        self._journal("node.started", **self._launch(self.prepare_start()))
        self._meant_to_run = True

    def is_paused(self) -> bool:
        """See :meth:`harness.cluster.nodes.node.Node.is_paused`."""
        return self.paused_proof() is not None

    def request_stop(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.request_stop`."""
        self._end(signal.SIGTERM, "node.stopping")

    def _end(self, signum: signal.Signals, event: str) -> None:
        """What ends it is ours from here on; so it is seen first whether it had ended by itself."""
        self.journal_unexpected_end()
        self.expect_end()
        if self.is_alive():
            self._send(signum)
            self._journal(event)

    def expect_end(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.expect_end`."""
        self._meant_to_run = False

    def check_alive(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.check_alive`."""
        if self._meant_to_run and not self.is_alive():
            raise NodeDied(
                f"{self.spec.name} ended with exit code {self.exit_code()} and nobody had stopped it; "
                f"its log ends with:\n{self.log.tail()}"
            )

    def journal_unexpected_end(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.journal_unexpected_end`."""
        if self._meant_to_run and not self.is_alive():
            self._meant_to_run = False
            self._journal("node.ended_by_itself", exit_code=self.exit_code())

    def configure(self, changes: Mapping[str, str | None]) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.configure`."""
        changed = {**self.spec.properties, **changes}
        self.spec = replace(self.spec, properties={key: value for key, value in changed.items() if value is not None})
        self._journal("node.configured", changes=dict(changes))

    def is_unchanged(self) -> bool:
        """See :meth:`harness.cluster.nodes.node.Node.is_unchanged`."""
        return self.spec == self._started == self._made and self._meant_to_run

    def switch_logs(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.switch_logs`.

        Whoever writes its logs goes on, at their end, in the very files, which get other names; what is in them is
        copied for their old ones.
        """
        old, self._record_dir = self._record_dir, self._page()
        with self._logging_paused():
            for name in (LOG, STDOUT):
                rotate_open_file(old / name, self._record_dir / name)
        shutil.copyfile(self.config, self._record_dir / "server.properties")
        self.log.path = self._record_dir / LOG
        self._journal("node.goes_on")

    def _page(self) -> Path:
        page = self._context.record_dir / self.spec.name.removeprefix("broker-")
        page.mkdir(parents=True, exist_ok=True)
        return page

    def make_dir(self, path: Path) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.make_dir`."""
        path.mkdir(parents=True)
        if self._user.drop:
            os.chown(path, self._user.uid, self._user.gid)

    def prepare_start(self) -> list[str]:
        """Write what the node reads when it starts, and return the command that starts it."""
        if not self.config.parent.exists():
            self.make_dir(self.config.parent)
        command = _command(self.spec, self.config, self._runtime, self._context.distribution.uses_log4j2)
        shutil.copyfile(self.config, self._record_dir / "server.properties")
        return command

    def _journal(self, kind: str, **fields: object) -> None:
        self._context.journal.write(kind, node=self.spec.name, **fields)
