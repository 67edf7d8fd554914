"""Stories of records, from made-up histories, journals and logs; test_controls_real.py has some from real clusters."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError, UsageError
from harness.explain.explain import explain_record, explain_verdict, read_verdict
from harness.explain.records import WORST, gather, worst_records
from harness.explain.segments import StoredRecord
from harness.explain.story import read_sources, stored_replicas, tell, write_stories
from harness.explain.whereabouts import Replica
from harness.history.run_folder import VerdictRecord
from harness.kafka.distribution import Distribution
from suites.selftest.histories import Story
from suites.selftest.processes import JBOD
from suites.selftest.run_folders import write_run_folder

BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def no_build() -> Distribution:
    raise AssertionError("no log dir is there, so nothing can be looked at")


def journal(run_dir: Path, *events: tuple[float, str, dict[str, Any]]) -> None:
    lines = [json.dumps({"at": at(second).isoformat(), "kind": kind} | more) for second, kind, more in events]
    (run_dir / "events.jsonl").write_text("\n".join(lines) + "\n")


def verdict(run_dir: Path, **examples: list[dict[str, Any]]) -> None:
    anomalies = [{"kind": kind, "count": len(of_kind), "examples": of_kind} for kind, of_kind in examples.items()]
    (run_dir / "verdict.json").write_text(json.dumps({"verdict": "invalid", "anomalies": anomalies}))


def example(seq: int, offset: int | None = None) -> dict[str, Any]:
    return {"producer": "p", "seq": seq, "topic": "t", "partition": 0, "offset": seq if offset is None else offset}


def replica(broker: int, **more: Any) -> Replica:
    plain = {"log_dir": f"broker-{broker}-log-dir-1", "folder": "t-0", "state": "online", "offsets": (0, 9)}
    return Replica(broker=broker, **(plain | more))


COPY = StoredRecord(offset=2, leader_epoch=0, segment="0.log", crc_fits=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Records 0 to 3 were acked at the offsets of their numbers. Offset 2 now has record 9, which a consumer read."""
    story = Story()
    for seq in range(4):
        story.send(seq, seq, sent_at=at(seq), ended_at=at(seq + 0.5))
    story.send(9, 2, sent_at=at(10), ended_at=at(10.5))
    story.read(0, read_at=at(0.7))
    story.read(2, 9, read_at=at(11))
    story.drain(0, 1)
    return story.write(tmp_path)


def test_a_story_is_in_order_of_time_by_all_sources(run_dir: Path) -> None:
    changed = {"topic": "t", "partition": 0, "isr": [1, 2], "offline_replicas": []}
    journal(
        run_dir,
        (-5, "partition.changed", changed | {"leader": 3, "leader_epoch": 6}),
        (-3, "partition.changed", changed | {"leader": 1, "leader_epoch": 7}),
        (1, "partition.changed", changed | {"leader": 5, "leader_epoch": 1, "partition": 1}),
        (4, "fault.injected", {"fault": "chmod_000", "target": "a dir of broker 1", "evidence": "EACCES"}),
        (5, "partition.changed", changed | {"leader": 2, "leader_epoch": 8}),
        (12, "judged", {}),
        (13, "node.killed", {"node": "broker-1"}),
    )
    log = run_dir / "brokers" / "2" / "broker.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "[2026-01-02 03:04:11,000] INFO [UnifiedLog partition=t-0, dir=/a/b/log-1] Truncating to offset 2 (kafka.Log)\n"
        "[2026-01-02 03:04:11,000] INFO [UnifiedLog partition=t-01, dir=/a/b/log-1] Truncating to offset 3 (a.Log)\n"
        "[2026-01-02 03:04:12,000] INFO Something else of t-0 (kafka.Log)\n"
    )
    facts = gather(run_dir, ("p", 2))
    assert facts is not None
    story = tell(read_sources(run_dir), facts, ["lost"], None)
    assert [(event.source, event.says) for event in story.timeline] == [
        ("jbod", "t-0: leader 1, epoch 7, ISR [1, 2], offline []"),
        ("p", "sent to t-0"),
        ("p", "acked at t-0@2, when broker 1 led in epoch 7"),
        ("jbod", "chmod_000 on a dir of broker 1 is in force: EACCES"),
        ("jbod", "t-0: leader 2, epoch 8, ISR [1, 2], offline []"),
        ("broker 2", "[UnifiedLog partition=t-0, dir=log-1] Truncating to offset 2"),
        ("p", "p #9 is acked at t-0@2, when broker 2 led in epoch 8"),
        ("live", "p #9 is read at t-0@2"),
    ]
    assert story.summary == (
        "acked at t-0@2, when broker 1 led in epoch 7; read by no live consumer; read by no drain consumer; its "
        "segments were not read: the cluster is gone (--keep-cluster keeps one)"
    )


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        ([replica(1, copies=(COPY,)), replica(2)], "now on broker 1 at 2"),
        ([replica(1, copies=(COPY,)), replica(3, copies=(COPY,))], "now on brokers 1 and 3 at 2"),
        (
            [replica(1, copies=(COPY,), state="KAFKA_STORAGE_ERROR"), replica(2)],
            "now on no replica (t-0 on broker 1 has it, but does not count: KAFKA_STORAGE_ERROR)",
        ),
        (
            [replica(1, copies=(COPY,), folder="t-0.ab-stray")],
            "now on no replica (t-0.ab-stray on broker 1 has it, but does not count: not a current replica)",
        ),
        (
            [replica(1, copies=(COPY,), log_start=3)],
            "now on no replica (t-0 on broker 1 has it, but does not count: deleted, the log starts at 3)",
        ),
        (
            [replica(1, instead=((2, "p #9"),)), replica(2, instead=((2, "p #9"),))],
            "now on no replica, and p #9 is at 2 on brokers 1 and 2",
        ),
        (
            [replica(1, copies=(StoredRecord(offset=2, leader_epoch=0, segment="0.log", crc_fits=False),))],
            "now on broker 1 at 2, with a wrong checksum on broker 1",
        ),
    ],
)
def test_where_it_is_now(run_dir: Path, replicas: list[Replica], says: str) -> None:
    facts = gather(run_dir, ("p", 2))
    assert facts is not None
    assert tell(read_sources(run_dir), facts, [], replicas).summary.endswith(f"; {says}")


