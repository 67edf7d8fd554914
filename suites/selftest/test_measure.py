"""The costs of a fault and the load under it, from a made-up journal and history."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.history.tables import CONSUMED, PRODUCED, HistoryWriter
from harness.measure.fault_costs import FaultCosts, measure_faults
from harness.measure.floors import Floors, shortfalls
from suites.selftest.journal_lines import events_of

START = datetime(2026, 1, 1, tzinfo=UTC)
LOG = "[2026-01-01 00:00:02,250] WARN Stopping serving logs in dir /d (kafka.log.LogManager)\n"
TOLD = (
    "[2026-01-01 00:00:02,300] INFO [Controller id=1] Handling log directory failure for brokers 3 (kafka)\n"
    "[2026-01-01 00:00:02,400] INFO [Controller id=1] Handling log directory failure for brokers 2 (kafka)\n"
)

Line = dict[str, Any]
"""A line of the journal, or the costs of a fault as JSON."""


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(seconds: float, kind: str, **fields: object) -> Line:
    return {"at": at(seconds).isoformat(), "kind": kind, **fields}


def costs(lines: list[Line], run_dir: Path) -> list[FaultCosts]:
    return measure_faults(events_of(lines), run_dir)


def measured_as_json(lines: list[Line], run_dir: Path) -> list[Line]:
    return [json.loads(json.dumps(each.to_json())) for each in costs(lines, run_dir)]


FAULT = {"fault": "chmod_000", "target": "log-dir-1 of broker 2", "broker": 2, "noticed_by": "Stopping serving logs"}
EVENTS = [
    event(0.0, "case.started"),
    event(0.5, "partition.changed", topic="t", partition=0, leader=2, isr=[1, 2, 3], seen_by=1),
    event(1.0, "pair.ready", topic="t"),
    event(2.0, "fault.injecting", **FAULT),
    event(2.1, "fault.injected", **FAULT),
    event(2.4, "partition.changed", topic="t", partition=0, leader=None, isr=[], offline_replicas=[2], seen_by=1),
    event(2.5, "partition.changed", topic="t", partition=0, leader=3, isr=[1, 3], offline_replicas=[2], seen_by=1),
    event(6.0, "pair.stopping", topic="t"),
    event(9.0, "fault.undone", **FAULT),
    event(9.5, "case.ended"),
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with a record every 0.1 s from 1.0 to 5.9 s; none is acked or read between 2.2 and 4.2 s."""
    instants = [1.0 + n / 10 for n in range(50) if not 2.2 < 1.0 + n / 10 < 4.2]
    rows = len(instants)

    def table(schema: pa.Schema, **columns: object) -> pa.Table:
        return pa.table(
            {
                field.name: pa.array(columns.get(field.name, [None] * rows), field.type)
                if field.nullable or field.name in columns
                else pa.array(["" if pa.types.is_string(field.type) else 0] * rows, field.type)
                for field in schema
            },
            schema=schema,
        )

    place = {"topic": ["t"] * rows, "partition": [0] * rows}
    when = [at(instant) for instant in instants]
    produced = table(PRODUCED, **place, outcome=["acked"] * rows, ended_at=when, sent_at=when)
    HistoryWriter(tmp_path, "produced", "p0").write(produced)
    HistoryWriter(tmp_path, "consumed", "c0").write(table(CONSUMED, **place, role=["live"] * rows, read_at=when))
    (tmp_path / "brokers" / "2").mkdir(parents=True)
    (tmp_path / "brokers" / "2" / "broker.log").write_text(LOG)
    (tmp_path / "brokers" / "1").mkdir()
    (tmp_path / "brokers" / "1" / "broker.log").write_text(TOLD)
    return tmp_path


def test_what_a_fault_cost(run_dir: Path) -> None:
    [measured] = measured_as_json(EVENTS, run_dir)
    assert measured == {
        "name": "chmod_000",
        "target": "log-dir-1 of broker 2",
        "proven": True,
        "role": "leader",
        "also": [],
        "noticed_s": 0.25,
        "controller_told_s": 0.4,
        "other_leader_s": 0.5,
        "no_other_leader": 0,
        "recovered_s": None,
        "first_ack_s": 2.2,
        "produce_gap_s": 2.0,
        "consume_gap_s": 2.0,
        "acked_before": 11,
        "acked_during": 18,
        "read_during": 18,
    }


