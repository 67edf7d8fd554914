"""KIP-36's oracle gives the KIP's own examples, and each check of a promise fails on an assignment that breaks it."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.kip_36 import promises
from suites.kip_36.oracle import (
    Assignment,
    Origin,
    assign,
    assign_without_racks,
    origin,
    origin_without_racks,
    rack_alternated,
)

# --- the KIP's examples ---------------------------------------------------------------------------------------------

SIX = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
SIX_FIRST_ROUND = {0: (0, 3, 1), 1: (3, 1, 5), 2: (1, 5, 4), 3: (5, 4, 2), 4: (4, 2, 0), 5: (2, 0, 3)}
SIX_SECOND_ROUND = {6: (0, 4, 2), 7: (3, 2, 0), 8: (1, 0, 3), 9: (5, 3, 1), 10: (4, 1, 5), 11: (2, 5, 4)}
THREE = {0: "rack1", 1: "rack2", 2: "rack2"}
THREE_ON_TWO = {0: (0, 1), 1: (1, 0), 2: (2, 0)}


def test_the_rack_alternated_list_is_the_kips() -> None:
    assert rack_alternated(SIX) == (0, 3, 1, 5, 4, 2)
    assert rack_alternated(THREE) == (0, 1, 2)
    # The Javadoc's example: rack1: 0, 1, 2; rack2: 3, 4, 5; rack3: 6, 7, 8.
    nine = {id: f"rack{id // 3 + 1}" for id in range(9)}
    assert rack_alternated(nine) == (0, 3, 6, 1, 4, 7, 2, 5, 8)


def test_six_brokers_on_three_racks_get_what_the_kip_says() -> None:
    assert assign(SIX, 6, 3) == SIX_FIRST_ROUND
    assert assign(SIX, 12, 3) == SIX_FIRST_ROUND | SIX_SECOND_ROUND


def test_three_brokers_on_two_racks_get_what_the_kip_says() -> None:
    assignment = assign(THREE, 3, 2)
    assert assignment == THREE_ON_TWO
    assert Counter(id for ids in assignment.values() for id in ids) == {0: 3, 1: 2, 2: 1}


def test_without_racks_brokers_get_what_the_javadoc_says() -> None:
    """The Javadoc's table of 10 partitions on 5 brokers: rows of first, second and third replicas."""
    assignment = assign_without_racks(range(5), 10, 3)
    assert [assignment[p] for p in range(5)] == [(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1)]
    assert [assignment[p] for p in range(5, 10)] == [(0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2)]


def test_a_skipped_broker_is_wanted_when_every_rack_has_a_replica() -> None:
    assert assign({1: "a", 2: "b", 3: "b"}, 1, 3, Origin(start=1)) == {0: (2, 1, 3)}


def test_there_are_never_more_replicas_than_brokers() -> None:
    with pytest.raises(ValueError, match="4 replicas on 3 brokers"):
        assign(THREE, 1, 4)


# --- the properties -------------------------------------------------------------------------------------------------

some_racks = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8).map(lambda names: dict(enumerate(names, 1)))
even_racks = st.tuples(st.integers(1, 4), st.integers(1, 3)).map(
    lambda shape: {id: f"r{id % shape[0]}" for id in range(shape[0] * shape[1])}
)
places = st.builds(Origin, start=st.integers(0, 7), shift=st.integers(0, 7))


@st.composite
def assignments(draw: st.DrawFn, racks: st.SearchStrategy[dict[int, str]]) -> tuple[dict[int, str], Assignment]:
    """Racks, and the oracle's assignment for a number of partitions and replicas."""
    chosen = draw(racks)
    return chosen, assign(chosen, draw(st.integers(1, 20)), draw(st.integers(1, len(chosen))), draw(places))


@given(assignments(some_racks))
def test_the_oracle_keeps_the_promises(made: tuple[dict[int, str], Assignment]) -> None:
    racks, assignment = made
    replicas = len(assignment[0])
    assert list(promises.well_formed(racks, assignment, len(assignment), replicas)) == []
    assert list(promises.over_racks(racks, assignment)) == []
    assert list(promises.even_leaders(racks, assignment)) == []
    assert list(promises.even_replicas(racks, assignment)) == []


