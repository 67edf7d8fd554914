"""What KIP-1066's suite reads and counts by itself: the controller's log, and topics that come while cordons change."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from harness import timeouts
from harness.cluster.log_dir import LogDir
from harness.errors import AwaitTimeout, Inconclusive, JbodError, PromiseBroken
from harness.journal import Journal
from harness.kafka.admin import Refused
from harness.kafka.broker_log import BrokerLog
from harness.kafka.connection import NoAnswer
from suites.background import in_background
from suites.kip_1066.cordons import await_known_to_controller, cordons_logged
from suites.kip_1066.creation import TopicCreation, TopicRequest, created_despite_cordons, topics_created
from suites.kip_1066.emptied import check_empty
from suites.kip_1066.refused import answer_of, check_only_replicas
from suites.kip_1066.test_motives import check_only_on, check_some_in
from suites.kip_1066.test_placement import create_and_count

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
    assert cordons_logged(lines, 2) == told


# --- since when its words count ---------------------------------------------------------------------------------------

START = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
CORDONED_FIRST = (new(), changed(f"[{FIRST}]"))
ACTIVE_SAID = "[QuorumController id=100] Becoming the active controller at epoch 1, next write offset 1."


class OneLogDir(SimpleNamespace):
    """What is asked of a log dir here."""

    def directory_id(self) -> str:
        return FIRST


def await_known(tmp_path: Path, events: list[tuple[int, str]]) -> None:
    """What is in the journal and in the controller's log, by seconds; and the wait for the first log dir's cordon."""
    journal, log = Journal(None), tmp_path / "broker.log"
    nodes = {name: SimpleNamespace(spec=SimpleNamespace(name=name)) for name in ("controller-100", "broker-2")}
    lines = []
    for second, what in events:
        at = START + timedelta(seconds=second)
        if what in nodes:
            journal.write("node.started", node=what)
            journal.events[-1] = replace(journal.events[-1], at=at)
        else:
            lines.append(f"[{at:%Y-%m-%d %H:%M:%S},000] INFO {what}\n")
    log.write_text("".join(lines))
    controller: Any = nodes["controller-100"]
    controller.log = BrokerLog(log)
    cluster: Any = SimpleNamespace(journal=journal, active_controller=lambda: controller)
    await_known_to_controller(cluster, cast(Any, SimpleNamespace(id=2, node=nodes["broker-2"])), cast(Any, OneLogDir()))


BOOT = [(0, "controller-100"), (0, "broker-2"), (2, ACTIVE_SAID)]
SAID = [*BOOT, *((3, line) for line in CORDONED_FIRST)]


@pytest.mark.parametrize(
    "events",
    [
        SAID,
        [*SAID, (9, "controller-100"), *((10, line) for line in CORDONED_FIRST), (11, ACTIVE_SAID)],
        [*SAID, (9, "broker-2"), *((10, line) for line in CORDONED_FIRST)],
        [*SAID, (7, "broker-2"), (9, "controller-100"), *((10, line) for line in CORDONED_FIRST), (11, ACTIVE_SAID)],
    ],
    ids=["said", "said-again-by-the-controller", "told-again-by-the-broker", "both-restarted"],
)
def test_what_the_controller_said_since_the_last_starts_is_known(tmp_path: Path, events: list[tuple[int, str]]) -> None:
    await_known(tmp_path, events)


@pytest.mark.parametrize(
    "events",
    [
        [*SAID, (9, "broker-2")],
        [*SAID, (9, "broker-2"), (10, new())],
        [*SAID, (9, "controller-100"), (11, ACTIVE_SAID)],
        [*SAID, (9, "controller-100"), *((10, line) for line in CORDONED_FIRST)],
        [
            *SAID,
            (9, "controller-100"),
            *((10, line) for line in CORDONED_FIRST),
            (10, changed("[]")),
            (11, ACTIVE_SAID),
        ],
    ],
    ids=["broker-restarted", "registered-without", "controller-restarted", "still-replaying", "uncordoned-later"],
)
def test_what_it_said_before_is_not(
    tmp_path: Path, events: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "LOG_DIR_FAILURE_S", 0.1)
    with pytest.raises(PromiseBroken, match="the controller to know"):
        await_known(tmp_path, events)


# --- topics that need a broker that is down, or on its way back -------------------------------------------------------


def asked(second: float, *, made: bool = False) -> TopicRequest:
    at = START + timedelta(seconds=second)
    return TopicRequest(name=f"wide-{second}", at=at, answered=at + timedelta(seconds=0.5), made=made)


REFUSED = [asked(1), asked(3), asked(5)]
TIMES = {name: START + timedelta(seconds=second) for name, second in {"down": 1, "started": 2, "known": 4}.items()}


def test_what_was_made_before_the_controller_knew_is_told() -> None:
    made = asked(2.2, made=True)
    assert created_despite_cordons(REFUSED, **TIMES) == []
    assert created_despite_cordons([asked(0.9, made=True), *REFUSED, made], **TIMES) == [made]


@pytest.mark.parametrize("second", [1.2, 4.1])
def test_nothing_comes_to_a_broker_of_which_the_controller_knows(second: float) -> None:
    with pytest.raises(PromiseBroken, match=rf"wide-{second}.* controller knew to be cordoned"):
        created_despite_cordons([*REFUSED, asked(second, made=True)], **TIMES)


@pytest.mark.parametrize("missing", range(3))
def test_without_having_asked_at_each_time_nothing_is_shown(missing: int) -> None:
    with pytest.raises(Inconclusive, match="too few topics were requested"):
        created_despite_cordons([each for n, each in enumerate(REFUSED) if n != missing], **TIMES)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "seen"),
    [
        ("INVALID_REPLICA_ASSIGNMENT", "all log dirs of broker 2 are cordoned", "INVALID_REPLICA_ASSIGNMENT"),
        ("INVALID_REPLICA_ASSIGNMENT", "no", "INVALID_REPLICA_ASSIGNMENT without the reason: no"),
        ("INVALID_REPLICA_ASSIGNMENT", None, "INVALID_REPLICA_ASSIGNMENT without the reason: None"),
        ("INELIGIBLE_REPLICA", None, "INELIGIBLE_REPLICA"),
    ],
)
def test_an_assignment_is_refused_with_the_reason(error: str, message: str | None, seen: str) -> None:
    assert answer_of(Refused("create topic t", error, message)) == seen


@pytest.mark.parametrize(
    ("seen", "under_way", "says"),
    [
        ([(1,)], (), None),
        ([(1,), (2,)], (), r"sees it on \[\(1,\), \(2,\)\] instead of \[\(1,\)\]"),
        ([], (), r"sees it on \[\] instead"),
        ([(1,)], ("t-0 to 2",), "is being reassigned: .*t-0 to 2"),
    ],
)
def test_nothing_comes_of_what_was_refused(
    seen: list[tuple[int, ...]], under_way: tuple[str, ...], says: str | None
) -> None:
    state = SimpleNamespace(partitions=[SimpleNamespace(replicas=each) for each in seen])
    broker = SimpleNamespace(configure=lambda _: None, admin=SimpleNamespace(describe_cluster=lambda topics: state))
    cluster: Any = SimpleNamespace(live_brokers=lambda: [broker], reassignments=lambda: under_way)
    if says is None:
        check_only_replicas(cluster, "t", [(1,)])
    else:
        with pytest.raises(PromiseBroken, match=says):
            check_only_replicas(cluster, "t", [(1,)])


# --- topics, all the while --------------------------------------------------------------------------------------------

BROKER: Any = SimpleNamespace(id=1)
A, B = (LogDir(BROKER, Path(f"/{name}")) for name in "ab")


class FakeState:
    """Remembers which cordons each topic was held against; ``during`` happens while a topic is created.

    :ivar answers: to requests for a topic, in order: an error, or None where it is created; None as well from then on
    """

    def __init__(self, *answers: JbodError | None) -> None:
        self.answers = list(answers)
        self.cordoned: frozenset[LogDir] = frozenset()
        self.during: frozenset[LogDir] | None = None
        self.learnt: list[tuple[str, frozenset[LogDir]]] = []
        self.cluster = SimpleNamespace(
            create_topic=self.create,
            await_topics=lambda counts: [SimpleNamespace(name=name) for name in counts],
            journal=SimpleNamespace(write=lambda *_, **__: None),
        )

    def create(self, name: str, replicas: int) -> Any:
        if self.during is not None:
            self.cordoned = self.during
        if self.answers and (error := self.answers.pop(0)):
            raise error
        return SimpleNamespace(name=name)

    def check(self) -> None:
        """All agree."""

    def add_topic(self, topic: Any, *, cordoned: frozenset[LogDir]) -> None:
        self.learnt.append((topic.name, cordoned))


@pytest.mark.parametrize(
    ("before", "after", "held_against"),
    [({A}, {A}, {A}), (set(), {A}, set()), ({A}, set(), set()), ({A}, {A, B}, {A})],
    ids=["cordoned", "cordoned-meanwhile", "uncordoned-meanwhile", "one-more-meanwhile"],
)
def test_a_topic_is_held_against_what_was_cordoned_all_the_while(
    before: set[LogDir], after: set[LogDir], held_against: set[LogDir]
) -> None:
    state = FakeState()
    state.cordoned, state.during = frozenset(before), frozenset(after)
    creation = TopicCreation(cast(Any, state))
    creation.create("t")
    creation.add_new_topics()
    assert state.learnt == [("t", frozenset(held_against))]


def test_topics_of_before_the_cordon_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "PROGRESS_S", 0.2)
    state = FakeState()
    creation = TopicCreation(cast(Any, state))
    creation.create("before")
    state.cordoned = frozenset({A})
    with pytest.raises(Inconclusive, match="1 topics to be created"):
        creation.add_new_topics(at_least=1)
    creation.create("after")
    assert [topic.name for topic in creation.add_new_topics(at_least=1)] == ["after"]


EXISTS = Refused("create topic t", "TOPIC_ALREADY_EXISTS")
SHUT = Refused("create topic t", "INVALID_REPLICATION_FACTOR")


@pytest.mark.parametrize("then", [None, EXISTS], ids=["not-made", "made"])
def test_a_topic_that_nobody_answered_for_is_asked_for_again_and_learnt(then: JbodError | None) -> None:
    state = FakeState(NoAnswer("gone"), NoAnswer("gone"), then)
    state.cordoned = frozenset({A})
    creation = TopicCreation(cast(Any, state))
    creation.create("t")
    creation.add_new_topics()
    assert state.learnt == [("t", frozenset({A}))]


@pytest.mark.parametrize(
    ("answers", "block", "raises"),
    [
        ([SHUT], None, PromiseBroken),
        ([SHUT], AwaitTimeout("the block's"), PromiseBroken),
        ([NoAnswer("gone"), SHUT], None, PromiseBroken),
        ([AwaitTimeout("the thread's")], None, AwaitTimeout),
        ([AwaitTimeout("the thread's")], PromiseBroken("the block's"), PromiseBroken),
    ],
    ids=["refused", "refused-and-block-fails", "refused-after-silence", "other", "other-and-block-fails"],
)
def test_what_ends_the_thread_comes_out(
    answers: list[JbodError], block: JbodError | None, raises: type[JbodError]
) -> None:
    def scenario() -> None:
        with topics_created(cast(Any, FakeState(*answers))) as creation:
            if block is not None:
                while not creation.errors:
                    pass
                raise block
            creation.add_new_topics(at_least=1)

    with pytest.raises(raises):
        scenario()


def test_topics_before_and_after_are_none_meanwhile() -> None:
    creation = TopicCreation(cast(Any, FakeState()))
    creation.create("before")
    with (
        pytest.raises(Inconclusive, match="no topic was requested during the drain"),
        creation.created_during("the drain"),
    ):
        pass
    with creation.created_during("the drain"):
        creation.create("meanwhile")


def test_nothing_begins_while_a_topic_is_in_the_making() -> None:
    """As on a machine with much to do, where it would be over before the next is asked for."""
    state = FakeState()
    creation, asked, go_on = TopicCreation(cast(Any, state)), threading.Event(), threading.Event()
    answer = state.cluster.create_topic

    def create_topic(*args: Any, **kwargs: Any) -> Any:
        asked.set()
        go_on.wait()
        return answer(*args, **kwargs)

    state.cluster.create_topic = create_topic
    creating = threading.Thread(target=creation.create, args=("long",))
    creating.start()
    asked.wait()
    threading.Timer(0.1, go_on.set).start()
    with creation.created_during("the drain"):
        assert go_on.is_set()
        creation.create("meanwhile")
    creating.join()


def test_a_step_that_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    go_on = threading.Event()
    with in_background(go_on.wait, every_s=1.0) as errors:
        pass
    go_on.set()
    assert [str(error) for error in errors] == ["a step in the background has not ended for 0.01 s"]


# --- what is there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "folder", "left"),
    [((), None, None), (("orders", 0), None, "orders-0 in"), ((), "nobodys-0.abc-delete", "nobodys-0.abc-delete")],
    ids=["nothing", "a-replica", "a-folder"],
)
def test_a_log_dir_that_is_not_empty_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    described: tuple[Any, ...],
    folder: str | None,
    left: str | None,
) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    if folder:
        (tmp_path / folder).mkdir()
    (tmp_path / "meta.properties").touch()
    replicas = [SimpleNamespace(topic=described[0], partition=described[1])] if described else []
    state = SimpleNamespace(path=str(tmp_path), replicas=replicas)
    broker: Any = Mock(describe_log_dirs=lambda: [state])
    with pytest.raises(PromiseBroken, match=left) if left else nullcontext():
        check_empty(LogDir(broker, tmp_path))


@pytest.mark.parametrize(("brokers", "holds"), [((1, 2), True), ((1,), False), ((1, 2, 3), False)])
def test_replicas_are_on_these_brokers_and_on_each(brokers: tuple[int, ...], holds: bool) -> None:
    partitions = {("orders", 0): SimpleNamespace(replicas=(1, 2)), ("orders", 1): SimpleNamespace(replicas=(2, 1))}
    state: Any = SimpleNamespace(partitions=partitions)
    with nullcontext() if holds else pytest.raises(PromiseBroken, match="replicas are on brokers"):
        check_only_on(state, *(cast(Any, SimpleNamespace(id=id)) for id in brokers))


def test_a_log_dir_that_gets_nothing_new_is_seen() -> None:
    state: Any = SimpleNamespace(replicas_in=lambda _: {("old", 0), ("new", 1)})
    check_some_in(state, A, [cast(Any, SimpleNamespace(name="new"))])
    with pytest.raises(PromiseBroken, match="none of 1 new topics is on"):
        check_some_in(state, A, [cast(Any, SimpleNamespace(name="newer"))])


@pytest.mark.parametrize("count", [3, 4, 5])
def test_so_many_new_replicas_come_to_a_log_dir_and_no_others(count: int) -> None:
    there = {("amid", index) for index in range(count)} | {("other", 0)}
    cluster = SimpleNamespace(create_topic=lambda *_, **__: None)
    state: Any = SimpleNamespace(
        cluster=cluster, add_topic=lambda _: None, check=lambda: None, replicas_in=lambda _: there
    )
    with nullcontext() if count == 4 else pytest.raises(PromiseBroken, match=f"{count} new replicas are on"):
        create_and_count(state, "amid", replicas=3, to={A: 4})