def test_what_rots_while_its_broker_is_down_is_not_noticed(run_dir: Path) -> None:
    """A broker that is down notices no fault; that another broker sees it missing once more does not count."""
    rot = {**FAULT, "fault": "index_byte_flipped", "noticed_by": None}
    gone = [event(when, "brokers.changed", brokers=[1, 3], seen_by=1) for when in (1.5, 5.8)]
    events = [*EVENTS[:3], gone[0], event(2.0, "fault.injecting", **rot), event(2.1, "fault.injected", **rot), gone[1]]
    events += [*EVENTS[7:8], event(9.0, "fault.undone", **rot), *EVENTS[9:]]
    [measured] = measured_as_json(events, run_dir)
    assert (measured["noticed_s"], measured["acked_during"]) == (None, 21)


def test_what_is_missed_after_a_fault_was_not_missed_for_it(run_dir: Path) -> None:
    """No broker notices a slow disk; that the broker is missing after the fault was undone does not count."""
    slow = {**FAULT, "fault": "slow", "noticed_by": None}
    events = [*EVENTS[:3], event(2.0, "fault.injecting", **slow), event(2.1, "fault.injected", **slow)]
    events += [event(4.0, "fault.undone", **slow), event(5.8, "brokers.changed", brokers=[1, 3], seen_by=1)]
    assert measured_as_json([*events, EVENTS[-1]], run_dir)[0]["noticed_s"] is None


@pytest.mark.parametrize(
    ("changes", "role"),
    [
        ({"leader": 1}, "follower"),
        ({"leader": 1, "isr": [1, 3]}, None),
        ({"topic": "another"}, None),
    ],
)
def test_the_role_of_the_broker_that_a_fault_hit(run_dir: Path, changes: Line, role: str | None) -> None:
    """The role is the broker's in the pair's topic, by the last state before the fault."""
    events = [*EVENTS[:1], EVENTS[1] | changes, *EVENTS[2:]]
    assert measured_as_json(events, run_dir)[0]["role"] == role


def test_what_the_broker_was_besides(run_dir: Path) -> None:
    """The controller is the broker with the controller's MBean; a coordinator leads an internal topic's partition."""
    beside = [
        event(0.6, "mbeans.changed", node="broker-2", values={"OfflinePartitionsCount": 0}),
        event(0.7, "mbeans.changed", node="broker-1", values={"OfflineReplicaCount": 0}),
        event(0.8, "partition.changed", topic="__consumer_offsets", partition=0, leader=2, isr=[2], seen_by=1),
    ]
    resigned = event(1.5, "mbeans.changed", node="broker-2", values={"OfflinePartitionsCount": None})
    for more, also in (
        (beside, ["controller", "coordinator"]),
        ([*beside[:2], resigned], []),
    ):
        [measured] = measured_as_json([*EVENTS[:3], *more, *EVENTS[3:]], run_dir)
        assert (measured["role"], measured["also"]) == ("leader", also)


def test_a_controller_of_its_own_is_no_broker(run_dir: Path) -> None:
    """The role is "controller" then; the broker that the event names is only the witness."""
    killed = {**FAULT, "fault": "controller_killed", "target": "controller-100"}
    struck = [event(2.0, "fault.injecting", **killed, node="controller-100"), event(2.1, "fault.injected", **killed)]
    [measured] = measured_as_json([*EVENTS[:3], *struck, *EVENTS[5:]], run_dir)
    assert (measured["role"], measured["also"]) == ("controller", [])


