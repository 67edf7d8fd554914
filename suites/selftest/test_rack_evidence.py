"""KIP-36's suite judges assignments: a broken promise fails, a known deviation must show, nothing tried is no pass."""

from __future__ import annotations

import itertools
import re
from unittest.mock import Mock

import pytest

from harness import timeouts
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.errors import Inconclusive, PromiseBroken
from harness.events import DeviationEvent
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.metadata import ClusterState, PartitionState
from harness.kafka.versions import KafkaVersion, Mode
from harness.runner.deviation import Deviation, Expectation
from harness.workload.pair import Pair
from suites.deviations import (
    AUTOMATIC_BY_RACKS,
    AUTOMATIC_REFUSED,
    GENERATED_IN_STRIPES,
    LEADERS_OVER_RACKS,
    RACKS_PASSED_OVER,
)
from suites.kip_36 import test_rack_fails, test_racks
from suites.kip_36.evidence import Evidence, check_generated, check_kip, check_striped
from suites.kip_36.layouts import shapes
from suites.kip_36.oracle import Origin, assign, assign_without_racks
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import fake, fake_broker, fake_cluster, fake_node, topic_of
from suites.selftest.test_racks import EVEN, place


def evidence(version: str, mode: Mode, *known: Deviation) -> Evidence:
    return Evidence(fake_cluster(version, mode), known)


ZK, KRAFT = ("3.9.2", Mode.ZK), ("4.3.1", Mode.KRAFT)


def test_where_nothing_was_tried_nothing_is_shown() -> None:
    with pytest.raises(Inconclusive, match=r"too little was tried .*'topics': 0.*at least \{'topics': 1\}"):
        evidence(*ZK).conclude({"topics": 1})
    some = evidence(*ZK)
    some.tried("topics")
    some.conclude({"topics": 1})


def test_an_expected_deviation_that_was_not_checked_for_is_not_taken_for_shown() -> None:
    with pytest.raises(PromiseBroken, match="no longer deviates: the topics are not created"):
        evidence(*ZK, AUTOMATIC_REFUSED).conclude({})


def test_a_deviation_that_is_not_expected_is_a_broken_promise() -> None:
    with pytest.raises(PromiseBroken, match="automatic: it was refused"):
        evidence(*KRAFT, AUTOMATIC_REFUSED).deviates(AUTOMATIC_REFUSED, "automatic", ["it was refused"])


def test_an_expected_deviation_that_no_longer_shows_is_reported() -> None:
    seen = evidence(*ZK, AUTOMATIC_REFUSED)
    seen.deviates(AUTOMATIC_REFUSED, "automatic", [])
    with pytest.raises(PromiseBroken, match="no longer deviates: the topics are not created"):
        seen.conclude({})
    seen.deviates(AUTOMATIC_REFUSED, "automatic", ["it was refused"])
    seen.conclude({})


def test_deviations_are_of_their_modes_and_builds() -> None:
    for deviation, build, mode, expected in (
        (AUTOMATIC_REFUSED, *ZK, Expectation.CONFIRMED),
        (AUTOMATIC_REFUSED, "3.9.2", Mode.KRAFT, Expectation.NONE),
        (GENERATED_IN_STRIPES, "4.0.1", Mode.KRAFT, Expectation.NONE),
    ):
        assert deviation.expectation(KafkaVersion.parse(build), mode) is expected


def test_on_a_newer_build_a_deviation_is_seen_or_mended_if_it_was_looked_for() -> None:
    for broken, noted in (
        (["it was refused"], [("deviation.seen", "automatic: it was refused")]),
        ([], [("deviation.mended", "nothing of it")]),
        (None, []),
    ):
        newer = evidence("3.9.3", Mode.ZK, AUTOMATIC_REFUSED)
        if broken is not None:
            newer.deviates(AUTOMATIC_REFUSED, "automatic", broken)
        newer.conclude({})
        events = newer._cluster.journal.events
        assert [(event.kind, event.seen) for event in events if isinstance(event, DeviationEvent)] == noted


def test_the_kips_assignment_passes_and_the_striped_one_does_not() -> None:
    check_kip(evidence(*ZK), EVEN, "t", assign(EVEN, 12, 3))
    with pytest.raises(PromiseBroken, match=r"t: KIP-36 gives .* for no start and shift"):
        check_kip(evidence(*ZK), EVEN, "t", place(EVEN, 12, 3, seed=1))