@given(racks=even_racks, rounds=st.integers(1, 3), place=places, data=st.data())
def test_the_oracle_is_even_where_racks_are(
    racks: dict[int, str], rounds: int, place: Origin, data: st.DataObject
) -> None:
    """The KIP's first property; this test counts by itself and does not use the check."""
    replicas = data.draw(st.integers(1, len(racks)))
    assignment = assign(racks, rounds * len(racks), replicas, place)
    assert set(Counter(ids[0] for ids in assignment.values()).values()) == {rounds}
    assert set(Counter(id for ids in assignment.values() for id in ids).values()) == {rounds * replicas}


@given(assignments(some_racks))
def test_an_assignment_of_the_oracle_is_known_for_one(made: tuple[dict[int, str], Assignment]) -> None:
    racks, assignment = made
    found = origin(racks, assignment)
    assert found is not None
    assert assign(racks, len(assignment), len(assignment[0]), found) == assignment


@given(racks=some_racks, place=places, split=st.integers(1, 11), data=st.data())
def test_more_partitions_go_on_where_the_first_ones_ended(
    racks: dict[int, str], place: Origin, split: int, data: st.DataObject
) -> None:
    """An assignment in two steps equals that in one, if the second step goes on with the shift of the first."""
    replicas = data.draw(st.integers(1, len(racks)))
    turns_done = (split - 1) // len(racks)
    later = Origin(start=place.start, shift=place.shift + turns_done)
    whole = dict(assign(racks, 12, replicas, place))
    begun = dict(assign(racks, split, replicas, place))
    assert begun | dict(assign(racks, 12 - split, replicas, later, first=split)) == whole


@given(made=assignments(some_racks), data=st.data())
def test_two_brokers_that_changed_places_are_noticed(
    made: tuple[dict[int, str], Assignment], data: st.DataObject
) -> None:
    """With more partitions than brokers, no other start explains the swapped assignment."""
    racks, assignment = made
    if len(assignment) <= len(racks) or len(assignment[0]) < 2:
        return
    partition = data.draw(st.sampled_from(sorted(assignment)))
    leader, follower, *others = assignment[partition]
    assert origin(racks, {**assignment, partition: (follower, leader, *others)}) is None


@given(brokers=st.permutations(range(6)), place=places, partitions=st.integers(6, 20), replicas=st.integers(1, 6))
def test_an_assignment_without_racks_is_known_for_one(
    brokers: list[int], place: Origin, partitions: int, replicas: int
) -> None:
    assignment = assign_without_racks(brokers, partitions, replicas, place)
    assert origin_without_racks(assignment, 6) is not None


def test_an_assignment_by_racks_is_not_one_without() -> None:
    assert origin_without_racks(assign(SIX, 12, 2), 6) is None
    with pytest.raises(ValueError, match="5 partitions from 0 on"):
        origin_without_racks(assign(SIX, 5, 2), 6)


# --- every promise, broken --------------------------------------------------------------------------------------------

EVEN = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}
UNEVEN = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c"}


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ({0: (1, 2), 2: (2, 3)}, r"partitions \[0, 2\] instead of 0 to 1"),
        ({0: (1, 2), 1: (2, 2)}, r"partition 1 on \[2, 2\]"),
        ({0: (1, 2), 1: (2,)}, r"partition 1 on \[2\] instead of 2"),
        ({0: (1, 2), 1: (2, 7)}, r"partition 1 on \[2, 7\]"),
    ],
)
def test_what_is_not_well_formed_is_reported(assignment: Assignment, says: str) -> None:
    assert_reported(promises.well_formed(EVEN, assignment, 2, 2), says)


@pytest.mark.parametrize(
    ("racks", "ids", "says"),
    [
        (EVEN, (1, 4), r"1 \(a\), 4 \(a\): 1 of 3 racks"),
        (EVEN, (1, 2, 5), "2 of 3 racks"),
        (UNEVEN, (1, 2, 3, 4), "2 of 3 racks"),
    ],
)
def test_a_rack_that_was_left_out_is_reported(racks: dict[int, str], ids: tuple[int, ...], says: str) -> None:
    assert_reported(
        promises.over_racks(racks, {0: (1, 4, 6)[: len(ids)], 1: ids} if racks is UNEVEN else {0: ids}), says
    )


