"""A small made-up run folder: one partition, a log dir that fails, one lost record and its story."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.history.tables import CONSUMED, PRODUCED, HistoryWriter
from harness.runner.ledger import Entry

START = datetime(2026, 1, 1, tzinfo=UTC)
RUN_ID = "20260101T000000-kip-112-leader-at-runtime-kraft-chmod-000-abc123"
LOST = 30
"""The seq of the record that is lost."""

FAULT = {
    "fault": "chmod_000",
    "target": "broker-2-log-dir-1 of broker 2",
    "broker": 2,
    "noticed_by": "Stopping serving logs",
}
COSTS = {
    "name": "chmod_000",
    "target": FAULT["target"],
    "proven": True,
    "noticed_s": 0.25,
    "controller_told_s": 0.3,
    "other_leader_s": 0.5,
    "first_ack_s": 2.2,
    "produce_gap_s": 2.0,
    "consume_gap_s": 2.0,
    "recovered_s": 1.5,
}


def at(seconds: float) -> datetime:
    """An instant of the run."""
    return START + timedelta(seconds=seconds)


def event(seconds: float, kind: str, **fields: object) -> dict[str, Any]:
    """A line of the journal."""
    return {"at": at(seconds).isoformat(), "monotonic_s": seconds, "kind": kind, **fields}


def partition(seconds: float, leader: int | None, isr: list[int], offline: list[int]) -> dict[str, Any]:
    """A line of the watcher's about orders-0."""
    fields = {"topic": "orders", "partition": 0, "leader": leader, "leader_epoch": 0, "seen_by": 1}
    return event(seconds, "partition.changed", **fields, isr=isr, offline_replicas=offline)


def journal() -> list[dict[str, Any]]:
    """The journal of the run: the fault lasts from 2 to 7 s, and broker 2 restarts at 7 s."""
    return [
        event(0.0, "case.started", case="x", seed=1),
        *(event(0.01, "node.started", node=f"broker-{broker}", pid=broker) for broker in (1, 2)),
        event(0.5, "brokers.changed", seen_by=1, brokers=[1, 2]),
        partition(0.6, 2, [1, 2], []),
        event(0.7, "mbeans.changed", node="broker-2", values={"OfflineLogDirectoryCount": 0}),
        event(0.8, "phase", phase="load"),
        event(1.0, "pair.ready", topic="orders", producers=["p0"], consumers=["c0"], readers={}),
        event(1.9, "phase", phase="fault"),
        event(2.0, "fault.injecting", **FAULT),
        event(2.1, "fault.injected", **FAULT, evidence="Permission denied"),
        event(2.4, "mbeans.changed", node="broker-2", values={"OfflineLogDirectoryCount": 1}),
        partition(2.4, None, [1, 2], [2]),
        partition(2.5, 1, [1], [2]),
        event(6.0, "pair.stopping", topic="orders"),
        event(7.0, "fault.undone", **{key: FAULT[key] for key in ("fault", "target", "broker")}),
        event(7.0, "node.stopping", node="broker-2"),
        event(7.2, "node.stopped", node="broker-2", exit_code=143),
        event(7.3, "node.started", node="broker-2", pid=3),
        event(8.0, "brokers.changed", seen_by=1, brokers=[1, 2]),
        partition(8.2, 1, [1, 2], []),
        event(9.5, "case.ended", verdict="invalid", reason="1 acked record is in no drain"),
    ]


def write_run_folder(runs_dir: Path, name: str = RUN_ID, **changes: object) -> Path:
    """Write the run folder.

    :param changes: fields of run.json that differ
    """
    folder = runs_dir / name
    for broker in (1, 2):
        (folder / "brokers" / str(broker)).mkdir(parents=True)
        dirs = ",".join(f"/w/{name}/broker-{broker}-log-dir-{n}" for n in (1, 2))
        (folder / "brokers" / str(broker) / "server.properties").write_text(f"broker.id={broker}\nlog.dirs={dirs}\n")
    (folder / "brokers" / "2" / "broker.log").write_text(
        "[2026-01-01 00:00:00,300] INFO small talk (kafka.Kafka)\n"
        "[2026-01-01 00:00:00,400] WARN Connection to node 1 could not be established (kafka.Client)\n"
        f"[2026-01-01 00:00:02,250] WARN Stopping serving logs in dir /w/{name}/broker-2-log-dir-1 (kafka.LogManager)\n"
        "[2026-01-01 00:00:02,260] ERROR Error while writing 7 (kafka.LogManager)\njava.io.IOException: no\n\tat x\n"
        "[2026-01-01 00:00:02,270] ERROR Error while writing 8 (kafka.LogManager)\njava.io.IOException: no\n\tat x\n"
    )
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in journal()))
    run = {
        "schema": 1,
        "run_id": name,
        "case": "kip-112/leader-at-runtime[kraft-chmod_000]",
        "kip": 112,
        "plan": "2) Log directory failure on leader during runtime",
        "issue": None,
        "mode": "kraft",
        "seed": 1,
        "nodeid": "suites/kip_112/test_plan.py::test_x[kraft-chmod_000]",
        "run_token": "abc123",
        "started_at": START.isoformat(),
        "ended_at": at(9.5).isoformat(),
        "kafka": {"version": "4.3.1", "source": "maven"},
        "backend": "process",
        "outcome": {"verdict": "invalid", "reason": "1 acked record is in no drain"},
        "faults": [COSTS],
    }
    (folder / "run.json").write_text(json.dumps(run | changes))
    # A record every 0.1 s from 1.0 to 5.9; none between 2.2 and 4.2.
    _write_history(folder, [1.0 + n / 10 for n in range(50) if not 2.2 < 1.0 + n / 10 < 4.2])
    example = {"producer": "p0", "seq": LOST, "topic": "orders", "partition": 0, "offset": LOST}
    verdict = {"run_id": name, "verdict": "invalid", "anomalies": [{"kind": "lost", "count": 1, "examples": [example]}]}
    (folder / "verdict.json").write_text(json.dumps(verdict))
    told = {"at": at(4.4).isoformat(), "source": "p0", "says": "acked at orders-0@30 </script>"}
    story = {"producer": "p0", "seq": LOST, "kinds": ["lost"], "summary": "acked and gone", "timeline": [told]}
    (folder / "explained.json").write_text(json.dumps({"stories": [story | {"replicas": None}]}))
    return folder


