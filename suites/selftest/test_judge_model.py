"""The judge on random histories: valid ones, valid ones with a planted anomaly, and noise.

Its verdicts are compared with those of :mod:`suites.selftest.reference_judge`, and with what was planted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.checkers.verdict import KINDS, Verdict
from harness.errors import HistoryError
from suites.selftest.histories import Row, Story, anomaly_counts, right_story, without_twins
from suites.selftest.reference_judge import Reference

SEEDS = range(60)


def found(verdict: Verdict) -> dict[str, int]:
    return {kind: count for kind, count in anomaly_counts(verdict).items() if kind != "no_load"}


def check(story: Story, scratch: Path) -> Verdict:
    """Judge the history, and compare the verdict with the reference judge's; returns it."""
    story.consumed = without_twins(story.consumed)
    verdict = story.judged(scratch)
    reference = Reference(story.produced, story.consumed, story.drained, story.run)
    assert found(verdict) == reference.kinds()
    assert verdict.verdict == reference.verdict()
    for anomaly in verdict.anomalies:
        assert len(anomaly.examples) == min(anomaly.count, 20)
    outcomes = [row["outcome"] for row in story.produced]
    counts = verdict.counts
    assert (counts.sent, counts.read) == (len(story.produced), len(story.consumed))
    assert [outcomes.count(each) for each in ("acked", "failed", "indeterminate")] == [
        *(counts.acked, counts.failed, counts.indeterminate),
    ]
    read = {(row["producer"], row["seq"]) for row in story.consumed}
    assert counts.indeterminate_present == sum(
        row["outcome"] == "indeterminate" and (row["producer"], row["seq"]) in read for row in story.produced
    )
    return verdict


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_history_shows_nothing(seed: int, tmp_path: Path) -> None:
    story = right_story(random.Random(seed))
    verdict = check(story, tmp_path)
    for anomaly in verdict.anomalies:
        assert len({str(example) for example in anomaly.examples}) == len(anomaly.examples)
    # A record at an unknown offset may have been deleted or compacted.
    may_be_gone = {"partial_transaction"} if story.run.keys() & {"deleted_below", "compacted"} else set()
    assert set(found(verdict)) <= {"redelivered"} | may_be_gone
    in_doubt = not verdict.counts.acked or "partial_transaction" in found(verdict)
    assert verdict.verdict == ("unknown" if in_doubt else "valid")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_history_that_was_not_drained_is_never_invalid(seed: int, tmp_path: Path) -> None:
    story = right_story(random.Random(seed), drains_to_end=False)
    verdict = check(story, tmp_path)
    assert set(found(verdict)) <= {"redelivered", "undrained", "held_back", "partial_transaction"}
    assert verdict.verdict != "invalid"


def plant_loss(dice: random.Random, story: Story) -> bool:
    """Remove a record from all drains that counts as written and was not deleted."""
    drained = {name(row) for row in story.consumed if row["role"] == "drain"}
    candidates = [
        row
        for row in story.produced
        if row["outcome"] == "acked" and row["transaction_outcome"] in (None, "committed") and name(row) in drained
    ]
    candidates = [row for row in candidates if not story.run.get("deleted_below") and row["key"] is None]
    if not candidates:
        return False
    victim = name(dice.choice(candidates))
    story.consumed = [row for row in story.consumed if row["role"] == "live" or name(row) != victim]
    return True


def plant_duplicate(dice: random.Random, story: Story) -> bool:
    read = one_of(dice, story.consumed)
    if read is None:
        return False
    story.consumed.append(read | {"offset": 1000, "position": 1000, "session": 99})
    return True


def plant_corruption(dice: random.Random, story: Story) -> bool:
    read = one_of(dice, story.consumed)
    if read is None:
        return False
    read["crc32"] ^= 1 << dice.randrange(32)
    return True


def plant_phantom(dice: random.Random, story: Story) -> bool:
    read = one_of(dice, story.consumed)
    if read is None:
        return False
    ghost = dice.choice(({"producer": None}, {"seq": None}, {"producer": None, "seq": None}, {"seq": 10**6}))
    story.consumed.append(read | ghost | {"offset": 1000, "position": 1000, "session": 99})
    return True


def plant_conflict(dice: random.Random, story: Story) -> bool:
    read = one_of(dice, story.consumed)
    others = [row for row in story.consumed if read is not None and name(row) != name(read)]
    if read is None or not others:
        return False
    other = dice.choice(others)
    place = {each: other[each] for each in ("topic", "partition", "offset")}
    story.consumed.append(read | place | {"position": 1000, "session": 99})
    return True


def plant_misplacement(dice: random.Random, story: Story) -> bool:
    read_ones = {name(row) for row in story.consumed}
    record = one_of(dice, [row for row in story.produced if row["outcome"] == "acked" and name(row) in read_ones])
    if record is None:
        return False
    for row in story.consumed:
        if name(row) == name(record):
            row["offset"] += 1000
    return True


