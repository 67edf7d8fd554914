"""A broker that has a replica twice, after its good log dir went offline amid a swap, is known on 3.9.2 only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.broker import Broker
from harness.cluster.nodes.process import ProcessNode
from harness.journal import now
from harness.kafka.broker_log import BrokerLog, LogLine
from harness.kafka.versions import Mode
from suites.kip_112 import test_no_fault
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import deviation_kinds, fake, fake_broker, fake_cluster, log_line

FLUSHED = "Error while flushing log for t-0 in dir /d with offset 7\njava.nio.channels.ClosedChannelException\n\tat x"
TWICE = "Exiting\njava.lang.X: Duplicate log directories for t-0 are found in both {} and {}. It is likely because"


def broker_with_log(log: Path, done: list[str]) -> Broker:
    """A broker whose log dir /d went offline; ``done`` gets what is done to it."""
    log.write_text("".join(map(log_line, [FLUSHED, "Stopping serving logs in dir /d"])))
    return fake_broker(
        log=BrokerLog(log),
        node=fake(ProcessNode, run_as_user=lambda command: done.append(" ".join(command))),
        started_at=now(),
        start=lambda: done.append("start"),
        restart=lambda: done.append("restart"),
    )


@pytest.mark.parametrize(
    ("version", "folders", "says", "steps", "notes"),
    [
        ("3.9.2", [], None, ["restart"], []),
        ("3.9.2", [("/e/t-0", "/d/t-0")], None, ["restart", "rm -r /d/t-0", "start"], ["deviation.seen"]),
        (
            "3.9.2",
            [("/d/t-0", "/e/t-0"), ("/d/t-1", "/e/t-1")],
            None,
            ["restart", "rm -r /d/t-0", "start", "rm -r /d/t-1", "start"],
            ["deviation.seen"] * 2,
        ),
        ("3.9.2", [("/e/t-0", "/f/t-0")], "refuses to start", ["restart"], []),
        ("3.9.1", [("/e/t-0", "/d/t-0")], "a broker whose log dirs are all good starts", ["restart"], []),
    ],
    ids=["joins", "twice", "two twice", "other log dirs", "another build"],
)
def test_a_replica_found_twice_is_deleted_from_the_log_dir_that_went_offline(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str,
    folders: list[tuple[str, str]],
    says: str | None,
    steps: list[str],
    notes: list[str],
) -> None:
    done: list[str] = []
    broker = broker_with_log(tmp_path / "broker.log", done)
    cluster = fake_cluster(version, Mode.ZK, brokers=[broker])
    refusals: Iterator[LogLine] = (LogLine(at=now(), level="ERROR", text=TWICE.format(*pair)) for pair in folders)
    monkeypatch.setattr(test_no_fault, "refuses_to_start", lambda *_, saying: next(refusals, None))
    with breaks_promise(says):
        test_no_fault.restart_with_good_log_dirs(cluster, broker)
    assert done == steps
    assert deviation_kinds(cluster) == notes
