"""Which windows of a large history are clean, by their lines alone.

What is clean holds nothing that could be found, and needs no judge. All other windows, and the records that were acked
nowhere, are the *rest*: it is judged as if it were the whole history (:mod:`harness.checkers.large_history.select`),
together with what the whole history says of partitions.

Why the verdict is the same. A window is clean if

1. no record of an indeterminate transaction was acked there, one record has one row in ``produced``, and the topic is
   not compacted;
2. each consumer that was handed something there was handed exactly what was acked (if it reads read_committed, what
   was acked and not aborted), record for record, offset for offset, CRC for CRC (the sums); one of them is a drain;
   the offsets are all different; each drain that got into it was handed something there, if there is something for it;
   and where live consumers of one group read on both sides of it, one of them read there too;
3. no consumer's session steps back from or to one of its rows;
4. each producer's seqs grow with the offsets, and no record of it needs a record here to be seen out of order, or the
   other way round;
5. no row elsewhere has a place or a record of it.

By 5, what is found of one record, and of one place, is found from rows that are all clean or all in the rest. Of a
clean record nothing is found, by 1 and 2: it is there, once, where it was acked, as it was sent, and everybody who
should be was shown it; of one of an aborted transaction nothing more is asked. What is found from several records or
places remains:

* A session steps back between neighbours; both are in the rest. Between two of its rows that are neighbours in the
  rest only, it steps forward all the way, so nothing new is found.
* A record is out of order if one earlier seq has a higher offset; it and one such record are in the rest, and
  leaving records out makes none out of order.
* A live consumer may be asked for what lies between its first and its last offset in a partition, and between its
  first and the last one of another of its group: the windows of all these are in the rest. So are all windows of one
  that read with both isolations, and is asked for less.
* A partition in which all read_committed drains stopped early is told by what one other drain has behind that: the
  last window with something of the kind is in the rest.
* A transaction is there in part if a record of it is missing, or of an indeterminate one some; all these are in the
  rest. That it has one outcome is seen for all rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from harness.checkers.drain_extent import Drain, Handed
from harness.checkers.encoded_history import Flags, Ints, joint_key, joint_keys
from harness.checkers.large_history.fingerprints import Columns, alike, joined, length, lines_of
from harness.checkers.large_history.summarise import NO_RUNS, Names, Summary
from harness.checkers.settings import RunSettings


class Windows:
    """All windows of a history: :attr:`rest` is true of those that are not, or not yet known to be, clean.

    A window is named by its number, in the order of :attr:`tp` and :attr:`at`: the window's own number among those of
    its partition, whose name is in :attr:`places`.

    :param summaries: of all parts of the history, settled; at least one
    """

    def __init__(self, summaries: Sequence[Summary], settings: RunSettings) -> None:
        self._settings = settings
        self.producers, self._streams, self.places = Names(), Names(), Names()
        acks: list[Columns] = []
        reads: list[Columns] = []
        runs: list[Columns] = []
        for summary in summaries:
            tp = self.places.numbers(summary.places.all)
            producers = self.producers.numbers(summary.producers.all)
            streams = self._streams.numbers(summary.streams.all)
            for gathered, table, who in (
                (acks, summary.acks.merged(), producers),
                (reads, summary.reads.merged(), streams),
                (runs, summary.runs.merged(), streams),
            ):
                gathered.append(table | {"who": who[table["who"]], "tp": tp[table["tp"]]})
        self.size = max(summary.window for summary in summaries)
        self.acks, self.reads = (lines_of(joined(tables), self.size) for tables in (acks, reads))
        self._runs = joined([dict(NO_RUNS), *runs])
        keys = list(joint_keys(*((self.acks[name], self.reads[name]) for name in ("tp", "window"))))
        _, index, number = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
        both = joined([{name: lines[name] for name in ("tp", "window")} for lines in (self.acks, self.reads)])
        self.tp, self.at = both["tp"][index], both["window"][index]
        self.of_ack, self.of_read = np.split(number, [length(self.acks)])
        self._starts = np.searchsorted(self.tp, np.arange(len(self.places.all) + 1))
        self.rest = np.zeros(len(index), np.bool_)

    def handed(self) -> list[Handed]:
        """How far drains were handed records."""
        return [
            Handed(consumer=name, topic=topic, partition=partition, highest=int(highest), read_committed=rc)
            for stream, (name, live, rc) in enumerate(self._streams.all)
            if not live
            for tp, highest in zip(*self._highest(stream), strict=True)
            for topic, partition in [self.places.all[tp]]
        ]

    def _highest(self, stream: int) -> tuple[Ints, Ints]:
        own = self.reads["who"] == stream
        tps, group = np.unique(self.reads["tp"][own], return_inverse=True)
        highest = np.zeros(len(tps), np.int64)
        np.maximum.at(highest, group, self.reads["high"][own])
        return tps, highest

    # What is not clean by its own rows and by those of its consumers.

    def look(self, drains: Mapping[str, Drain]) -> None:
        """Put every window in the rest of which the lines don't say that it is clean.

        :param drains: of the whole history
        """
        compacted = np.array([topic in self._settings.compacted for topic, _ in self.places.all], np.bool_)
        if compacted.any():
            self.rest |= compacted[self.tp]
        self.rest[self.of_ack[self.acks["odd"]]] = True
        self.rest[self.of_read[self.reads["odd"]]] = True
        self._look_at_reads()
        self._look_at_drains(drains)
        self._look_at_spans()
        self._look_at_runs()

    def _look_at_reads(self) -> None:
        streams = self._streams.all
        rc = np.array([read_committed for _, _, read_committed in streams], np.bool_)[self.reads["who"]]
        live = np.array([is_live for _, is_live, _ in streams], np.bool_)[self.reads["who"]]
        acked = {name: self._summed(self.acks[name]) for name in self.acks if name.endswith(("count", "prints"))}
        equal = np.ones(len(rc), np.bool_)
        for name in ("count", "prints"):
            of_all, committed = acked[name], acked[name] - acked[f"aborted_{name}"]
            equal &= self.reads[name] == np.where(rc, committed[self.of_read], of_all[self.of_read])
        self.rest[self.of_read[~equal]] = True
        # No line of a clean window is odd, so none has an offset twice: one of all that was acked shows that no two
        # records were acked at one offset.
        complete = ~rc | (acked["aborted_count"][self.of_read] == 0)
        for needed in (~live, complete):
            found = np.zeros(len(self.rest), np.bool_)
            found[self.of_read[needed]] = True
            self.rest |= ~found

    def _summed(self, column: Ints) -> Ints:
        """A column of acks, summed by window."""
        result = np.zeros(len(self.rest), column.dtype)
        np.add.at(result, self.of_ack, column)
        return result

    def _look_at_drains(self, drains: Mapping[str, Drain]) -> None:
        """Windows that a drain got into and was handed nothing of; and of a partition in which all read_committed
        drains stopped early, the last one that has something for them.
        """
        in_all = self._summed(self.acks["count"])
        committed = in_all - self._summed(self.acks["aborted_count"])
        stopped = np.full(len(self.places.all), -1)
        for name, drain in drains.items():
            handed = np.zeros(len(self.rest), np.bool_)
            past = np.zeros(len(self.places.all), np.int64)
            for stream, (who, live, _) in enumerate(self._streams.all):
                if who == name and not live:
                    handed[self.of_read[self.reads["who"] == stream]] = True
            for tp, place in enumerate(self.places.all):
                past[tp] = drain.past.get(place, 0)
                if drain.read_committed and place in drain.past:
                    stopped[tp] = max(stopped[tp], past[tp])
            shown = committed if drain.read_committed else in_all
            self.rest |= ~handed & (shown > 0) & (self.at * self.size < past[self.tp])
        highest = np.zeros(len(self.rest), np.int64)
        np.maximum.at(highest, self.of_ack, self.acks["high"])
        behind = ~self.rest & (committed > 0) & (stopped[self.tp] >= 0) & (highest >= stopped[self.tp])
        last = np.flatnonzero(behind)[::-1]
        _, first_of = np.unique(self.tp[last], return_index=True)
        self.rest[last[first_of]] = True

    def _look_at_spans(self) -> None:
        """Live consumers' first and last windows, and those that their group passed over."""
        groups: dict[tuple[bool, str], list[tuple[bool, Ints]]] = defaultdict(list)
        for stream, (name, live, rc) in enumerate(self._streams.all):
            if live:
                group = self._settings.groups.get(name)
                own = np.sort(self.of_read[self.reads["who"] == stream])
                groups[group is None, name if group is None else group].append((rc, own))
        for members in groups.values():
            handed = np.zeros(len(self.rest), np.bool_)
            for _, own in members:
                handed[own] = True
            if len({rc for rc, _ in members}) > 1:
                self.rest |= handed
            for _, own in members:
                starts, ends = self._ends(own)
                self.rest[own[starts]] = self.rest[own[ends]] = True
            by_group = np.flatnonzero(handed)
            starts, ends = self._ends(by_group)
            for first, last in zip(by_group[starts].tolist(), by_group[ends].tolist(), strict=True):
                self.rest[first : last + 1] |= ~handed[first : last + 1]

    def _ends(self, windows: Ints) -> tuple[Ints, Ints]:
        """Of some windows, in order, the first and the last one of each partition."""
        starts = np.flatnonzero(np.r_[True, ~alike(self.tp[windows])][: len(windows)])
        return starts, np.r_[starts[1:], len(windows)][: len(starts)] - 1

    def _look_at_runs(self) -> None:
        """Both sides of every step back of a session; where the order of rows isn't known, all of them."""
        runs = self._runs
        if not length(runs):
            return
        key = joint_key(runs["who"], runs["tp"], runs["session"])
        order = np.lexsort((runs["first_off"], runs["first_position"], key))
        runs, key = {name: column[order] for name, column in runs.items()}, key[order]
        later = runs["first_position"][1:] > runs["last_position"][:-1]
        ahead = later & (runs["first_off"][1:] > runs["last_off"][:-1])
        for trouble in np.unique(key[1:][alike(key) & ~ahead]):
            own = slice(*np.searchsorted(key, [trouble, trouble + 1]))
            self._untangle({name: column[own] for name, column in runs.items()})

    def _untangle(self, runs: Columns) -> None:
        """One session's runs, in the order of their first positions."""
        # Runs that lie across each other, by positions, are one cluster.
        reached = np.maximum.accumulate(runs["last_position"])
        starts = np.flatnonzero(np.r_[True, runs["first_position"][1:] > reached[:-1]]).tolist()
        tangled = False
        for first, end in zip(starts, [*starts[1:], length(runs)], strict=True):
            if first and (tangled or runs["first_off"][first] <= runs["last_off"][first - 1]):
                self._put(runs, first - 1, "last_off", "last_off")
                self._put(runs, first, "first_off", "first_off")
            tangled = end - first > 1
            for run in range(first, end) if tangled else ():
                self._put(runs, run, "first_off", "last_off")

    def _put(self, runs: Columns, run: int, first: str, last: str) -> None:
        own = slice(*self._starts[runs["tp"][run] : runs["tp"][run] + 2])
        at = [runs[first][run] // self.size, runs[last][run] // self.size]
        low, high = np.searchsorted(self.at[own], at[0]), np.searchsorted(self.at[own], at[1], "right")
        self.rest[own.start + low : own.start + high] = True

    # What is not clean by what the rest says.

    def close(self, producer: str, seqs: Ints) -> None:
        """Put in the rest each clean window that may have one of these records of a producer; `seqs` are in order."""
        [who] = self.producers.numbers([producer])
        lines = np.flatnonzero(~self.rest[self.of_ack] & (self.acks["who"] == who))
        inside = np.searchsorted(seqs, self.acks["last"][lines], "right") > np.searchsorted(
            seqs, self.acks["first"][lines]
        )
        self.rest[self.of_ack[lines[inside]]] = True

    def order(self, producer: Ints, place: Ints, seq: Ints, off: Ints) -> None:
        """Put in the rest each clean window with a record out of order, and one with a witness for every such record.

        The columns are all records that are in the rest so far, once for each partition, with their first offsets;
        producer and place are places in :attr:`producers` and :attr:`places`.
        """
        clean = np.flatnonzero(~self.rest[self.of_ack])
        key = _pair(self.acks["who"][clean], self.acks["tp"][clean])
        clean = clean[np.lexsort((self.acks["window"][clean], key))]
        key = _pair(self.acks["who"][clean], self.acks["tp"][clean])
        rest_key, rest_at = _pair(producer, place), off // self.size
        order = np.lexsort((rest_at, rest_key))
        rest_key, rest_at, seq = rest_key[order], rest_at[order], seq[order]
        found = []
        for each in np.unique(key):
            own = clean[slice(*np.searchsorted(key, [each, each + 1]))]
            of_rest = slice(*np.searchsorted(rest_key, [each, each + 1]))
            lines = {name: self.acks[name][own] for name in ("window", "first", "last")}
            found.append(own[_out_of_order(lines, rest_at[of_rest], seq[of_rest])])
        for lines_found in found:
            self.rest[self.of_ack[lines_found]] = True


def _out_of_order(lines: Columns, rest_at: Ints, rest_seq: Ints) -> Flags:
    """Of one producer's clean windows in one partition, in order, those that :meth:`Windows.order` is to find.

    `rest_at` and `rest_seq` are the windows and seqs of the records in the rest, in order of the windows.
    """
    at, lowest, highest = lines["window"], lines["first"], lines["last"]
    needed = np.zeros(len(at), np.bool_)
    # By window, the lowest seq from there on upwards, and the windows that have it.
    upwards = np.minimum.accumulate(lowest[::-1])[::-1]
    holders = np.flatnonzero(lowest == upwards)

    def later_lower(seqs: Ints, following: Ints) -> Ints:
        """Which of `seqs` have a lower one in the clean windows from `following` on; a witness for each is needed."""
        inside = np.flatnonzero(following < len(at))
        inside = inside[upwards[following[inside]] < seqs[inside]]
        needed[holders[np.searchsorted(holders, following[inside])]] = True
        return inside

    needed[later_lower(highest, np.arange(1, len(at) + 1))] = True
    later_lower(rest_seq, np.searchsorted(at, rest_at, "right"))
    if len(rest_seq):
        rest_upwards = np.minimum.accumulate(rest_seq[::-1])[::-1]
        following = np.searchsorted(rest_at, at, "right")
        inside = np.flatnonzero(following < len(rest_seq))
        needed[inside[rest_upwards[following[inside]] < highest[inside]]] = True
    return needed


def _pair(one: Ints, two: Ints) -> Ints:
    return (one << 32) | two
