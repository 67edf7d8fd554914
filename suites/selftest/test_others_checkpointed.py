"""A broker that stops writing checkpoints beside a failed log dir is found."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.log_dir import LOG_STARTS, RECOVERY_POINTS
from harness.errors import PromiseBroken
from suites.selftest.fakes import fake, fake_broker, fake_cluster, fake_node, log_dir_at
from suites.state_check import StateCheck
from suites.steps import check_others_checkpointed

INTERVALS = ("log.flush.offset.checkpoint.interval.ms", "log.flush.start.offset.checkpoint.interval.ms")
BOTH = (RECOVERY_POINTS, LOG_STARTS)


def broker_at(folder: Path, interval_ms: str = "500") -> Broker:
    """A broker with a failed log dir and a good one."""
    log_dirs = []
    for name in ("failed", "good"):
        (folder / name).mkdir(exist_ok=True)
        log_dirs.append(log_dir_at(folder / name))
    node = fake_node(properties=dict.fromkeys(INTERVALS, interval_ms), is_alive=lambda: True)
    return fake_broker(log_dirs=log_dirs, node=node)


def check(broker: Broker, version: str = "4.4.0", **state: object) -> None:
    cluster = fake_cluster(version, check_nodes=lambda: None)
    usual = {"failed": {broker.log_dirs[0]}, "dead": set(), "slow": set()}
    check_others_checkpointed(fake(StateCheck, cluster=cluster, **usual | state), broker)


@contextmanager
def written(broker: Broker, *files: str) -> Iterator[None]:
    """Inside the block, these files are written again and again into the good log dir."""
    ended, number = threading.Event(), 0

    def write() -> None:
        nonlocal number
        while not ended.wait(0.02):
            number += 1
            for file in files:
                path = broker.log_dirs[1].path / file
                path.touch()
                os.utime(path, ns=(number, number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_checkpoints_that_go_on_are_enough(tmp_path: Path) -> None:
    """Files in the failed log dir do not matter."""
    broker = broker_at(tmp_path)
    with written(broker, *BOTH):
        check(broker)


@pytest.mark.parametrize("file", BOTH)
def test_a_checkpoint_that_stops_is_found(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "QUESTION_S", 0.2)
    broker = broker_at(tmp_path)
    other = next(each for each in BOTH if each != file)
    with written(broker, other), pytest.raises(PromiseBroken, match=f"{file} in good of broker 1") as raised:
        check(broker)
    assert f"{other} in good" not in str(raised.value)


def test_a_broker_that_need_not_write_them_is_not_waited_for(tmp_path: Path) -> None:
    """It writes them rarely, or not yet, or is dead, or has a slow disk, or has no good log dir."""
    broker = broker_at(tmp_path)
    check(broker_at(tmp_path, "600000"))
    check(broker, "3.7.2")
    check(broker, dead={1})
    check(broker, slow={1})
    check(broker, failed=set(broker.log_dirs))
