"""A second implementation of the judge, in plain Python over lists of dicts; tests compare the judge with it.

Both follow the contract's table of kinds, and share no code. This one is slow: every kind reads all rows again. It is
meant for histories of some dozen rows. Where the contract is not precise, it follows the docstrings of
``harness/checkers``.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

Row = dict[str, Any]


class Reference:
    """Judges one history; :meth:`kinds` gives kind -> count, :meth:`verdict` the word."""

    def __init__(self, produced: list[Row], consumed: list[Row], drained: list[Row] | None, run: Row) -> None:
        self.sent = {(row["producer"], row["seq"]): row for row in produced}
        assert len(self.sent) == len(produced)
        self.reads = consumed
        self.drained = drained or []
        self.run = run
        self.unsure: set[str] = set()  # transactions of which all that is missing lies beyond what was drained
        self.sure: set[str] = set()

    # Kinds of rows.

    def record(self, read: Row) -> Row | None:
        return self.sent.get((read["producer"], read["seq"]))

    def name(self, row: Row) -> Any:
        if row["producer"] is None or row["seq"] is None:
            return (row["producer"], row["seq"], row["crc32"])
        return (row["producer"], row["seq"])

    def reads_of(self, row: Row) -> list[Row]:
        return [read for read in self.reads if self.record(read) is row]

    def drains_of(self, row: Row, isolation: str | None = None) -> list[Row]:
        return [
            read for read in self.reads_of(row) if read["role"] == "drain" and isolation in (None, read["isolation"])
        ]

    @staticmethod
    def place(row: Row) -> tuple[str, int, int]:
        return (row["topic"], row["partition"], row["offset"])

    @staticmethod
    def ack(row: Row) -> tuple[str, int, int] | None:
        known = row["outcome"] == "acked" and row["partition"] is not None and row["offset"] is not None
        return (row["topic"], row["partition"], row["offset"]) if known else None

    @staticmethod
    def written(row: Row) -> bool:
        return row["outcome"] == "acked" and row["transaction_outcome"] in (None, "committed")

    # How far the drains got.

    def past(self, topic: str, partition: int, offset: int, isolation: str | None = None) -> bool:
        if self.ended(topic, partition, isolation):
            return True
        positions = [
            row["position"]
            for row in self.drained
            if (row["topic"], row["partition"]) == (topic, partition) and isolation in (None, row["isolation"])
        ]
        positions += [
            read["offset"] + 1
            for read in self.reads
            if read["role"] == "drain"
            and (read["topic"], read["partition"]) == (topic, partition)
            and isolation in (None, read["isolation"])
        ]
        return any(position > offset for position in positions)

    def ended(self, topic: str, partition: int, isolation: str | None = None) -> bool:
        return any(
            row["position"] >= row["end_offset"]
            for row in self.drained
            if (row["topic"], row["partition"]) == (topic, partition) and isolation in (None, row["isolation"])
        )

    def partitions_of(self, topic: str) -> set[int]:
        rows = [*self.sent.values(), *self.reads, *self.drained]
        return {row["partition"] for row in rows if row["topic"] == topic and row["partition"] is not None}

    def drained_past(self, row: Row, at: tuple[str, int, int] | None, isolation: str | None = None) -> bool:
        if at is not None:
            return self.past(*at, isolation)
        topic = row["topic"]
        if topic in self.run.get("compacted", []) and row["key"] is not None:
            return False
        partitions = self.partitions_of(topic) if row["partition"] is None else {row["partition"]}
        deleted = self.run.get("deleted_below", {}).get(topic, {})
        if any(below > 0 for number, below in deleted.items() if row["partition"] in (None, int(number))):
            return False
        return bool(partitions) and all(self.ended(topic, partition, isolation) for partition in partitions)

    # Deletions and other steps of the scenario.

    def deleted(self, at: tuple[str, int, int] | None) -> bool:
        if at is None:
            return False
        below = self.run.get("deleted_below", {}).get(at[0], {}).get(str(at[1]))
        return below is not None and at[2] < below

    def replaced(self, row: Row, at: tuple[str, int, int] | None) -> bool:
        if at is None or row["key"] is None or at[0] not in self.run.get("compacted", []) or row["topic"] != at[0]:
            return False
        for other in self.sent.values():
            if other is row or (other["topic"], other["key"]) != (row["topic"], row["key"]):
                continue
            places = [self.place(read) for read in self.drains_of(other)]
            ack = self.ack(other)
            if self.written(other) and ack is not None:
                places.append(ack)
            if any(place[:2] == at[:2] and place[2] > at[2] for place in places):
                return True
        return False

    def excused(self, row: Row, at: tuple[str, int, int] | None) -> bool:
        return self.deleted(at) or self.replaced(row, at)

    # The kinds.

    def kinds(self) -> dict[str, int]:
        found = {
            "lost": len(self.lost()),
            "undrained": len(self.undrained()),
            "vanished": self.vanished(),
            "duplicated": sum(self.copies(row) > 1 and not self.resent(row) for row in self.sent.values()),
            "resent": sum(self.copies(row) > 1 and self.resent(row) for row in self.sent.values()),
            "corrupted": sum(
                any(read["crc32"] != row["crc32"] for read in self.reads_of(row)) for row in self.sent.values()
            ),
            "misplaced": sum(
                self.ack(row) is not None
                and bool(self.reads_of(row))
                and self.ack(row) not in {self.place(read) for read in self.reads_of(row)}
                for row in self.sent.values()
            ),
            "failed_but_present": sum(
                row["outcome"] == "failed" and bool(self.reads_of(row)) for row in self.sent.values()
            ),
            "reordered": self.reordered(),
            "phantom": self.phantom(),
            "conflicting_offset": self.conflicting(),
            "skipped": self.skipped(),
            "hidden": self.hidden(),
            "held_back": self.held_back(),
            "nonmonotonic_read": self.nonmonotonic(),
            "redelivered": self.redelivered(),
            "aborted_read": sum(
                (row := self.record(read)) is not None
                and read["isolation"] == "read_committed"
                and (row["transaction_outcome"] == "aborted" or self.is_of_no_commit(read, row))
                for read in self.reads
            ),
            "partial_transaction": self.partial(),
        }
        return {kind: count for kind, count in found.items() if count}

    def copies(self, row: Row) -> int:
        return len({self.place(read) for read in self.reads_of(row)})

    def resent(self, row: Row) -> bool:
        """Each copy is of a higher epoch of one idempotent producer than the one before; nothing else is odd of it."""
        if row["transaction"] is not None:
            return False
        stored = self.run.get("producer_sessions", {})
        before: tuple[int, int] | None = None
        places = sorted({self.place(read) for read in self.reads_of(row)})
        for topic, partition, offset in places:
            of = [s for s in stored.get(topic, {}).get(str(partition), []) if s[0] <= offset <= s[1]]
            if not of or (before is not None and not (before[0] == of[0][2] and before[1] < of[0][3])):
                return False
            before = (of[0][2], of[0][3])
        return (
            len({place[:2] for place in places}) == 1
            and {self.place(drain) for drain in self.drains_of(row)} == set(places)
            and self.ack(row) in (None, places[-1])
        )

    def is_of_no_commit(self, read: Row, row: Row) -> bool:
        """Of an indeterminate transaction of which read_committed drains show that it was aborted."""
        isolations = {drain["isolation"] for drain in self.drains_of(row)}
        return (
            (row["transaction_outcome"], read["role"], isolations) == ("indeterminate", "live", {"read_uncommitted"})
            and self.past(*self.place(read), "read_committed")
            and not self.excused(row, self.place(read))
        )

    def verdict(self) -> str:
        kinds = set(self.kinds())
        bad = kinds - {"redelivered", "resent", "undrained", "held_back"}
        if self.run.get("allow_duplicates"):
            bad.discard("duplicated")
        if self.run.get("allow_reordering"):
            bad.discard("reordered")
        if "partial_transaction" in bad and not self.sure:
            bad.discard("partial_transaction")
        if bad:
            return "invalid"
        acked = any(row["outcome"] == "acked" for row in self.sent.values())
        return "unknown" if self.unsure or kinds & {"undrained", "held_back"} or not acked else "valid"

    def missing(self, row: Row) -> bool:
        return self.written(row) and not self.drains_of(row) and not self.excused(row, self.somewhere(row))

    def somewhere(self, row: Row) -> tuple[str, int, int] | None:
        """Where the record lies: where it was acked, else where it was read (the first such place)."""
        return self.ack(row) or min((self.place(read) for read in self.reads_of(row)), default=None)

    def lost(self) -> list[Row]:
        return [r for r in self.sent.values() if self.missing(r) and self.drained_past(r, self.somewhere(r))]

    def undrained(self) -> list[Row]:
        return [r for r in self.sent.values() if self.missing(r) and not self.drained_past(r, self.somewhere(r))]

    def vanished(self) -> int:
        count = 0
        for row in self.sent.values():
            live = [read for read in self.reads_of(row) if read["role"] == "live"]
            if self.drains_of(row) or row["transaction_outcome"] == "aborted":
                continue
            if row["transaction_outcome"] == "indeterminate" and not any(
                read["isolation"] == "read_committed" for read in live
            ):
                continue
            count += any(self.past(*self.place(read)) and not self.excused(row, self.place(read)) for read in live)
        return count

    def reordered(self) -> int:
        late = set()
        places: dict[Any, dict[int, int]] = defaultdict(dict)
        for row in self.sent.values():
            at = [self.place(read) for read in self.reads_of(row) if read["topic"] == row["topic"]]
            ack = self.ack(row)
            for topic, partition, offset in [*at, *([ack] if ack else [])]:
                firsts = places[row["producer"], topic, partition]
                firsts[row["seq"]] = min(offset, firsts.get(row["seq"], offset))
        for (producer, _, _), firsts in places.items():
            for seq, offset in firsts.items():
                if any(earlier < seq and other > offset for earlier, other in firsts.items()):
                    late.add((producer, seq))
        return len(late)

    def phantom(self) -> int:
        return len({self.place(read) for read in self.reads if self.no_producer_sent_it_there(read)})

    def no_producer_sent_it_there(self, read: Row) -> bool:
        row = self.record(read)
        if row is None or row["topic"] != read["topic"]:
            return True
        return self.ack(row) is None and row["partition"] not in (None, read["partition"])

    def conflicting(self) -> int:
        names = defaultdict(set)
        for row in self.sent.values():
            ack = self.ack(row)
            if ack is not None:
                names[ack].add(self.name(row))
        for read in self.reads:
            names[self.place(read)].add(self.name(read))
        return sum(len(who) > 1 for who in names.values())

    def skipped(self) -> int:
        groups = self.run.get("groups", {})
        live = sorted({read["consumer"] for read in self.reads if read["role"] == "live"})
        count = 0
        for consumer in live:
            friends = {c for c in live if c == consumer or (c in groups and groups[c] == groups.get(consumer))}
            own = [read for read in self.reads if read["consumer"] == consumer and read["role"] == "live"]
            committed = any(read["isolation"] == "read_committed" for read in own)
            handed = {self.place(read) for read in self.reads if read["role"] == "live" and read["consumer"] in friends}
            for topic, partition in {(read["topic"], read["partition"]) for read in own}:
                offsets = [r["offset"] for r in own if (r["topic"], r["partition"]) == (topic, partition)]
                wanted = set()
                for read in self.reads:
                    if read["role"] != "drain" or (read["topic"], read["partition"]) != (topic, partition):
                        continue
                    if not min(offsets) < read["offset"] < max(offsets) or self.deleted(self.place(read)):
                        continue
                    if not committed or self.shown_to_all(read):
                        wanted.add(self.place(read))
                count += len(wanted - handed)
        return count + self.skipped_from_hand_to_hand()

    def skipped_from_hand_to_hand(self) -> int:
        """Between what two of a group were handed, in no member's own span, handed to none of it."""
        count = 0
        groups = self.run.get("groups", {})
        for group in set(groups.values()):
            reads = [r for r in self.reads if r["role"] == "live" and groups.get(r["consumer"]) == group]
            committed = any(read["isolation"] == "read_committed" for read in reads)
            for topic, partition in {(read["topic"], read["partition"]) for read in reads}:
                spans = defaultdict(list)
                for read in reads:
                    if (read["topic"], read["partition"]) == (topic, partition):
                        spans[read["consumer"]].append(read["offset"])
                low, high = min(map(min, spans.values())), max(map(max, spans.values()))
                count += len(
                    {
                        read["offset"]
                        for read in self.reads
                        if read["role"] == "drain"
                        and (read["topic"], read["partition"]) == (topic, partition)
                        and low < read["offset"] < high
                        and not any(min(own) <= read["offset"] <= max(own) for own in spans.values())
                        and not self.deleted(self.place(read))
                        and (not committed or self.shown_to_all(read))
                    }
                )
        return count

    def drains(self) -> dict[str, tuple[bool, dict[tuple[str, int], int]]]:
        """By drain: whether it ever read read_committed, and by partition how far it got."""
        found: dict[str, tuple[bool, dict[tuple[str, int], int]]] = {}
        reads = [(read, read["offset"] + 1) for read in self.reads if read["role"] == "drain"]
        for row, position in [*reads, *((row, row["position"]) for row in self.drained)]:
            committed, past = found.get(row["consumer"], (False, {}))
            place = (row["topic"], row["partition"])
            past[place] = max(position, past.get(place, position))
            found[row["consumer"]] = (committed or row["isolation"] == "read_committed", past)
        return found

    def hidden(self) -> int:
        count = 0
        for name, (committed, past) in self.drains().items():
            handed = {self.place(read) for read in self.reads if read["role"] == "drain" and read["consumer"] == name}
            wanted = set()
            for read in self.reads:
                at = self.place(read)
                if read["role"] != "drain" or at[2] >= past.get(at[:2], 0) or self.deleted(at):
                    continue
                if at[0] in self.run.get("compacted", []):
                    row = self.record(read)
                    if row is None or self.replaced(row, at):
                        continue
                if not committed or self.shown_to_all(read):
                    wanted.add(at)
            count += len(wanted - handed)
        return count

    def held_back(self) -> int:
        stopped: dict[tuple[str, int], int] = {}
        for committed, past in self.drains().values():
            for place, position in past.items() if committed else ():
                stopped[place] = max(position, stopped.get(place, 0))
        behind = set()
        for read in self.reads:
            row, at = self.record(read), self.place(read)
            if read["role"] == "drain" and row is not None and self.written(row) and not self.deleted(at):
                behind |= {at[:2]} if at[:2] in stopped and at[2] >= stopped[at[:2]] else set()
        return len(behind)

    def shown_to_all(self, read: Row) -> bool:
        row = self.record(read)
        if row is None or row["transaction_outcome"] in (None, "committed"):
            return True
        return row["transaction_outcome"] == "indeterminate" and bool(self.drains_of(row, "read_committed"))

    def by_session(self) -> dict[Any, list[Row]]:
        sessions = defaultdict(list)
        for read in self.reads:
            sessions[read["consumer"], read["role"], read["topic"], read["partition"], read["session"]].append(read)
        return sessions

    def nonmonotonic(self) -> int:
        count = 0
        for reads in self.by_session().values():
            ordered = sorted(reads, key=lambda read: (read["position"], read["offset"]))
            for before, after in pairwise(ordered):
                count += after["offset"] <= before["offset"]
        return count

    def redelivered(self) -> int:
        count = 0
        for read in self.reads:
            if read["role"] == "live":
                count += any(
                    other["role"] == "live"
                    and other["consumer"] == read["consumer"]
                    and self.place(other) == self.place(read)
                    and other["session"] < read["session"]
                    for other in self.reads
                )
        return count

    def partial(self) -> int:
        transactions = defaultdict(list)
        for row in self.sent.values():
            if row["transaction"] is not None:
                transactions[row["transaction"]].append(row)
        for name, rows in transactions.items():
            outcome = rows[0]["transaction_outcome"]
            if outcome == "committed":
                gone = [row for row in rows if self.missing(row)]
                seen = [self.drained_past(row, self.somewhere(row)) for row in gone]
            elif outcome == "indeterminate":
                members = [row for row in rows if row["outcome"] != "failed"]
                absent = [row for row in members if not self.drains_of(row, "read_committed")]
                if len(absent) == len(members):
                    continue
                gone = [row for row in absent if not self.excused(row, self.somewhere(row))]
                seen = [self.drained_past(row, self.somewhere(row), "read_committed") for row in gone]
            else:
                continue
            if gone:
                (self.sure if any(seen) else self.unsure).add(name)
        return len(self.sure | self.unsure)
