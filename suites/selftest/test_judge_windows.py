"""The judge of large histories, which reads by windows, gives the same verdict as the judge of small ones.

Windows, batches and chunks are as small as possible, so that anomalies cross their borders. JBOD_JUDGE_SEEDS=100 tries
a hundred times as many histories, and takes a hundred times as long.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import harness.checkers.judge as judge_module
from harness.checkers.judge import judge, judge_large
from harness.checkers.large_history.select import Sizes, find_rest
from harness.checkers.settings import read_settings
from harness.checkers.verdict import Verdict
from harness.errors import HistoryError
from harness.history.tables import SCHEMAS, HistoryWriter, TableName, load_table, pieces, table_dir
from harness.spark.session import SessionSource
from suites.selftest.histories import Row, Story, anomaly_counts, crc, right_story, without_twins
from suites.selftest.test_judge_model import PLANTERS, disturb

A = TypeVar("A")
B = TypeVar("B")

NAMES: tuple[TableName, ...] = ("produced", "consumed")
TIMES = int(os.environ.get("JBOD_JUDGE_SEEDS", "1"))


def here(work: Callable[[A], B], arguments: Sequence[A], /) -> list[B]:
    return [work(argument) for argument in arguments]


def store(story: Story, run_dir: Path, dice: random.Random) -> None:
    """Write the history in files and row groups of random sizes."""
    shutil.rmtree(run_dir / "history", ignore_errors=True)
    run_dir.mkdir(exist_ok=True)
    (run_dir / "run.json").write_text(json.dumps(story.run))
    for name, table in zip(SCHEMAS, story.tables(), strict=True):
        if table is None:
            continue
        folder = table_dir(run_dir, name)
        folder.mkdir(parents=True)
        at, number = 0, 0
        while at < len(table) or not number:
            count = dice.choice((5, 30, 100))
            pq.write_table(
                table.slice(at, count), folder / f"part-{number:04d}.parquet", row_group_size=dice.choice((2, 7, 100))
            )
            at, number = at + count, number + 1


def by_windows(run_dir: Path, dice: random.Random) -> Verdict:
    sizes = Sizes(
        window=dice.choice((1, 2, 3, 5, 1000)),
        batch_rows=dice.choice((2, 7, 1000)),
        chunk_rows=dice.choice((1, 20, 1000)),
    )
    stored = {name: pieces(run_dir, name) for name in NAMES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.checkers.large_history.summarise.MOST_LINES", dice.choice((5, 20, 1000)))
        return judge_large(run_dir, stored, read_settings(run_dir), here, dice.choice((1, 3)), sizes)


def check(story: Story, run_dir: Path, dice: random.Random) -> Verdict:
    """The verdict by windows equals that of the small judge, byte for byte."""
    run_dir.mkdir(exist_ok=True)
    story.consumed = without_twins(story.consumed)
    expected = story.judged(run_dir)
    store(story, run_dir, dice)
    assert by_windows(run_dir, dice).text() == expected.text()
    return expected


def longer(dice: random.Random, records: int = 40) -> Story:
    """A history in which most windows are clean, as in real ones: rows in order, and few odd ones."""
    story = Story()
    producers = ["p0", "p1"][: dice.randint(1, 2)]
    places = [("t", 0), ("t", 1), ("u", 0)][: dice.randint(1, 3)]
    logs: dict[tuple[str, int], list[Row]] = {place: [] for place in places}
    sent = dict.fromkeys(producers, 0)
    for _ in range(records):
        name = dice.choice(producers)
        topic, partition = place = dice.choice(places)
        row = story.send(sent[name], len(logs[place]), producer=name, topic=topic, partition=partition)
        row["crc32"] = crc(name, sent[name])
        sent[name] += 1
        logs[place].append(row)
        if dice.random() < 0.03:
            row.update(outcome=dice.choice(("indeterminate", "failed")), offset=None)
            if row["outcome"] == "failed":
                logs[place].pop()
    for consumer in ("live-a", "live-b", "drain-0")[dice.randint(0, 2) :]:
        for (topic, partition), log in logs.items():
            session = 0
            for offset in range(len(log)):
                again = range(max(0, offset - 2), offset + 1) if consumer != "drain-0" and dice.random() < 0.03 else ()
                session += bool(again)
                for at in (*again, *([] if again else [offset])):
                    source = log[at]
                    read = story.read(at, source["seq"], consumer, topic=topic, partition=partition, session=session)
                    read.update(producer=source["producer"], crc32=source["crc32"])
    assert story.drained is not None
    for (topic, partition), log in logs.items():
        row = {"consumer": "drain-0", "isolation": "read_uncommitted", "topic": topic, "partition": partition}
        story.drained.append(row | {"end_offset": len(log), "position": len(log)})
    return story


def far_duplicate(dice: random.Random, story: Story) -> None:
    read = dice.choice([row for row in story.consumed if row["role"] == "drain"])
    story.consumed.append(read | {"offset": 1000 + dice.randint(0, 3), "position": 1000})


def far_reorder(dice: random.Random, story: Story) -> None:
    """Swap two records at any distance, in all tables."""
    one, two = (dice.choice([row for row in story.produced if row["offset"] is not None]) for _ in range(2))
    if (one["producer"], one["topic"], one["partition"]) != (two["producer"], two["topic"], two["partition"]):
        return
    at = {(row["producer"], row["seq"]): other["offset"] for row, other in ((one, two), (two, one))}
    for row in [*story.produced, *story.consumed]:
        if row["offset"] is not None:
            row["offset"] = at.get((row["producer"], row["seq"]), row["offset"])


def moved(dice: random.Random, story: Story) -> None:
    """Move a block of the log; acks and reads agree on its new place."""
    topic, partition = (dice.choice(story.produced)[each] for each in ("topic", "partition"))
    start, length, by = dice.randint(0, 20), dice.randint(1, 8), dice.choice((100, 200))
    for row in [*story.produced, *story.consumed]:
        here_too = (row["topic"], row["partition"]) == (topic, partition) and row["offset"] is not None
        if here_too and start <= row["offset"] < start + length:
            row["offset"] += by


def read_elsewhere(dice: random.Random, story: Story) -> None:
    read = dice.choice(story.consumed)
    place = dice.choice(({"topic": "u"}, {"partition": 1}, {"partition": 7}, {"topic": "new"}))
    if dice.random() < 0.5:
        story.consumed.append(read | place)
    else:
        read.update(place)


def conflicting_ack(dice: random.Random, story: Story) -> None:
    one, two = dice.choice(story.produced), dice.choice(story.produced)
    place = {each: two[each] for each in ("topic", "partition", "offset")}
    if place["offset"] is not None:
        one.update(place, outcome="acked")


def swapped_reads(dice: random.Random, story: Story) -> None:
    """A consumer reads two of its offsets in the wrong order, at any distance."""
    one = dice.choice(story.consumed)
    same = ("consumer", "topic", "partition")
    two = dice.choice([row for row in story.consumed if all(row[each] == one[each] for each in same)])
    one["position"], two["position"] = two["position"], one["position"]


def block_read_again(dice: random.Random, story: Story) -> None:
    one = dice.choice(story.consumed)
    same = ("consumer", "topic", "partition")
    own = [row for row in story.consumed if all(row[each] == one[each] for each in same)]
    again = own[dice.randint(0, len(own)) :]
    later = dice.randint(0, 1)
    story.consumed += [row | {"position": row["position"] + 500, "session": row["session"] + later} for row in again]


def hole(dice: random.Random, story: Story) -> None:
    """One consumer, or all of them, did not read a range of offsets."""
    one = dice.choice(story.consumed)
    whole = dice.random() < 0.3
    gone = range(one["offset"], one["offset"] + dice.randint(1, 6))
    story.consumed = [
        row
        for row in story.consumed
        if (row["topic"], row["partition"]) != (one["topic"], one["partition"])
        or row["offset"] not in gone
        or not (whole or row["consumer"] == one["consumer"])
    ]


def one_group(dice: random.Random, story: Story) -> None:
    """The live consumers form a group, and the partition moves from one to the other."""
    story.run["groups"] = {"live-a": "g", "live-b": "g"}
    at = dice.randint(0, 30)
    story.consumed = [
        row
        for row in story.consumed
        if not (row["consumer"] == "live-a" and at < row["offset"] < at + 6)
        and not (row["consumer"] == "live-b" and row["offset"] < at)
    ]


def hand_over(dice: random.Random, story: Story) -> None:
    """The live consumers form a group; the partition moves once from one to the other; neither reads some records."""
    story.run["groups"] = {"live-a": "g", "live-b": "g"}
    at, left_out = dice.randint(0, 15), dice.choice((0, 1, 1, 6))
    story.consumed = [
        row
        for row in story.consumed
        if not (row["consumer"] == "live-a" and row["offset"] > at)
        and not (row["consumer"] == "live-b" and row["offset"] <= at + left_out)
    ]


def second_drain(dice: random.Random, story: Story) -> None:
    """Add a drain, perhaps with read_committed; it may miss records, stop early, or have no rows in `drained`."""
    aborted = some_aborted(story) if dice.random() < 0.5 else set()
    isolation = dice.choice(("read_committed", "read_committed", "read_uncommitted"))
    missed = range(start := dice.randint(0, 20), start + dice.choice((0, 1, 4, 12)))
    end = dice.choice((5, 20, 1000))
    another = {"consumer": "drain-1", "isolation": isolation}
    story.consumed += [
        row | another
        for row in story.consumed
        if row["role"] == "drain"
        and not (isolation == "read_committed" and (row["producer"], row["seq"]) in aborted)
        and row["offset"] not in missed
        and row["offset"] < end
    ]
    for row in list(story.drained or []) if dice.random() < 0.8 else ():
        assert story.drained is not None
        story.drained.append(row | another | {"position": min(end, row["position"])})


def transactions(dice: random.Random, story: Story) -> None:
    for row in story.produced:
        number = row["seq"] // 4
        row["transaction"] = f"{row['producer']}-{number}"
        row["transaction_outcome"] = ("committed", "committed", "aborted", "indeterminate")[number % 4]


def isolations(dice: random.Random, story: Story) -> None:
    for row in story.consumed:
        if dice.random() < 0.1:
            row["isolation"] = "read_committed"


def some_aborted(story: Story) -> set[tuple[str, int]]:
    """Send all records in transactions of three, and abort every fourth one; returns the aborted records."""
    for row in story.produced:
        number = row["seq"] // 3
        row["transaction"] = f"{row['producer']}-{number}"
        row["transaction_outcome"] = "aborted" if number % 4 == 1 else "committed"
    return {(row["producer"], row["seq"]) for row in story.produced if row["transaction_outcome"] == "aborted"}


def two_isolations(dice: random.Random, story: Story) -> None:
    """A live consumer reads with read_committed for a while; at other times it reads some of the aborted records.

    Perhaps it is two consumers of a group.
    """
    aborted = some_aborted(story)
    committed = range(dice.randint(1, 10), dice.randint(10, 30))
    grouped = dice.random() < 0.5
    if grouped:
        story.run["groups"] = {"live-b": "g", "live-c": "g"}
    kept = []
    for row in story.consumed:
        if row["consumer"] == "live-b":
            if row["offset"] in committed:
                row["isolation"] = "read_committed"
                row["consumer"] = "live-c" if grouped else "live-b"
            if (row["producer"], row["seq"]) in aborted and (row["offset"] in committed or dice.random() < 0.3):
                continue
        kept.append(row)
    story.consumed = kept


def all_committed(dice: random.Random, story: Story) -> None:
    """All consumers read with read_committed; aborted records may have been acked at the offsets of others."""
    aborted = some_aborted(story)
    for row in [*story.consumed, *(story.drained or [])]:
        row["isolation"] = "read_committed"
    story.consumed = [row for row in story.consumed if (row["producer"], row["seq"]) not in aborted]
    for row in story.produced:
        if (row["producer"], row["seq"]) in aborted and row["offset"] is not None and dice.random() < 0.1:
            row["offset"] = max(0, row["offset"] + dice.choice((-2, -1, 1, 2)))


def scenario(dice: random.Random, story: Story) -> None:
    story.run["deleted_below"] = {"t": {"0": dice.randint(0, 30)}}
    story.run["compacted"] = dice.choice(([], ["t"], ["u"]))
    for row in story.produced:
        row["key"] = dice.choice((None, "a", "b"))


def short_drain(dice: random.Random, story: Story) -> None:
    end = dice.randint(0, 30)
    story.consumed = [row for row in story.consumed if row["role"] == "live" or row["offset"] < end]
    if dice.random() < 0.5:
        story.drained = None
    for row in story.drained or []:
        row["position"] = min(row["position"], end)


def other_crc(dice: random.Random, story: Story) -> None:
    dice.choice([*story.consumed, *story.produced])["crc32"] ^= 1


def unsent(dice: random.Random, story: Story) -> None:
    story.produced.remove(dice.choice(story.produced))


HARM: tuple[Callable[[random.Random, Story], None], ...] = (
    far_duplicate,
    far_reorder,
    moved,
    read_elsewhere,
    conflicting_ack,
    swapped_reads,
    block_read_again,
    hole,
    one_group,
    hand_over,
    second_drain,
    transactions,
    isolations,
    two_isolations,
    all_committed,
    scenario,
    short_drain,
    other_crc,
    unsent,
    disturb,
)


@pytest.mark.parametrize("seed", range(40 * TIMES))
def test_any_history(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    story = right_story(dice, drains_to_end=dice.random() < 0.7)
    for _ in range(dice.randint(0, 3)):
        disturb(dice, story)
    check(story, tmp_path, dice)


@pytest.mark.parametrize("kind", PLANTERS)
def test_what_is_planted(kind: str, tmp_path: Path) -> None:
    planted = 0
    for seed in range(300 * TIMES):
        dice = random.Random(seed)
        story = right_story(dice)
        if not PLANTERS[kind](dice, story):
            continue
        verdict = check(story, tmp_path, dice)
        assert kind.partition(" ")[0] in {anomaly.kind for anomaly in verdict.anomalies}
        planted += 1
        if planted == 4 * TIMES:
            return
    pytest.fail("never planted")


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)
def test_harm_across_windows(harm: Callable[[random.Random, Story], None], tmp_path: Path) -> None:
    for seed in range(10 * TIMES):
        dice = random.Random(seed)
        story = longer(dice)
        harm(dice, story)
        for _ in range(dice.choice((0, 0, 1, 2))):
            if story.consumed:
                dice.choice(HARM)(dice, story)
        if dice.random() < 0.3:
            dice.shuffle(story.consumed)
            dice.shuffle(story.produced)
        check(story, tmp_path, dice)


def test_what_is_clean_is_taken_out(tmp_path: Path) -> None:
    """Clean windows are not read again; otherwise the tests above would test the small judge only."""
    story = Story()
    for seq in range(1000):
        story.send(seq, seq)
    for offset in range(1000):
        story.read(offset, by="live-a")
    story.drain(*range(1000))
    story.consumed.append(story.consumed[77] | {"position": 1000, "session": 1})
    store(story, tmp_path, random.Random(1))
    stored = {name: pieces(tmp_path, name) for name in NAMES}
    sizes = Sizes(window=10, chunk_rows=100)
    rest = find_rest(stored, load_table(tmp_path, "drained"), read_settings(tmp_path), here, 2, sizes)
    assert (rest.windows, rest.left) == (
        100,
        3,
    )  # the first and last of a live consumer, and that with 77
    assert (len(rest.produced), len(rest.consumed)) == (30, 61)
    assert (rest.counts.sent, rest.counts.read) == (1000, 2001)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda story: story.send(3, 50, producer="p0"), "two rows for one record 1 times, e.g. for p0 #3"),
        (lambda story: story.send(3, 3, producer="p0", partition=1), "two rows for one record 1 times, e.g. for p0 #3"),
        (
            lambda story: [
                row.update(transaction="x", transaction_outcome=("committed", "aborted")[row["seq"] % 2])
                for row in story.produced
            ],
            "1 transactions of two outcomes, e.g. x",
        ),
        (lambda story: story.read(4, partition=-1), "a partition or an offset below zero"),
        (lambda story: story.read(4, crc32=None), "a record with producer and seq, but without crc32"),
        (lambda story: story.send(90, 90, outcome="lost"), "outcome is 'lost'"),
        (lambda story: story.send(90, 90, transaction="x"), "a transaction without transaction_outcome"),
    ],
)
def test_what_is_no_history(spoil: Callable[[Story], object], why: str, tmp_path: Path) -> None:
    dice = random.Random(1)
    story = longer(dice)
    spoil(story)
    with pytest.raises(HistoryError, match=why):
        story.judged(tmp_path)
    store(story, tmp_path, dice)
    with pytest.raises(HistoryError, match=why):
        by_windows(tmp_path, dice)


@pytest.mark.parametrize(
    ("limit", "most", "why"),
    [
        (
            "harness.checkers.large_history.select.MOST_ROWS",
            2_000,
            r"2,500 rows, in 100 of 100 windows of 10 offsets, would have",
        ),
        ("harness.checkers.large_history.summarise.MOST_BYTES", 500, "its rows are stored too far out of order"),
        ("harness.checkers.large_history.seen_seqs.MOST_PAGES", 0, "the seqs of its producers have too many gaps"),
    ],
)
def test_too_much_of_a_large_history_to_look_into(
    limit: str, most: int, why: str, judge_spark: SessionSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If too many windows are odd, the verdict is unknown, whatever the judge has found so far."""
    monkeypatch.setattr(judge_module, "AT_ONCE", 0)
    monkeypatch.setattr(judge_module, "SIZES", Sizes(window=10))
    monkeypatch.setattr(limit, most)
    monkeypatch.setattr(judge_module, "spark_map_over", lambda _: here)
    story = Story()
    for seq in range(1000):
        story.send(seq, seq)
        story.read(seq, by="live-a")
    story.drain(*range(0, 1000, 2))
    store(story, tmp_path, random.Random(1))
    verdict = judge(judge_spark, tmp_path)
    assert verdict.verdict == "unknown"
    assert re.match(f"the judge could not decide: {why}", verdict.reasons[0])
    assert (verdict.counts.sent, verdict.counts.read) == (1000, 1500)