def test_with_fewer_racks_than_replicas_any_number_above_none_will_do() -> None:
    two = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
    assert not list(promises.over_racks(two, {0: (1, 2, 3, 4), 1: (1, 2, 4, 5), 2: (1, 4, 5, 6)}))


def test_a_broker_that_leads_more_is_reported() -> None:
    good = assign(EVEN, 6, 2)
    assert_reported(promises.even_leaders(EVEN, {**good, 0: tuple(reversed(good[0]))}), "one broker leads 2, another 0")
    seven = assign(EVEN, 7, 2)
    assert not list(promises.even_leaders(EVEN, seven))
    by_leader = {ids[0]: partition for partition, ids in seven.items() if partition < 6}
    again = next(id for id in EVEN if id != seven[6][0])
    spoilt = {**seven, by_leader[again]: (seven[6][0], again)}
    assert_reported(promises.even_leaders(EVEN, spoilt), "one broker leads 3, another 0")


def test_a_broker_that_has_more_is_reported_where_racks_are_even() -> None:
    good = assign(EVEN, 6, 2)
    partition, ids = next((p, ids) for p, ids in good.items() if ids[1] in (1, 4))
    spoilt = {**good, partition: (ids[0], 5 - ids[1])}  # the other broker of the same rack
    assert not list(promises.over_racks(EVEN, spoilt))
    assert_reported(promises.even_replicas(EVEN, spoilt), "one broker has 3, another 1")
    assert not list(promises.even_replicas(UNEVEN, assign(UNEVEN, 6, 3)))
    assert set(Counter(id for ids in assign(UNEVEN, 6, 3).values() for id in ids).values()) != {3}


@pytest.mark.parametrize(
    ("racks", "ids"),
    [(EVEN, (1, 4)), (EVEN, (1, 4, 2, 5)), (UNEVEN, (1, 2, 3, 4, 6)), ({1: "a", 2: None, 3: None}, (2, 3))],
)
def test_what_is_not_even_over_racks_is_reported(racks: Mapping[int, str | None], ids: tuple[int, ...]) -> None:
    assert_reported(promises.over_racks_evenly(racks, {0: ids}), "not as even over the racks as they allow")


def test_a_rack_that_has_no_broker_left_may_have_fewer() -> None:
    assert not list(promises.over_racks_evenly(UNEVEN, {0: (1, 2, 4, 5, 6), 1: (1, 2, 3, 4, 5, 6)}))


@pytest.mark.parametrize("leads", ["aabbcc", "abcacb", "abab", "aa"])
def test_racks_that_don_t_lead_in_turn_are_reported(leads: str) -> None:
    first_of = {"a": 1, "b": 2, "c": 3}
    assert_reported(promises.striped(EVEN, {p: (first_of[rack],) for p, rack in enumerate(leads)}), "not each in turn")


@pytest.mark.parametrize(
    "leads",
    [{0: (1,), 1: (2,), 2: (3,), 3: (1,)}, {0: (1, 2), 1: (2, 3), 2: (3, 1)}, dict.fromkeys(range(6), (4, 5, 6))],
    ids=str,
)
def test_brokers_that_don_t_come_in_turn_within_their_rack_are_reported(leads: Assignment) -> None:
    """Each rack's lowest broker gets everything, and a new one nothing, although racks are used evenly."""
    assert_reported(promises.in_turn_within_racks(EVEN, leads), "which is not in turn")


def test_followers_that_are_always_the_same_are_reported() -> None:
    in_turn = [(1, 2), (2, 3), (3, 1)]
    assert_reported(promises.followers_vary(dict(enumerate(in_turn * 2))), "all 2 partitions of broker 1 are followed")
    assert not list(promises.followers_vary(dict(enumerate([*in_turn, (1, 3), (2, 1), (3, 2)]))))
    assert not list(promises.followers_vary(dict(enumerate(in_turn))))