def plant_failed_record(dice: random.Random, story: Story) -> bool:
    read_ones = {name(row) for row in story.consumed}
    record = one_of(dice, [row for row in story.produced if name(row) in read_ones])
    if record is None:
        return False
    record.update(outcome="failed", offset=None)
    return True


def plant_skip(dice: random.Random, story: Story) -> bool:
    """Remove a read between others from a live consumer without a group; a drain has the record, and it is visible."""
    drained = {place(row) for row in story.consumed if row["role"] == "drain" and row["isolation"] == "read_committed"}
    live = [
        row for row in story.consumed if row["role"] == "live" and row["consumer"] not in story.run.get("groups", {})
    ]
    candidates = []
    for row in live:
        own = [o["offset"] for o in live if (o["consumer"], *place(o)[:2]) == (row["consumer"], *place(row)[:2])]
        below = story.run.get("deleted_below", {}).get(row["topic"], {}).get(str(row["partition"]), 0)
        if place(row) in drained and max(min(own), below - 1) < row["offset"] < max(own):
            candidates.append(row)
    victim = one_of(dice, candidates)
    if victim is None:
        return False
    story.consumed = [
        row
        for row in story.consumed
        if row["role"] == "drain" or (row["consumer"], place(row)) != (victim["consumer"], place(victim))
    ]
    return True


def plant_gap_between_members(dice: random.Random, story: Story) -> bool:
    """Move a partition from one group member to another, and let neither read a record that a drain has."""
    groups = story.run.get("groups", {})
    drained = {place(row) for row in story.consumed if row["role"] == "drain" and row["isolation"] == "read_committed"}
    candidates = []
    for row in story.consumed:
        group = groups.get(row["consumer"])
        below = story.run.get("deleted_below", {}).get(row["topic"], {}).get(str(row["partition"]), 0)
        if group is None or row["role"] == "drain" or place(row) not in drained or row["offset"] < below:
            continue
        own = [o for o in story.consumed if o["role"] == "live" and groups.get(o["consumer"]) == group]
        own = [o for o in own if place(o)[:2] == place(row)[:2]]
        if min(o["offset"] for o in own) < row["offset"] < max(o["offset"] for o in own):
            candidates.append((row, own))
    if not candidates:
        return False
    victim, own = dice.choice(candidates)
    first, second = [name for name, of in groups.items() if of == groups[victim["consumer"]]][:2]
    for number, row in enumerate(own):
        before = row["offset"] < victim["offset"]
        row.update(consumer=first if before else second, session=number, position=number)
    story.consumed = [row for row in story.consumed if not (row in own and row["offset"] == victim["offset"])]
    return True


def plant_hidden(dice: random.Random, story: Story) -> bool:
    """Remove a record from one of two drains; the other one has it, and it is visible."""
    if story.run.get("compacted"):
        return False
    shown = {
        (row["producer"], row["seq"])
        for row in story.produced
        if row["transaction"] is None or row["transaction_outcome"] == "committed"
    }
    drains = [row for row in story.consumed if row["role"] == "drain"]
    gone = story.run.get("deleted_below", {})
    victims = [
        row
        for row in drains
        if name(row) in shown
        and any(other["consumer"] != row["consumer"] and place(other) == place(row) for other in drains)
        and row["offset"] >= gone.get(row["topic"], {}).get(str(row["partition"]), 0)
    ]
    victim = one_of(dice, victims)
    if victim is None:
        return False
    story.consumed.remove(victim)
    return True


def plant_step_back(dice: random.Random, story: Story) -> bool:
    read = one_of(dice, story.consumed)
    if read is None:
        return False
    story.consumed.append(read | {"position": 1000})
    return True


def plant_aborted_read(dice: random.Random, story: Story) -> bool:
    read_ones = {name(row) for row in story.consumed if row["isolation"] == "read_committed"}
    record = one_of(dice, [row for row in story.produced if row["transaction"] and name(row) in read_ones])
    if record is None:
        return False
    for row in story.produced:
        if row["transaction"] == record["transaction"]:
            row["transaction_outcome"] = "aborted"
    return True


def plant_half_transaction(dice: random.Random, story: Story) -> bool:
    """Remove one record of a committed transaction from all drains and all reads."""
    if story.run.get("deleted_below") or story.run.get("compacted"):
        return False
    shown = {name(row) for row in story.consumed if row["role"] == "drain" and row["isolation"] == "read_committed"}
    whole = []
    for record in story.produced:
        if record["transaction_outcome"] in ("committed", "indeterminate") and record["outcome"] == "acked":
            others = [
                row for row in story.produced if row["transaction"] == record["transaction"] and row is not record
            ]
            if name(record) in shown and any(name(row) in shown and row["outcome"] == "acked" for row in others):
                whole.append(record)
    victim = one_of(dice, whole)
    if victim is None:
        return False
    story.consumed = [row for row in story.consumed if name(row) != name(victim)]
    return True