def part_by_part(
    story: Story, parts: Sequence[Sequence[Row]], run_dir: Path, sent: Sequence[Sequence[Row]] = ()
) -> Verdict:
    """Judge by windows of ten, with each of these parts of ``consumed`` and of ``produced`` in a batch of its own."""
    sent = sent or [story.produced]
    story.produced, story.consumed = [], []
    story.write(run_dir)
    for of_sent in sent:
        HistoryWriter(run_dir, "produced", "sent").write(pa.Table.from_pylist(list(of_sent), SCHEMAS["produced"]))
        story.produced += of_sent
    for of_read in parts:
        HistoryWriter(run_dir, "consumed", "read").write(pa.Table.from_pylist(list(of_read), SCHEMAS["consumed"]))
        story.consumed += of_read
    stored = {name: pieces(run_dir, name) for name in NAMES}
    verdict = judge_large(run_dir, stored, read_settings(run_dir), here, 1, Sizes(window=10, chunk_rows=1))
    assert verdict.text() == story.judged(run_dir).text()
    return verdict


@pytest.mark.parametrize(("start", "length"), [(40, 20), (44, 1)], ids=["windows", "neighbours"])
def test_out_of_order_and_clean_but_for_that(start: int, length: int, tmp_path: Path) -> None:
    """The records are in the wrong order; each is at its acked offset, and all consumers read it."""
    order = [*range(start), *range(start + length, start + 2 * length), *range(start, start + length)]
    story = Story(run={"run_id": "order"})
    for offset, seq in enumerate([*order, *range(len(order), 100)]):
        story.send(seq, offset)
        story.read(offset, seq, by="drain")
    story.end(100)
    verdict = part_by_part(story, [story.consumed], tmp_path)
    assert anomaly_counts(verdict) == {"reordered": length}


