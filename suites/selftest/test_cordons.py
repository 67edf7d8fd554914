"""What KIP-1066's suite reads and counts by itself: the controller's log, and topics that come while cordons change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import timeouts
from harness.errors import Inconclusive
from harness.log_dir import LogDir
from suites.kip_1066.cordons import Creation, cordons_told

NEW = "[QuorumController id=100] Replayed initial RegisterBrokerRecord for broker {id}: RegisterBrokerRecord(brokerId={id}, isMigratingZkBroker=false, incarnationId=44qIOokWTeGFUOL_nSHXQw, fenced=true, logDirs=[l4gpTPzeTYGnxlVUktu1RA, bUegm1pSSM-a6jggRkajgQ], cordonedLogDirs=null)"  # noqa: E501
CHANGED = "[QuorumController id=100] Replayed BrokerRegistrationChangeRecord modifying the registration for broker {id}: BrokerRegistrationChangeRecord(brokerId={id}, brokerEpoch=123, fenced={fenced}, inControlledShutdown=0, logDirs=[], cordonedLogDirs={cordoned}) (org.apache.kafka.controller.ClusterControlManager)"  # noqa: E501
FIRST, SECOND = "l4gpTPzeTYGnxlVUktu1RA", "bUegm1pSSM-a6jggRkajgQ"


def new(id: int = 2) -> str:
    return NEW.format(id=id)


def changed(cordoned: str, fenced: int = 0, id: int = 2) -> str:
    return CHANGED.format(id=id, fenced=fenced, cordoned=cordoned)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], None),
        ([new()], None),
        ([new(), changed("[]")], set()),
        ([new(), changed("[]"), changed(f"[{FIRST}, {SECOND}]")], {FIRST, SECOND}),
        ([new(), changed(f"[{FIRST}]"), changed("null", fenced=-1)], {FIRST}),
        ([new(), changed(f"[{FIRST}]"), changed(f"[{SECOND}]", id=3), "something else"], {FIRST}),
        ([new(), changed(f"[{FIRST}]"), changed(f"[{SECOND}]", id=22)], {FIRST}),
        ([new(), changed(f"[{FIRST}]"), new()], None),
    ],
)
def test_the_controllers_last_word_on_a_brokers_cordons(lines: list[str], told: set[str] | None) -> None:
    assert cordons_told(lines, 2) == told


BROKER: Any = SimpleNamespace(id=1)
A, B = (LogDir(BROKER, Path(f"/{name}")) for name in "ab")


class FakeWorld:
    """Remembers which cordons each topic was held against; ``during`` happens while a topic is created."""

    def __init__(self) -> None:
        self.cordoned: frozenset[LogDir] = frozenset()
        self.during: frozenset[LogDir] | None = None
        self.learnt: list[tuple[str, frozenset[LogDir]]] = []
        self.cluster = SimpleNamespace(create_topic=self.create, journal=SimpleNamespace(write=lambda *_, **__: None))

    def create(self, name: str, replicas: int) -> Any:
        if self.during is not None:
            self.cordoned = self.during
        return SimpleNamespace(name=name)

    def learn(self, topic: Any, *, cordoned: frozenset[LogDir]) -> None:
        self.learnt.append((topic.name, cordoned))


@pytest.mark.parametrize(
    ("before", "after", "held_against"),
    [({A}, {A}, {A}), (set(), {A}, set()), ({A}, set(), set()), ({A}, {A, B}, {A})],
    ids=["cordoned", "cordoned-meanwhile", "uncordoned-meanwhile", "one-more-meanwhile"],
)
def test_a_topic_is_held_against_what_was_cordoned_all_the_while(
    before: set[LogDir], after: set[LogDir], held_against: set[LogDir]
) -> None:
    world = FakeWorld()
    world.cordoned, world.during = frozenset(before), frozenset(after)
    creation = Creation(cast(Any, world))
    creation.create("t", 2)
    creation.learn()
    assert world.learnt == [("t", frozenset(held_against))]


def test_topics_of_before_the_cordon_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "PROGRESS_S", 0.2)
    world = FakeWorld()
    creation = Creation(cast(Any, world))
    creation.create("before", 2)
    world.cordoned = frozenset({A})
    with pytest.raises(Inconclusive, match="1 topics to be created"):
        creation.learn(at_least=1)
    creation.create("after", 2)
    assert [topic.name for topic in creation.learn(at_least=1)] == ["after"]