def test_where_records_were_is_kept(run_dir: Path) -> None:
    facts = gather(run_dir, ("p", 2))
    assert facts is not None
    replicas = [replica(1, copies=(COPY,)), replica(2, instead=((2, "p #9"),), offsets=None, log_start=1)]
    write_stories(run_dir, [tell(read_sources(run_dir), facts, ["lost"], replicas)])
    assert stored_replicas(run_dir) == {("p", 2): replicas}
    verdict(run_dir, lost=[example(2)])
    assert explain_record(run_dir, ("p", 2), no_build).replicas == tuple(replicas)
    assert explain_record(run_dir, ("p", 1), no_build).replicas is None
    explain_verdict(run_dir, no_build)
    assert stored_replicas(run_dir)[("p", 2)] == replicas


def test_the_worst_records_are_of_every_kind_and_of_both_sides(run_dir: Path) -> None:
    assert worst_records(run_dir, VerdictRecord(verdict="valid", anomalies=[])) == {}
    lost = [example(seq) for seq in range(100, 120)]
    verdict(run_dir, conflicting_offset=[example(9, 2)], lost=lost, redelivered=[example(1)])
    found = worst_records(run_dir, read_verdict(run_dir))
    assert len(found) == WORST
    assert list(found)[:3] == [("p", 100), ("p", 9), ("p", 2)]
    assert found[("p", 2)] == ["conflicting_offset"]
    assert ("p", 1) not in found


def test_a_record_of_a_torn_transaction_is_reported(tmp_path: Path) -> None:
    story = Story()
    for seq in range(5):
        story.send(seq, seq, transaction="p-t0", transaction_outcome="committed")
    run_dir = story.write(tmp_path)
    verdict(run_dir, partial_transaction=[{"transaction": "p-t0"}])
    found = worst_records(run_dir, read_verdict(run_dir))
    assert list(found) == [("p", 0), ("p", 1), ("p", 2)]


def test_what_is_not_there_is_reported(run_dir: Path) -> None:
    with pytest.raises(UsageError, match="no record p #77"):
        explain_record(run_dir, ("p", 77), no_build)
    with pytest.raises(HarnessError, match=r"verdict\.json is missing: jbod check"):
        explain_verdict(run_dir, no_build)
    (run_dir / "verdict.json").write_text('{"verdict": "inv')
    with pytest.raises(HarnessError, match="judges the run again"):
        explain_verdict(run_dir, no_build)


@pytest.mark.parametrize("listeners", ["", "advertised.listeners=PLAINTEXT://127.0.0.1\n"], ids=["none", "no port"])
def test_a_broker_of_which_no_address_is_known_is_reported(run_dir: Path, listeners: str) -> None:
    folder = run_dir / "brokers" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.properties").write_text(f"log.dirs={run_dir}\n{listeners}")
    verdict(run_dir, lost=[example(2)])
    with pytest.raises(HarnessError, match=r"1/server\.properties: advertised\.listeners is '.*', which has no port"):
        explain_verdict(run_dir, no_build)


def test_a_case_that_ended_before_the_judge_is_explained_by_its_reason(tmp_path: Path) -> None:
    """Nothing is judged and nothing written: the reason of the case is shown, and where to look next."""
    run_dir = write_run_folder(tmp_path, outcome={"verdict": "invalid", "reason": "broker 2 went on"})
    (run_dir / "verdict.json").unlink()
    before = sorted(run_dir.rglob("*"))
    done = subprocess.run([JBOD, "explain", run_dir], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "invalid: broker 2 went on")
    assert "jbod report" in done.stdout
    assert sorted(run_dir.rglob("*")) == before