@pytest.mark.parametrize(
    ("noticed_by", "line"),
    [
        ("Stopping", "Directories [a, b] in broker 2 marked offline, remaining directories: [c]"),
        ("Stopping", "Handling log directory failure for brokers 1,2"),
        (None, "Newly added brokers: , deleted brokers: 2, bounced brokers: , all live brokers: 1,3"),
        (None, "Fencing broker 2 at epoch 12 because its session has timed out."),
        (None, "Unfenced broker 2 has requested and been granted a controlled shutdown."),
    ],
)
def test_when_the_controller_was_notified_is_read_from_its_log(
    run_dir: Path, noticed_by: str | None, line: str
) -> None:
    (run_dir / "brokers" / "1" / "broker.log").write_text(f"[2026-01-01 00:00:02,700] INFO {line} (kafka)\n")
    events = [e | {"noticed_by": noticed_by} if e["kind"].startswith("fault") else e for e in EVENTS]
    [measured] = measured_as_json(events, run_dir)
    assert measured["controller_told_s"] == 0.7
    of_another = re.sub(r"\b2\b", "22", line)
    (run_dir / "brokers" / "1" / "broker.log").write_text(f"[2026-01-01 00:00:02,700] INFO {of_another} (kafka)\n")
    assert measured_as_json(events, run_dir)[0]["controller_told_s"] is None


def led(seconds: float, index: int, leader: int | None, *offline: int, topic: str = "t") -> Line:
    isr = [each for each in (1, 2, 3) if each not in offline]
    fields = {"topic": topic, "partition": index, "leader": leader, "isr": isr, "offline_replicas": list(offline)}
    return event(seconds, "partition.changed", **fields, seen_by=1)


KILLED = {**FAULT, "fault": "broker_killed", "target": "broker 2", "noticed_by": None}
KILL = [
    event(4.0, "fault.injecting", **KILLED),
    event(4.0, "node.killed", node="broker-2"),
    event(4.1, "fault.injected", **KILLED),
]
STOP = [event(4.0, "node.stopping", node="broker-2"), event(4.5, "node.stopped", node="broker-2")]
STRUCK_ELSEWHERE = [
    event(4.0, "fault.injecting", **{**KILLED, "broker": 3}),
    event(4.0, "node.killed", node="broker-3"),
]


@pytest.mark.parametrize(
    ("happened", "measured"),
    [
        ([led(2.5, 0, 3, 2), led(2.7, 1, 1, 2)], [(0.7, 0)]),
        ([led(2.5, 0, 3, 2), *KILL, led(7.0, 1, 1, 2), led(7.5, 2, 3, 2)], [(0.5, 0), (3.5, 0)]),
        ([led(2.5, 0, 3, 2), *KILL, led(7.0, 1, 1, 2)], [(0.5, 0), (None, 1)]),
        (KILL, [(None, 0), (None, 3)]),
        ([led(2.5, 0, 3, 2), *STOP, led(5.0, 1, 1, 2)], [(0.5, 0)]),
        ([led(2.5, 0, 3, 2), *STRUCK_ELSEWHERE, led(5.0, 1, 1, 2, 3)], [(3.0, 0)]),
        ([led(2.5, 0, 3, 2), led(2.6, 1, 1), led(2.8, 1, 3, 2)], [(0.5, 0)]),
        ([led(2.5, 0, 3, 2), led(2.6, 1, None)], [(None, 1)]),
        ([led(2.5, 0, 3, 2), led(2.6, 1, None, 2), led(9.2, 1, 1)], [(None, 1)]),
        ([led(2.5, 0, 3, 2), led(2.6, 1, None, 2), event(3.0, "topic.deleted", topic="t")], [(0.5, 0)]),
        ([led(2.5, 3, 3, 2)], [(None, 0)]),
    ],
    ids=[
        "the last of several",
        "moved when its broker was killed",
        "one has none when its broker is killed",
        "unseen, since nobody lives to tell",
        "moved when its broker was stopped",
        "another broker's end",
        "moved as it was asked to",
        "one has none",
        "one has none until its end",
        "deleted",
        "another's partition",
    ],
)
def test_other_leaders_are_those_of_what_this_fault_took(
    run_dir: Path, happened: list[Line], measured: list[tuple[float | None, int]]
) -> None:
    """Only partitions count that the fault's broker led: 0 to 2, and none of a deleted topic."""
    stale = [led(0.2, 0, 2, topic="gone"), event(0.3, "topic.deleted", topic="gone")]
    begin = [EVENTS[0], *stale, *(led(0.5, index, 2) for index in range(3)), led(0.5, 3, 1), EVENTS[2]]
    during = sorted([*EVENTS[3:5], *happened, EVENTS[7]], key=lambda e: datetime.fromisoformat(e["at"]))
    ends = [event(9.0, "fault.undone", **fault) for fault in (FAULT, KILLED)] + [EVENTS[-1]]
    events = sorted([*begin, *during, *ends], key=lambda e: datetime.fromisoformat(e["at"]))
    found = measured_as_json(events, run_dir)
    told = [(each["other_leader_s"], each["no_other_leader"]) for each in found if each["proven"]]
    assert told == measured