def test_two_records_at_one_offset_and_all_were_handed_out(tmp_path: Path) -> None:
    story = Story(run={"run_id": "conflict"})
    for seq in range(30):
        story.send(seq, seq)
    story.send(30, 5)
    story.drain(*range(30))
    story.read(5, 30, by="drain", session=1)
    verdict = part_by_part(story, [story.consumed], tmp_path)
    assert anomaly_counts(verdict) == {"conflicting_offset": 1, "reordered": 1}


def test_out_of_order_in_two_parts_of_which_each_is_in_order(tmp_path: Path) -> None:
    story = Story(run={"run_id": "interleaved"})
    first = [story.send(seq, 2 * seq) for seq in range(5)]
    second = [story.send(5 + seq, 2 * seq + 1) for seq in range(5)]
    for row in sorted(story.produced, key=lambda row: row["offset"]):
        story.read(row["offset"], row["seq"], by="drain")
    story.end(10)
    verdict = part_by_part(story, [story.consumed], tmp_path, [first, second])
    assert anomaly_counts(verdict) == {"reordered": 4}


def test_an_indeterminate_transaction_of_which_part_is_far_away(tmp_path: Path) -> None:
    story = Story(run={"run_id": "in doubt"})
    for seq in range(30):
        in_doubt = {"transaction": "x", "transaction_outcome": "indeterminate"} if seq in (5, 25) else {}
        story.send(seq, seq, **in_doubt)
    story.drain(*(offset for offset in range(30) if offset != 25), by="drain-rc")
    verdict = part_by_part(story, [story.consumed], tmp_path)
    assert anomaly_counts(verdict) == {"partial_transaction": 1}