def test_the_striped_assignment_passes_and_shows_what_it_is_known_for() -> None:
    seen = evidence(*KRAFT, LEADERS_OVER_RACKS)
    check_striped(seen, EVEN, "t", place(EVEN, 6, 2, seed=1))
    seen.conclude({})
    even = evidence(*KRAFT, LEADERS_OVER_RACKS)
    check_striped(even, EVEN, "t", place(EVEN, 6, 3, seed=1))
    with pytest.raises(PromiseBroken, match="no longer deviates: KRaft's placer spreads leaders evenly over racks"):
        even.conclude({})


def test_an_assignment_whose_racks_don_t_take_turns_is_not_striped() -> None:
    spoilt = {**place(EVEN, 6, 3, seed=1), 1: place(EVEN, 6, 3, seed=1)[0]}
    with pytest.raises(PromiseBroken, match=r"not (each )?in turn"):
        check_striped(evidence(*KRAFT, LEADERS_OVER_RACKS), EVEN, "t", spoilt)


def test_uneven_leaders_of_two_whole_rounds_in_one_rack_are_seen() -> None:
    one = dict.fromkeys(range(1, 7), "a")
    check_striped(evidence(*KRAFT), one, "t", place(one, 12, 3, seed=1))
    spoilt = place(one, 6, 3, seed=1)
    twice = {**spoilt, **{index + 6: spoilt[0] for index in range(6)}}
    with pytest.raises(PromiseBroken, match=r"one broker leads 7, another 1|not in turn"):
        check_striped(evidence(*KRAFT), one, "t", twice)


def test_racks_that_are_passed_over_show_among_a_dozen_topics() -> None:
    six, seen = {id: str(id) for id in range(1, 7)}, evidence(*KRAFT, RACKS_PASSED_OVER)
    for seed in range(12):
        check_striped(seen, six, "t", place(six, 12, 1, seed))
    seen.conclude({})


@pytest.mark.parametrize(("version", "striped"), [("4.0.1", False), ("4.1.0", True)])
def test_proposals_are_the_kips_up_to_4_0(version: str, striped: bool) -> None:
    seen = evidence(version, Mode.KRAFT, GENERATED_IN_STRIPES, LEADERS_OVER_RACKS)
    right, wrong = assign(EVEN, 6, 3), place(EVEN, 6, 3, seed=1)
    check_generated(seen, EVEN, "t", wrong if striped else right)
    if striped:
        assert LEADERS_OVER_RACKS.expectation(KafkaVersion.parse("3.6.2"), Mode.KRAFT) is Expectation.NONE
    else:
        with pytest.raises(PromiseBroken, match="for no start and shift"):
            check_generated(seen, EVEN, "t", wrong)


def test_a_build_that_proposes_as_the_kip_says_again_is_reported() -> None:
    """Its proposals are those of the KIP, although it is known to use KRaft's placer."""
    seen = evidence("4.3.1", Mode.KRAFT, GENERATED_IN_STRIPES)
    check_generated(seen, EVEN, "t", assign(EVEN, 6, 3))
    with pytest.raises(PromiseBroken, match="no longer deviates: --generate uses KRaft's placer"):
        seen.conclude({})


def test_shapes_have_every_number_of_replicas_and_more_rounds_than_one() -> None:
    six = shapes(6)
    assert {replicas for partitions, replicas in six if partitions == 6} == {1, 2, 3, 4, 5, 6}
    assert {(12, 1), (12, 3), (7, 4)} <= set(six)
    assert all(replicas <= 2 for _, replicas in shapes(2))
    assert {(1, 3), (5, 2)} <= set(six)


# --- registrations ----------------------------------------------------------------------------------------------------

WITH, WITHOUT = {"version": 5, "rack": "a"}, {"version": 5}