def plant_reordering(dice: random.Random, story: Story) -> bool:
    """Swap two neighbouring records of one producer in one partition, in all tables."""
    acked = [row for row in story.produced if row["outcome"] == "acked"]
    pairs = [
        (one, two)
        for one in acked
        for two in acked
        if (one["producer"], *place(one)[:2]) == (two["producer"], *place(two)[:2]) and one["seq"] < two["seq"]
    ]
    if not pairs:
        return False
    one, two = dice.choice(pairs)
    at = {name(one): two["offset"], name(two): one["offset"]}
    for row in [*story.produced, *story.consumed]:
        if row["offset"] is not None:
            row["offset"] = at.get(name(row), row["offset"])
    return True


def name(row: Row) -> tuple[str, int]:
    return (row["producer"], row["seq"])


def place(row: Row) -> tuple[str, int, int]:
    return (row["topic"], row["partition"], row["offset"])


def one_of(dice: random.Random, rows: list[Row]) -> Row | None:
    return dice.choice(rows) if rows else None


PLANTERS: dict[str, Callable[[random.Random, Story], bool]] = {
    "lost": plant_loss,
    "duplicated": plant_duplicate,
    "corrupted": plant_corruption,
    "phantom": plant_phantom,
    "conflicting_offset": plant_conflict,
    "misplaced": plant_misplacement,
    "failed_but_present": plant_failed_record,
    "skipped": plant_skip,
    "skipped between members": plant_gap_between_members,
    "hidden": plant_hidden,
    "nonmonotonic_read": plant_step_back,
    "aborted_read": plant_aborted_read,
    "partial_transaction": plant_half_transaction,
    "reordered": plant_reordering,
}


@pytest.mark.parametrize("kind", PLANTERS)
def test_what_is_planted_is_named(kind: str, tmp_path: Path) -> None:
    planted = 0
    for seed in range(300):
        dice = random.Random(seed)
        story = right_story(dice)
        if not PLANTERS[kind](dice, story):
            continue
        planted += 1
        verdict = check(story, tmp_path)
        assert kind.partition(" ")[0] in found(verdict), f"seed {seed}"
        assert verdict.verdict == "invalid", f"seed {seed}"
        if planted == 15:
            break
    assert planted == 15


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_judged_as_the_contract_reads(seed: int, tmp_path: Path) -> None:
    """After any change of any rows, the two implementations of the contract agree on every count."""
    dice = random.Random(seed)
    kinds: set[str] = set()
    for _ in range(4):
        story = right_story(dice, drains_to_end=dice.random() < 0.5)
        for _ in range(dice.randint(1, 6)):
            disturb(dice, story)
        kinds |= set(found(check(story, tmp_path)))
    assert kinds <= set(KINDS)


def disturb(dice: random.Random, story: Story) -> None:
    """Change, drop or double some rows; all records of a transaction keep the same outcome, as in a real history."""
    tables = [story.consumed, story.consumed, story.consumed, story.produced, story.drained or []]
    rows = dice.choice([table for table in tables if table] or [story.consumed])
    if not rows:
        return
    row = dice.choice(rows)
    action = dice.random()
    if action < 0.3:
        rows.remove(row)
    elif action < 0.4 and rows is not story.produced:
        rows.append(dict(row))
    elif rows is story.drained:
        row[dice.choice(("end_offset", "position"))] = dice.randint(0, 20)
    elif rows is story.produced:
        change = dice.choice(("outcome", "offset", "partition", "key", "crc32", "topic", "transaction"))
        if change == "outcome":
            row["outcome"] = dice.choice(("acked", "failed", "indeterminate"))
        elif change == "transaction":
            outcome = dice.choice(("committed", "aborted", "indeterminate"))
            for other in story.produced:
                if row["transaction"] is not None and other["transaction"] == row["transaction"]:
                    other["transaction_outcome"] = outcome
        else:
            values = {"offset": (None, *range(12)), "partition": (None, 0, 1), "key": (None, "a"), "crc32": (1,)}
            row[change] = dice.choice(values.get(change, ("topic-0", "topic-1")))
    else:
        choices: dict[str, Sequence[object]] = {
            "offset": range(12),
            "partition": (0, 1, 5),
            "topic": ("topic-0", "topic-1"),
            "seq": (None, 0, 1, 99),
            "producer": (None, "p0", "p1", "stranger"),
            "isolation": ("read_committed", "read_uncommitted"),
            "session": range(3),
            "position": range(12),
            "crc32": (1, 2),
            "role": ("live", "drain"),
            "consumer": ("c0-0", "c1-0", "drain-0"),
        }
        change = dice.choice(sorted(choices))
        row[change] = dice.choice(list(choices[change]))


def test_a_record_with_two_rows_is_no_history(tmp_path: Path) -> None:
    story = Story()
    story.send(0, 0)
    story.send(0, 0)
    with pytest.raises(HistoryError, match=r"two rows for one record 1 times, e.g. for p #0"):
        story.judged(tmp_path)


def test_a_transaction_with_two_outcomes_is_no_history(tmp_path: Path) -> None:
    story = Story()
    story.send(0, 0, transaction="x", transaction_outcome="committed")
    story.send(1, 1, transaction="x", transaction_outcome="aborted")
    with pytest.raises(HistoryError, match=r"1 transactions of two outcomes, e.g. x"):
        story.judged(tmp_path)