def partition(seconds: float, index: int, *isr: int) -> Line:
    return event(
        seconds,
        "partition.changed",
        topic="t",
        partition=index,
        leader=1,
        isr=list(isr),
        offline_replicas=[],
        seen_by=1,
    )


RECOVERING = [
    partition(0.5, 0, 1, 2),
    partition(0.5, 1, 1, 2),
    partition(0.5, 2, 1),
    event(2.0, "fault.injecting", **FAULT),
    event(2.1, "fault.injected", **FAULT),
    partition(2.2, 0, 1),
    partition(2.3, 1, 1),
    partition(3.0, 1, 1, 2),
    event(9.0, "fault.undone", **FAULT),
    partition(9.4, 2, 1, 2),
    partition(9.6, 0, 1, 2),
]


@pytest.mark.parametrize(
    ("events", "recovered_s"),
    [
        (RECOVERING, 0.6),
        ([*RECOVERING[:9], event(9.2, "node.started", node="broker-2"), *RECOVERING[9:]], 0.4),
        ([*RECOVERING[:9], event(9.2, "node.started", node="broker-1"), *RECOVERING[9:]], 0.6),
        ([*RECOVERING, event(9.8, "node.started", node="broker-2")], 0.6),
        (RECOVERING[:-1], None),
        ([e for e in RECOVERING if e["kind"] != "fault.undone"], None),
        ([e for e in RECOVERING if e.get("partition") != 0], None),
        ([*RECOVERING[:9], event(9.2, "topic.deleted", topic="t"), *RECOVERING[9:]], None),
        (
            [e | {"noticed_by": None} for e in [*RECOVERING[:8], event(8.5, "node.started", node="broker-2")]]
            + RECOVERING[8:],
            1.1,
        ),
    ],
    ids=[
        "from its end",
        "from its start",
        "another's start",
        "started again",
        "never",
        "not undone",
        "not missing",
        "deleted",
        "its broker's end",
    ],
)
def test_a_broker_has_recovered_when_every_isr_has_it_again(
    run_dir: Path, events: list[Line], recovered_s: float | None
) -> None:
    """Only ISRs that had the broker before the fault, and lacked it when the fault was undone, are waited for."""
    [measured] = measured_as_json(events, run_dir)
    assert measured["recovered_s"] == recovered_s


def test_acks_that_never_paused_did_not_come_again(run_dir: Path) -> None:
    """Records come every 0.1 s; a gap of up to five times that is no pause."""
    for stops, injected, measured in ((2.15, 2.0, (0.1, None)), (4.3, 3.75, (0.45, None)), (4.3, 3.65, (0.55, 0.55))):
        instants = {"fault.injecting": injected, "pair.stopping": stops}
        moved = [e | {"at": at(instants[e["kind"]]).isoformat()} if e["kind"] in instants else e for e in EVENTS]
        [measure] = measured_as_json(moved, run_dir)
        assert (measure["produce_gap_s"], measure["first_ack_s"]) == measured


def test_independent_readers_are_distinguished_from_the_pair(run_dir: Path) -> None:
    """The reads of an independent reader, s0, count neither for the pair's gap nor for its number of reads."""
    reads = pa.concat_tables([pq.read_table(part) for part in (run_dir / "history" / "consumed").glob("*.parquet")])
    parts = {"s0": [at(3.0), at(5.0)]}
    for consumer, instants in parts.items():
        rows = reads.slice(0, len(instants)).to_pylist()
        changed = [row | {"consumer": consumer, "read_at": i} for row, i in zip(rows, instants, strict=True)]
        HistoryWriter(run_dir, "consumed", consumer).write(pa.Table.from_pylist(changed, CONSUMED))
    with_readers = [
        e | {"consumers": [""], "readers": {"s0": ["s0"]}} if e["kind"] == "pair.ready" else e for e in EVENTS
    ]
    [alone], [beside] = measured_as_json(EVENTS, run_dir), measured_as_json(with_readers, run_dir)
    assert (alone["consume_gap_s"], alone["read_during"]) == (1.2, 20)
    assert (beside["consume_gap_s"], beside["read_during"]) == (2.0, 18)
    assert beside["reader_gaps_s"] == {"s0": 2.0}


