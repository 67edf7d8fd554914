"""A broker whose good log dir went offline amid a swap may refuse to start on 3.9.2, in both modes (finding 7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.journal import now
from harness.kafka.broker_log import BrokerLog
from harness.kafka.versions import Mode
from suites.kip_112.test_no_fault import restart_with_good_log_dirs
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import cluster_state, deviation_kinds, fake_broker, fake_cluster, fake_node, log_line

STOPPED = "Stopping serving logs in dir /d1"
TWICE = "Duplicate log directories for t-0 are found in both /d1/t-0 and {}/t-0. It is likely because of a failed swap"


@pytest.mark.parametrize(
    ("version", "mode", "other", "says"),
    [
        ("3.9.2", Mode.ZK, "/d2", None),
        ("3.9.2", Mode.KRAFT, "/d2", None),
        ("3.9.2", Mode.KRAFT, "/d1", "refuses to start: Duplicate log directories"),  # neither log dir was good
        ("4.4.0", Mode.KRAFT, "/d2", "a broker whose log dirs are all good starts; seen: Duplicate log directories"),
    ],
)
def test_a_broker_that_finds_a_replica_twice(
    tmp_path: Path, version: str, mode: Mode, other: str, says: str | None
) -> None:
    """It starts once the replica in the log dir that had gone offline is deleted by hand."""
    log = tmp_path / "broker.log"
    log.write_text(log_line(STOPPED))
    commands: list[Sequence[str]] = []

    def restart() -> None:
        with log.open("a") as file:
            file.write(log_line(TWICE.format(other)))

    node = fake_node(
        exit_code=lambda: None if commands else 1, expect_end=lambda: None, run_as_user=lambda c: commands.append(c)
    )
    broker = fake_broker(
        node=node,
        log=BrokerLog(log),
        started_at=now(),
        restart=restart,
        start=lambda: None,
        describe_cluster=lambda: cluster_state(brokers=(1,)),
    )
    cluster = fake_cluster(version, mode)
    with breaks_promise(says):
        restart_with_good_log_dirs(cluster, broker)
    assert commands == ([] if says else [["rm", "-r", "/d1/t-0"]])
    assert deviation_kinds(cluster) == ([] if says else ["deviation.seen"])