def assert_reported(found: Iterable[str], says: str) -> None:
    sentences = list(found)
    assert any(re.search(says, sentence) for sentence in sentences), sentences


# --- KRaft's placer ---------------------------------------------------------------------------------------------------


class BrokerList:
    """``StripedReplicaPlacer.BrokerList``."""

    def __init__(self, ids: Iterable[int], chance: random.Random) -> None:
        self.ids = sorted(ids)
        self.offset = chance.randrange(len(self.ids))
        self.index = self.epoch = 0

    def next(self, epoch: int) -> int | None:
        if self.epoch != epoch:
            self.epoch, self.index, self.offset = epoch, 0, (self.offset + 1) % len(self.ids)
        if self.index >= len(self.ids):
            return None
        self.index += 1
        return self.ids[(self.index - 1 + self.offset) % len(self.ids)]


def place(racks: Mapping[int, str | None], partitions: int, replicas: int, seed: int) -> Assignment:
    """An assignment by KRaft's algorithm (``StripedReplicaPlacer.RackList.place``), with all brokers unfenced."""
    chance = random.Random(seed)
    names = sorted(set(racks.values()), key=lambda name: name or "")
    lists = {name: BrokerList((id for id in racks if racks[id] == name), chance) for name in names}
    offset, epoch = chance.randrange(len(names)), 0
    assignment: dict[int, tuple[int, ...]] = {}
    for partition in range(partitions):
        if epoch == len(racks) > 1:
            chance.shuffle(names)
            for each in lists.values():
                chance.shuffle(each.ids)
            epoch = 0
        offset %= len(names)

        def rack_by_rack(begin: int = offset, epoch: int = epoch) -> Iterator[int]:
            index = begin
            while True:
                id = lists[names[index]].next(epoch)
                if id is not None:
                    yield id
                index = (index + 1) % len(names)

        chosen = rack_by_rack()
        assignment[partition] = tuple(next(chosen) for _ in range(replicas))
        epoch, offset = epoch + 1, offset + 1
    return assignment


@given(racks=some_racks, partitions=st.integers(1, 20), seed=st.integers(0, 999), data=st.data())
def test_the_striped_placer_keeps_its_own_promises(
    racks: dict[int, str], partitions: int, seed: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(racks)))
    assignment = place(racks, partitions, replicas, seed)
    assert list(promises.well_formed(racks, assignment, partitions, replicas)) == []
    assert list(promises.over_racks(racks, assignment)) == []
    assert list(promises.over_racks_evenly(racks, assignment)) == []
    assert list(promises.in_turn_within_racks(racks, assignment)) == []
    sizes = Counter(racks.values())
    if replicas > 1 or partitions <= len(racks) or min(sizes.values()) > 1 or len(sizes) == 1:
        assert list(promises.striped(racks, assignment)) == []
    if partitions <= len(racks) and (len(sizes) == 1 or max(sizes.values()) == 1):
        assert list(promises.even_leaders(racks, assignment)) == []
        assert list(promises.even_replicas(racks, assignment)) == []


def test_the_striped_placer_passes_over_racks_after_the_first_turn_of_one_replica() -> None:
    """With one broker in each rack, a broker with the same turn in the second round counts as used, and is passed over.

    ``BrokerList.next`` starts over if the epoch differs from that of its last turn, and a shuffle resets the epoch.
    """
    six = {id: str(id) for id in range(6)}
    passed_over = [list(promises.striped(six, place(six, 12, 1, seed))) for seed in range(200)]
    assert 0.5 < sum(map(bool, passed_over)) / 200 < 0.8  # 1 - 1/e for shuffles alone


@pytest.mark.parametrize(("racks", "replicas"), [(EVEN, 2), (UNEVEN, 1), (UNEVEN, 3)], ids=str)
def test_the_striped_placer_never_leads_evenly_where_the_kip_wants_it(racks: dict[int, str], replicas: int) -> None:
    """No seed gives even leaders, so a build with even leaders has another placer."""
    check: Callable[..., Iterator[str]] = promises.even_leaders
    assert all(list(check(racks, place(racks, 6, replicas, seed))) for seed in range(200))