def test_two_reads_at_one_position(tmp_path: Path) -> None:
    """Two reads at one position count in the order of their offsets, whatever the order of their rows."""
    story = Story(run={"run_id": "positions"})
    for seq in range(60):
        story.send(seq, seq)
    order = [*range(10), *range(30, 40), 40, 10, *range(41, 50), *range(11, 30), *range(50, 60)]
    for offset in order:
        story.read(offset, by="live")
    story.consumed[21]["position"] = 20
    live, story.consumed = story.consumed, []
    story.drain(*range(60))
    verdict = part_by_part(story, [live, story.consumed], tmp_path)
    assert anomaly_counts(verdict) == {"nonmonotonic_read": 2}


def test_a_step_back_behind_reads_whose_order_is_not_known(tmp_path: Path) -> None:
    story = Story(run={"run_id": "steps"})
    for seq in range(100):
        story.send(seq, seq)
    first = [story.read(offset, by="live") for offset in range(10)]
    ahead = [story.read(offset, by="live") for offset in range(30, 70)]
    within = [first[3] | {"position": 15}]
    back = [story.read(offset, by="live") for offset in (*range(10, 30), *range(70, 100))]
    story.consumed = []
    story.drain(*range(100))
    verdict = part_by_part(story, [first, ahead, within, back, story.consumed], tmp_path)
    assert anomaly_counts(verdict)["nonmonotonic_read"] == 2