@pytest.mark.parametrize(
    ("znodes", "says"),
    [
        ({1: WITH, 2: WITHOUT}, None),
        ({1: WITH | {"rack": "b"}, 2: WITHOUT}, "registered with the racks {1: 'b', 2: None}"),
        ({1: WITHOUT, 2: WITHOUT}, "registered with the racks {1: None, 2: None}"),
        ({1: WITH | {"version": 2}, 2: WITHOUT}, "'version': 2"),
        ({1: WITH, 2: WITHOUT | {"rack": None}}, "'rack': None"),
    ],
    ids=["right", "another", "none", "old", "null"],
)
def test_a_registration_without_its_rack_is_seen(
    monkeypatch: pytest.MonkeyPatch, znodes: dict[int, dict[str, object]], says: str | None
) -> None:
    monkeypatch.setattr(test_racks, "await_racks", lambda _: None)
    brokers = [
        fake_broker(id, node=fake_node(properties=properties))
        for id, properties in {1: {"broker.rack": "a"}, 2: {}}.items()
    ]
    quorum = fake(ZooKeeperQuorum, registrations=lambda: znodes)
    cluster = fake_cluster("3.9.2", Mode.ZK, brokers=brokers, quorum=quorum)
    with breaks_promise(says and re.escape(says)):
        test_racks.check_registered(cluster)


@pytest.mark.parametrize("oldest", [([1], ["given"]), ([1, 2], []), ([1, 2], ["given"])])
def test_an_oldest_metadata_response_with_more_in_it_is_seen(oldest: tuple[list[int], list[str]]) -> None:
    """A rack behind a broker's port would shift all that follows it."""
    given = PartitionState(
        topic="given", partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), offline_replicas=()
    )
    state = ClusterState(cluster_id="c", controller=1, brokers=(1, 2), racks={}, partitions=(given,))
    broker = fake_broker(admin=fake(Admin, describe_cluster=lambda: state, describe_cluster_v0=lambda: oldest))
    with breaks_promise(None if oldest == ([1, 2], ["given"]) else "answers Metadata v0 with"):
        test_racks.check_oldest_metadata(fake_cluster(brokers=[broker]))


@pytest.mark.parametrize("spoilt", [False, True])
def test_an_automatic_topic_that_the_algorithm_without_racks_does_not_give_is_seen(
    monkeypatch: pytest.MonkeyPatch, spoilt: bool
) -> None:
    right = dict(assign_without_racks([3, 1, 4, 2], 12, 2, Origin(start=1, shift=2)))
    seen = right | {11: right[0]} if spoilt else right
    monkeypatch.setattr(test_racks, "await_until", lambda *_, **__: "created")
    monkeypatch.setattr(test_racks, "assignments", lambda *_: {"automatic": seen})
    nodes = [fake_node(properties={"broker.rack": "a"} if id < 3 else {}) for id in range(1, 5)]
    cluster = fake_cluster("2.7.2", Mode.ZK, brokers=[fake_broker(id, node=node) for id, node in enumerate(nodes, 1)])
    with breaks_promise("for no start and shift" if spoilt else None):
        test_racks.check_automatic(cluster, Evidence(cluster, [AUTOMATIC_REFUSED, AUTOMATIC_BY_RACKS]))


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [None, "some other error", "Not all brokers have rack information, and no word of what to do"]
)
def test_a_tool_that_doesn_t_refuse_with_the_reason_is_seen(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    def answer(*_: object, **__: object) -> None:
        if said:
            raise Refused("--generate", said)

    monkeypatch.setattr(test_racks, "generate", answer)
    with pytest.raises(PromiseBroken, match="should refuse with 'Not all brokers have rack information'"):
        test_racks.check_generate(fake_cluster(brokers=[]), evidence(*KRAFT), topic_of("given"))


@pytest.mark.parametrize("served", [{1: 5, 2: 0}, {1: 0, 2: 5}, {1: 5, 2: 1}, {1: 0, 2: 0}])
def test_a_consumer_that_others_serve_too_is_seen(monkeypatch: pytest.MonkeyPatch, served: dict[int, int]) -> None:
    counts = itertools.chain([0, 0], served.values())
    monkeypatch.setattr(test_rack_fails, "sent", lambda *_: next(counts))
    monkeypatch.setattr(timeouts, "PROGRESS_S", 0.0)
    nearest, other = Mock(), Mock()
    pair = fake(Pair, topic="orders", await_progress=lambda **_: None)
    with breaks_promise(None if served == {1: 5, 2: 0} else "to serve the consumer, and no other broker"):
        test_rack_fails.check_reads_from(pair, nearest, [other])


def test_a_consumer_that_comes_to_read_from_the_nearest_replica_is_served_well(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 0, 5, 1, 5, 1, 9, 1])
    monkeypatch.setattr(test_rack_fails, "sent", lambda *_: next(counts))
    nearest, other = Mock(), Mock()
    test_rack_fails.check_reads_from(fake(Pair, topic="orders", await_progress=lambda **_: None), nearest, [other])
    assert next(counts, None) is None
