"""Finds the windows of a large history that are clean, from their lines alone (:mod:`.fingerprints`).

Nothing can be found in a clean window, so it need not be judged. All other windows, and the records that were not acked
at a known place, are the *rest*. The rest is judged as if it were the whole history, together with what the whole
history shows of its partitions (:mod:`.select`).

A window is clean if all of this holds:

1. No record of an indeterminate transaction was acked there, each record has one row in ``produced``, and the topic is
   not compacted.
2. Each consumer that was handed something there was handed exactly the acked records, at the same offsets, with the
   same CRC-32s (by the sums); with read_committed, those that were not aborted. One of these consumers is a drain. All
   offsets differ. Each drain that got into the window was handed something there, if there was something for it. If
   live consumers of one group read on both sides of the window, one of them read in it too.
3. No session of a consumer steps back from a row of the window, or back to one.
4. Each producer's seqs grow with the offsets. No record here is reordered, and no record elsewhere is shown to be
   reordered only by a record here.
5. No row elsewhere has a place or a record of the window.

Why the verdict is the same: by 5, what is found of one record or of one place is found from rows that are all clean or
all in the rest. Nothing is found of a clean record, by 1 and 2. It is there, once, where it was acked, unchanged, and
shown to every consumer that should see it. Nothing more is required of a record of an aborted transaction. What remains
is found from several records or places:

* nonmonotonic_read: a session steps back from one row to the next; both are in the rest. If two rows follow each other
  only in the rest, all steps between them go forward in the whole history, so nothing new is found.
* reordered: a record is reordered if a lower seq has a higher offset. The record and one such lower seq are in the
  rest. Leaving other records out makes no record reordered.
* skipped: a live consumer is expected to show what lies between its first and its last offset in a partition, or
  between two consumers of its group. The windows of all these offsets are in the rest. So are all windows of a consumer
  that read with both isolations, since less is expected of it.
* held_back: one record is enough, if it lies above the point where all read_committed drains stopped, and another drain
  has it. The last window with such a record is in the rest.
* partial_transaction: records are missing, and for an indeterminate transaction others are there; all these are in the
  rest. All rows are checked for transactions of two outcomes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from harness.checkers.columns import Flags, Ints, alike, joint_key, joint_keys, run_bounds
from harness.checkers.drain_extent import Drain, Place, Reach, Stream, handed_to_drains
from harness.checkers.large_history.fingerprints import Columns, joined, length, lines_of
from harness.checkers.large_history.summarise import NO_RUNS, Names, Summary
from harness.checkers.settings import Group, RunSettings


class Windows:
    """All windows of a history. :attr:`rest` marks those that must be judged; each ``mark_`` method adds to it.

    :ivar tp: the partition of each window, as an index into `places`; windows are sorted by it and by `at`
    :ivar at: the window's number in its partition
    :ivar of_ack: the window of each line of `acks`
    :ivar of_read: the window of each line of `reads`
    :param summaries: of all parts of the history, settled; at least one
    """

    def __init__(self, summaries: Sequence[Summary], settings: RunSettings) -> None:
        self._settings = settings
        self.producers, self._streams, self.places = Names[str](), Names[Stream](), Names[Place]()
        gathered: tuple[list[Columns], list[Columns], list[Columns]] = ([], [], [NO_RUNS])
        for summary in summaries:
            tp = self.places.numbers(summary.places.all)
            producers = self.producers.numbers(summary.producers.all)
            streams = self._streams.numbers(summary.streams.all)
            piles = ((summary.acks, producers), (summary.reads, streams), (summary.runs, streams))
            for tables, (pile, who) in zip(gathered, piles, strict=True):
                table = pile.merged()
                tables.append(table | {"who": who[table["who"]], "tp": tp[table["tp"]]})
        self.size = max(summary.window for summary in summaries)
        self.acks, self.reads = (lines_of(joined(tables), self.size) for tables in gathered[:2])
        self._runs = joined(gathered[2])
        self._live = np.array([live for _, live, _ in self._streams.all], np.bool_)
        self._rc = np.array([rc for *_, rc in self._streams.all], np.bool_)

        lines = joined([{name: table[name] for name in ("tp", "window")} for table in (self.acks, self.reads)])
        key = joint_key(lines["tp"], lines["window"])
        _, index, number = np.unique(key, return_index=True, return_inverse=True)
        self.tp, self.at = lines["tp"][index], lines["window"][index]
        self.of_ack, self.of_read = np.split(number, [length(self.acks)])
        self._starts = np.searchsorted(self.tp, np.arange(len(self.places.all) + 1))
        self.rest = np.zeros(len(index), np.bool_)
        self._acked = {
            name: self._sum(self.acks[name]) for name in ("count", "prints", "aborted_count", "aborted_prints")
        }

    def _sum(self, column: Ints) -> Ints:
        """A column of acks, summed by window."""
        result = np.zeros(len(self.rest), column.dtype)
        np.add.at(result, self.of_ack, column)
        return result

    def reaches(self) -> list[Reach]:
        """How far drains got, from the records that they were handed."""
        who, tp, high = (self.reads[name] for name in ("who", "tp", "high"))
        return handed_to_drains(self._streams.all, self.places.all, who, tp, high)

    # Windows that are not clean by their own lines and by those of their consumers.

    def mark_by_lines(self, drains: Mapping[str, Drain]) -> None:
        """Mark every window whose lines do not show that it is clean.

        :param drains: of the whole history
        """
        compacted = np.array([topic in self._settings.compacted for topic, _ in self.places.all], np.bool_)
        self.rest |= compacted[self.tp]
        self.rest[self.of_ack[self.acks["odd"]]] = True
        self.rest[self.of_read[self.reads["odd"]]] = True
        self._mark_unequal()
        self._mark_hidden(drains)
        self._mark_held_back(drains)
        self._mark_spans()
        self._mark_sessions()

    def _mark_unequal(self) -> None:
        """Windows in which a consumer was handed something else than was acked, or no drain was handed all of it."""
        rc, live = self._rc[self.reads["who"]], self._live[self.reads["who"]]
        equal = np.ones(len(rc), np.bool_)
        for name in ("count", "prints"):
            of_all, of_aborted = self._acked[name][self.of_read], self._acked[f"aborted_{name}"][self.of_read]
            equal &= self.reads[name] == np.where(rc, of_all - of_aborted, of_all)
        self.rest[self.of_read[~equal]] = True
        # A line that is not odd has no offset twice. So a consumer that was handed all shows that all offsets differ.
        complete = ~rc | (self._acked["aborted_count"][self.of_read] == 0)
        for needed in (~live, complete):
            found = np.zeros(len(self.rest), np.bool_)
            found[self.of_read[needed]] = True
            self.rest |= ~found

    def _shown(self, rc: bool) -> Ints:
        """How many records of each window a reader of this isolation is shown."""
        return self._acked["count"] - self._acked["aborted_count"] if rc else self._acked["count"]

    def _mark_hidden(self, drains: Mapping[str, Drain]) -> None:
        """Windows that a drain entered and from which it was handed nothing, though they have records for it."""
        for name, drain in drains.items():
            own = np.array([who == name and not live for who, live, _ in self._streams.all], np.bool_)
            handed = np.zeros(len(self.rest), np.bool_)
            handed[self.of_read[own[self.reads["who"]]]] = True
            past = np.array([drain.past.get(place, 0) for place in self.places.all], np.int64)
            shown = self._shown(drain.read_committed)
            self.rest |= ~handed & (shown > 0) & (self.at * self.size < past[self.tp])

    def _mark_held_back(self, drains: Mapping[str, Drain]) -> None:
        """Where all read_committed drains stopped early in a partition: the last window that has more for them."""
        stopped = np.array(
            [
                max((drain.past.get(place, -1) for drain in drains.values() if drain.read_committed), default=-1)
                for place in self.places.all
            ],
            np.int64,
        )
        highest = np.zeros(len(self.rest), np.int64)
        np.maximum.at(highest, self.of_ack, self.acks["high"])
        behind = (stopped[self.tp] >= 0) & (highest >= stopped[self.tp])
        windows = np.flatnonzero(~self.rest & (self._shown(rc=True) > 0) & behind)
        _, last = run_bounds(self.tp[windows])
        self.rest[windows[last]] = True

    def _mark_spans(self) -> None:
        """Live consumers' first and last windows, and the windows between in which their group read nothing."""
        groups: dict[Group, list[tuple[bool, Ints]]] = defaultdict(list)
        for stream, (name, live, rc) in enumerate(self._streams.all):
            if live:
                own = np.sort(self.of_read[self.reads["who"] == stream])
                groups[self._settings.group_of(name)].append((rc, own))
        for members in groups.values():
            handed = np.zeros(len(self.rest), np.bool_)
            for _, own in members:
                handed[own] = True
                first, last = run_bounds(self.tp[own])
                self.rest[own[first]] = self.rest[own[last]] = True
            if len({rc for rc, _ in members}) > 1:
                self.rest |= handed
            by_group = np.flatnonzero(handed)
            first, last = run_bounds(self.tp[by_group])
            for start, end in zip(by_group[first].tolist(), by_group[last].tolist(), strict=True):
                self.rest[start : end + 1] |= ~handed[start : end + 1]

    def _mark_sessions(self) -> None:
        """Both sides of every step back within a session; where the order of rows is not known, all of them."""
        runs = self._runs
        key = joint_key(runs["who"], runs["tp"], runs["session"])
        order = np.lexsort((runs["first_off"], runs["first_position"], key))
        runs, key = {name: column[order] for name, column in runs.items()}, key[order]
        ahead = runs["first_position"][1:] > runs["last_position"][:-1]
        ahead &= runs["first_off"][1:] > runs["last_off"][:-1]
        for session in np.unique(key[1:][alike(key) & ~ahead]):
            own = slice(*np.searchsorted(key, [session, session + 1]))
            self._mark_session({name: column[own] for name, column in runs.items()})

    def _mark_session(self, runs: Columns) -> None:
        """Mark the steps back of one session.

        Runs whose positions overlap are a knot: the order of their rows is not known, so all their windows are marked.

        :param runs: sorted by first position
        """
        own = slice(*self._starts[runs["tp"][0] : runs["tp"][0] + 2])

        def mark(first: int, last: int) -> None:
            low = np.searchsorted(self.at[own], first // self.size)
            high = np.searchsorted(self.at[own], last // self.size, "right")
            self.rest[own.start + low : own.start + high] = True

        first_off, last_off = runs["first_off"].tolist(), runs["last_off"].tolist()
        reached = np.maximum.accumulate(runs["last_position"])
        starts = np.flatnonzero(np.r_[True, runs["first_position"][1:] > reached[:-1]])
        after_knot = False
        for start, end in pairwise([*starts.tolist(), length(runs)]):
            if start and (after_knot or first_off[start] <= last_off[start - 1]):
                mark(last_off[start - 1], last_off[start - 1])
                mark(first_off[start], first_off[start])
            after_knot = end - start > 1
            if after_knot:
                for run in range(start, end):
                    mark(first_off[run], last_off[run])

    # Windows that are not clean because of what is in the rest.

    def mark_seqs(self, producer: str, seqs: Ints) -> None:
        """Mark each clean window that may have one of these records of a producer; `seqs` are sorted."""
        [who] = self.producers.numbers([producer])
        lines = np.flatnonzero(~self.rest[self.of_ack] & (self.acks["who"] == who))
        from_first = np.searchsorted(seqs, self.acks["first"][lines])
        to_last = np.searchsorted(seqs, self.acks["last"][lines], "right")
        self.rest[self.of_ack[lines[from_first < to_last]]] = True

    def mark_reordered(self, producer: Ints, place: Ints, seq: Ints, off: Ints) -> None:
        """Mark each clean window with a reordered record, and for every reordered record a window that shows it.

        The columns have all records of the rest, once for each partition, at their first offsets.

        :param producer: indices into :attr:`producers`
        :param place: indices into :attr:`places`
        """
        clean = np.flatnonzero(~self.rest[self.of_ack])
        who, tp, at = (self.acks[name][clean] for name in ("who", "tp", "window"))
        key, rest_key = joint_keys((who, producer), (tp, place))
        order, rest_at = np.lexsort((at, key)), off // self.size
        clean, key = clean[order], key[order]
        order = np.lexsort((rest_at, rest_key))
        rest_key, rest_at, seq = rest_key[order], rest_at[order], seq[order]
        for each in np.unique(key):
            own = clean[slice(*np.searchsorted(key, [each, each + 1]))]
            of_rest = slice(*np.searchsorted(rest_key, [each, each + 1]))
            lines = {name: self.acks[name][own] for name in ("window", "first", "last")}
            self.rest[self.of_ack[own[_needed_for_order(lines, rest_at[of_rest], seq[of_rest])]]] = True


def _needed_for_order(lines: Columns, rest_at: Ints, rest_seq: Ints) -> Flags:
    """The clean windows of one producer in one partition that :meth:`Windows.mark_reordered` marks.

    A record is reordered if a lower seq lies above it. Within a clean window, seqs grow. So a clean window has a
    reordered record if a window above it, or a record of the rest above it, has a lower seq than its highest.

    :param lines: sorted by window
    :param rest_at: the windows of the records of the rest, sorted
    """
    at, lowest, highest = lines["window"], lines["first"], lines["last"]
    needed = np.zeros(len(at), np.bool_)
    lowest_from = _lowest_from(lowest)
    witnesses = np.flatnonzero(lowest == lowest_from)  # each has the lowest seq of all windows from it on

    above = np.arange(1, len(at) + 1)
    reordered = _with_lower_above(highest, above, lowest_from)
    needed[reordered] = True
    needed[witnesses[np.searchsorted(witnesses, above[reordered])]] = True

    above = np.searchsorted(at, rest_at, "right")
    reordered = _with_lower_above(rest_seq, above, lowest_from)
    needed[witnesses[np.searchsorted(witnesses, above[reordered])]] = True

    above = np.searchsorted(rest_at, at, "right")
    needed[_with_lower_above(highest, above, _lowest_from(rest_seq))] = True
    return needed


def _lowest_from(seqs: Ints) -> Ints:
    """For each index, the lowest seq from there on."""
    return np.minimum.accumulate(seqs[::-1])[::-1]


def _with_lower_above(seqs: Ints, above: Ints, lowest_from: Ints) -> Ints:
    """The indices of those `seqs` that have a lower one above, from where `above` points in `lowest_from`."""
    inside = np.flatnonzero(above < len(lowest_from))
    return inside[lowest_from[above[inside]] < seqs[inside]]