def test_a_group_that_reads_with_both_isolations(tmp_path: Path) -> None:
    """An aborted record that neither member reads counts as skipped, since one of them reads with read_uncommitted."""
    story = Story(run={"run_id": "isolations", "groups": {"live": "g", "live-rc": "g"}})
    for seq in range(40):
        aborted = {"transaction": "x", "transaction_outcome": "aborted"} if seq == 15 else {}
        story.send(seq, seq, **aborted)
        if seq != 15:
            story.read(seq, by="live-rc" if 5 <= seq < 35 else "live")
    live, story.consumed = story.consumed, []
    story.drain(*range(40))
    verdict = part_by_part(story, [live, story.consumed], tmp_path)
    assert anomaly_counts(verdict) == {"skipped": 1}


def test_windows_are_no_wider_than_memory_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.checkers.large_history.summarise.MOST_LINES", 100)
    story = Story()
    for seq in range(1000):
        story.send(seq, seq)
    story.drain(*range(1000))
    store(story, tmp_path, random.Random(1))
    stored = {name: pieces(tmp_path, name) for name in NAMES}
    drained = load_table(tmp_path, "drained")
    rest = find_rest(stored, drained, read_settings(tmp_path), here, 1, Sizes(window=3))
    assert (rest.windows, rest.left) == (84, 0)  # windows of 12 offsets


def test_through_spark(judge_spark: SessionSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "AT_ONCE", 0)
    dice = random.Random(3)
    story = longer(dice, 400)
    far_duplicate(dice, story)
    expected = story.judged(tmp_path)
    store(story, tmp_path, dice)
    assert judge(judge_spark, tmp_path).text() == expected.text()
    empty = pa.Table.from_pylist([], SCHEMAS["consumed"])
    for part in table_dir(tmp_path, "consumed").iterdir():
        pq.write_table(empty, part)
    story.consumed = []
    assert judge(judge_spark, tmp_path).text() == story.judged(tmp_path).text()