def test_enough_load_is_enough(run_dir: Path) -> None:
    assert shortfalls(costs(EVENTS, run_dir), Floors(before=11, during=18)) == []


@pytest.mark.parametrize(
    ("floors", "says"),
    [
        (Floors(before=12, during=1), "11 records were acked before chmod_000"),
        (Floors(before=1, during=19), "18 records were acked during chmod_000"),
        (Floors(faults=2, before=1, during=1), "1 proven faults struck while a pair ran, at least 2 wanted"),
    ],
)
def test_too_little_load_is_reported(run_dir: Path, floors: Floors, says: str) -> None:
    assert any(says in sentence for sentence in shortfalls(costs(EVENTS, run_dir), floors))


def test_no_load_is_asked_for_under_a_fault_that_may_hold_up_clients(run_dir: Path) -> None:
    """The load before such a fault must be enough all the same."""
    held_up = [e | {"may_hold_up_clients": True} if e["kind"] == "fault.injecting" else e for e in EVENTS]
    measured = costs(held_up, run_dir)
    assert shortfalls(measured, Floors(before=11, during=1000)) == []
    assert len(shortfalls(measured, Floors(before=12, during=1000))) == 1


def test_what_got_through_before_it_was_noticed_is_no_load_under_the_fault(run_dir: Path) -> None:
    """Two records that were acked between the injection and the new leader do not count."""
    [measured] = measured_as_json(EVENTS, run_dir)
    assert measured["acked_during"] == 18


def test_a_watcher_that_notices_late_takes_no_load_away(run_dir: Path) -> None:
    """The load counts from 2.3 s, when the scenario saw the expected state, although the watcher saw it later."""
    late = [
        e | {"at": at(5.0).isoformat()} if e["kind"] == "partition.changed" and e["leader"] == 3 else e for e in EVENTS
    ]
    assert [e["acked_during"] for e in measured_as_json(late, run_dir)] == [10]
    seen = [*late[:5], event(2.3, "state.validated"), *late[5:]]
    assert [e["acked_during"] for e in measured_as_json(seen, run_dir)] == [18]


def test_a_second_injection_is_not_proven_by_the_first(run_dir: Path) -> None:
    events = [*EVENTS[:3], event(1.5, "fault.injecting", **FAULT), event(1.6, "fault.not_proven", **FAULT), *EVENTS[3:]]
    assert [measured["proven"] for measured in measured_as_json(events, run_dir)] == [False, True]


def test_a_fault_that_no_pair_met_shows_nothing(run_dir: Path) -> None:
    idle = [e for e in EVENTS if not e["kind"].startswith("pair.")]
    assert shortfalls(costs(idle, run_dir), Floors()) == ["0 proven faults struck while a pair ran, at least 1 wanted"]


def test_a_fault_that_was_not_proven_does_not_count(run_dir: Path) -> None:
    unproven = [e for e in EVENTS if e["kind"] != "fault.injected"]
    [measured] = measured_as_json(unproven, run_dir)
    assert measured == {"name": "chmod_000", "target": "log-dir-1 of broker 2", "proven": False}
    assert shortfalls(costs(unproven, run_dir), Floors())


def test_a_broker_that_was_down_notices_from_its_start_on(run_dir: Path) -> None:
    restarted = [*EVENTS[:5], event(2.2, "node.started", node="broker-2"), *EVENTS[5:]]
    [measured] = measured_as_json(restarted, run_dir)
    assert measured["noticed_s"] == 0.05
    without_leaders = [e for e in restarted if e["kind"] != "partition.changed"]
    assert [e["acked_during"] for e in measured_as_json(without_leaders, run_dir)] == [18]  # acks count from 2.25 s on