def write_long_run_folder(runs_dir: Path, name: str) -> Path:
    """Write the run folder of a run of 15 min: 45,000 records, 800 changes of the leader, 200 errors in a log."""
    folder = write_run_folder(runs_dir, name, ended_at=at(900.0).isoformat())
    for part in (folder / "history").glob("*/*.parquet"):
        part.unlink()
    _write_history(folder, [1.0 + n / 50 for n in range(45_000)])
    with (folder / "events.jsonl").open("a") as events:
        for number in range(800):
            events.write(json.dumps(partition(10.0 + number, 1 + number % 2, [1, 2], [])) + "\n")
    with (folder / "brokers" / "1" / "broker.log").open("a") as log:
        for number in range(200):
            log.write(f"[{at(10.0 + 4 * number):%Y-%m-%d %H:%M:%S},000] ERROR Error {number} of many (kafka.Log)\n")
    return folder


def write_torn_run_folder(runs_dir: Path, *, count: int = 1) -> Path:
    """Write a run folder with a partial transaction, the records 4 to 6, and the stories of two of these.

    :param count: how many such transactions the verdict counts
    """
    folder = write_run_folder(runs_dir)
    change_produced(folder, lambda row: {"transaction": "p0-t1"} if row["seq"] in (4, 5, 6) else {})
    anomaly = {"kind": "partial_transaction", "count": count, "examples": [{"transaction": "p0-t1"}]}
    verdict = json.loads((folder / "verdict.json").read_text())
    (folder / "verdict.json").write_text(json.dumps(verdict | {"anomalies": [anomaly]}))
    story: dict[str, Any] = {"producer": "p0", "kinds": ["partial_transaction"], "timeline": [], "replicas": None}
    stories = [story | {"seq": seq, "summary": f"{seq} tells"} for seq in (4, 6)]
    (folder / "explained.json").write_text(json.dumps({"stories": stories}))
    return folder


def change_produced(folder: Path, changes: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite the table of produced records, with changes to each row."""
    [part] = (folder / "history" / "produced").glob("*.parquet")
    rows = [row | changes(row) for row in pq.read_table(part).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, PRODUCED), part)


def _write_history(folder: Path, instants: Sequence[float]) -> None:
    """Write a history with a record at each of these instants, acked 10 ms later and read 20 ms later."""
    produced = [
        {
            "producer": "p0",
            "seq": seq,
            "topic": "orders",
            "partition": 0,
            "offset": seq,
            "outcome": "acked",
            "crc32": 1,
            "sent_at": at(instant),
            "ended_at": at(instant + 0.01),
        }
        for seq, instant in enumerate(instants)
    ]
    consumed = [
        {
            "consumer": "c0",
            "role": "live",
            "position": seq,
            "session": 0,
            "topic": "orders",
            "partition": 0,
            "offset": seq,
            "producer": "p0",
            "seq": seq,
            "crc32": 1,
            "isolation": "read_uncommitted",
            "read_at": at(instant + 0.02),
        }
        for seq, instant in enumerate(instants)
    ]
    HistoryWriter(folder, "produced", "p0").write(pa.Table.from_pylist(produced, PRODUCED))
    HistoryWriter(folder, "consumed", "c0").write(pa.Table.from_pylist(consumed, CONSUMED))


def nights(id: str, verdicts: str, *took_s: float, backend: str = "process") -> list[Entry]:
    """The ledger's entries of a case that ran once each night.

    :param verdicts: one word for each night
    :param took_s: the duration of each; 10 s by default
    """
    return [
        Entry(
            at=START + timedelta(days=night, hours=3),
            id=id,
            kip=112,
            plan="1)",
            mode="kraft",
            kafka="4.3.1",
            backend=backend,
            verdict=verdict,
            duration_s=took_s[night] if took_s else 10.0,
            run_id=f"{id}-{night}",
            seed=night,
            faults=(),
        )
        for night, verdict in enumerate(verdicts.split())
    ]
