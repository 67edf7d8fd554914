"""The helpers of KIP-1066's suite: they read cordons from the controller's log, and count topics and replicas."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Topic
from harness.errors import AwaitTimeout, Inconclusive, JbodError, PromiseBroken
from harness.journal import Journal
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.broker_log import BrokerLog
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import ReplicaInDir
from suites.background import in_background
from suites.kip_1066.cordons import await_known_to_controller, cordons_logged
from suites.kip_1066.creation import TopicCreation, TopicRequest, created_despite_cordons, topics_created
from suites.kip_1066.emptied import check_empty
from suites.kip_1066.refused import answer_of, check_only_replicas
from suites.kip_1066.test_motives import check_only_on, check_some_in
from suites.kip_1066.test_placement import create_and_count
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import (
    cluster_state,
    fake,
    fake_broker,
    fake_cluster,
    fake_node,
    log_dir_at,
    log_dir_state,
    partition_state,
    replica_in_dir,
    topic_of,
)
from suites.state_check import StateCheck

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


# --- the lines since the last start -----------------------------------------------------------------------------------

START = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
CORDONED_FIRST = (new(), changed(f"[{FIRST}]"))
ACTIVE_SAID = "[QuorumController id=100] Becoming the active controller at epoch 1, next write offset 1."


def await_known(tmp_path: Path, events: list[tuple[int, str]]) -> None:
    """Wait until the controller knows that broker 2's first log dir is cordoned.

    :param events: in seconds from the start: a node that starts, by its name, or a line of the controller's log
    """
    journal, log = Journal(None), tmp_path / "broker.log"
    lines = []
    for second, what in events:
        at = START + timedelta(seconds=second)
        if what in ("controller-100", "broker-2"):
            journal.write("node.started", node=what)
            journal.events[-1] = replace(journal.events[-1], at=at)
        else:
            lines.append(f"[{at:%Y-%m-%d %H:%M:%S},000] INFO {what}\n")
    log.write_text("".join(lines))
    controller = fake_node("controller-100", log=BrokerLog(log))
    broker = fake_broker(2, node=fake_node("broker-2"))
    (tmp_path / "meta.properties").write_text(f"version=1\ndirectory.id={FIRST}\n")
    cluster = fake_cluster(journal=journal, active_controller=lambda: controller)
    await_known_to_controller(cluster, broker, log_dir_at(tmp_path, broker))


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
def test_what_the_controller_logged_since_the_last_starts_is_known(
    tmp_path: Path, events: list[tuple[int, str]]
) -> None:
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
def test_what_it_printed_before_is_not(
    tmp_path: Path, events: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line counts only if it came after the last start of the broker and of the active controller."""
    monkeypatch.setattr(timeouts, "LOG_DIR_FAILURE_S", 0.1)
    with pytest.raises(PromiseBroken, match="the controller to know"):
        await_known(tmp_path, events)


# --- topics that need a broker that is down or just starts ------------------------------------------------------------


def asked(second: float, *, made: bool = False) -> TopicRequest:
    at = START + timedelta(seconds=second)
    return TopicRequest(name=f"wide-{second}", at=at, answered=at + timedelta(seconds=0.5), made=made)


REFUSED = [asked(1), asked(3), asked(5)]
TIMES = {name: START + timedelta(seconds=second) for name, second in {"down": 1, "started": 2, "known": 4}.items()}


def test_what_was_made_before_the_controller_knew_is_reported() -> None:
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
        ([(1,)], ("t-0 to 2",), "a reassignment is under way: .*t-0 to 2"),
    ],
)
def test_nothing_comes_of_what_was_refused(
    seen: list[tuple[int, ...]], under_way: tuple[str, ...], says: str | None
) -> None:
    state = cluster_state(*(partition_state("t", *each, index=index) for index, each in enumerate(seen)))
    broker = fake_broker(configure=lambda _: None, admin=fake(Admin, describe_cluster=lambda topics: state))
    cluster = fake_cluster(live_brokers=lambda: [broker], reassignments=lambda: under_way)
    with breaks_promise(says):
        check_only_replicas(cluster, "t", [(1,)])


# --- topics created in the background ---------------------------------------------------------------------------------

A, B = (log_dir_at(Path(f"/{name}")) for name in "ab")


class FakeState(StateCheck):
    """An expected state whose sources always agree, of a cluster that answers requests for topics as planned.

    :ivar during: the cordons from the next request on; None: as before
    :ivar learnt: the topics that were added, each with the cordons that it is checked against
    """

    def __init__(self, *answers: JbodError | None) -> None:
        """:param answers: to the requests for a topic, in order: an error, or None: it is created; then always None"""
        super().__init__(
            fake_cluster(create_topic=self.create, await_topics=lambda counts: [topic_of(name) for name in counts])
        )
        self.answers = list(answers)
        self.during: frozenset[LogDir] | None = None
        self.learnt: list[tuple[str, frozenset[LogDir] | None]] = []

    def create(self, name: str, replicas: int) -> Topic:
        if self.during is not None:
            self.cordoned = self.during
        if self.answers and (error := self.answers.pop(0)):
            raise error
        return topic_of(name)

    def check(self, *_: object, **__: object) -> None:
        pass

    def add_topic(self, topic: Topic, *, cordoned: frozenset[LogDir] | None = None) -> None:
        self.learnt.append((topic.name, cordoned))


@pytest.mark.parametrize(
    ("before", "after", "held_against"),
    [({A}, {A}, {A}), (set(), {A}, set()), ({A}, set(), set()), ({A}, {A, B}, {A})],
    ids=["cordoned", "cordoned-meanwhile", "uncordoned-meanwhile", "one-more-meanwhile"],
)
def test_a_topic_is_held_against_what_was_cordoned_all_the_while(
    before: set[LogDir], after: set[LogDir], held_against: set[LogDir]
) -> None:
    """A topic is checked against those cordons that were in force before and after its creation."""
    state = FakeState()
    state.cordoned, state.during = frozenset(before), frozenset(after)
    creation = TopicCreation(state)
    creation.create("t")
    creation.add_new_topics()
    assert state.learnt == [("t", frozenset(held_against))]


def test_topics_of_before_the_cordon_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "PROGRESS_S", 0.2)
    """A scenario that wants topics under a cordon does not count earlier ones."""
    state = FakeState()
    creation = TopicCreation(state)
    creation.create("before")
    state.cordoned = frozenset({A})
    with pytest.raises(Inconclusive, match="1 topics to be created"):
        creation.add_new_topics(at_least=1)
    creation.create("after")
    assert [topic.name for topic in creation.add_new_topics(at_least=1)] == ["after"]


EXISTS = Refused("create topic t", "TOPIC_ALREADY_EXISTS")
SHUT = Refused("create topic t", "INVALID_REPLICATION_FACTOR")


@pytest.mark.parametrize("then", [None, EXISTS], ids=["not-made", "made"])
def test_a_topic_without_an_answer_is_asked_for_again_and_learnt(then: JbodError | None) -> None:
    state = FakeState(NoAnswer("gone"), NoAnswer("gone"), then)
    state.cordoned = frozenset({A})
    creation = TopicCreation(state)
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
    """The error of the thread that creates topics is raised, unless the block raises one; a refusal always is."""

    def scenario() -> None:
        with topics_created(FakeState(*answers)) as creation:
            if block is not None:
                while not creation.errors:
                    pass
                raise block
            creation.add_new_topics(at_least=1)

    with pytest.raises(raises):
        scenario()


def test_topics_before_and_after_are_none_meanwhile() -> None:
    """Only a topic that is requested inside the block counts."""
    creation = TopicCreation(FakeState())
    creation.create("before")
    with (
        pytest.raises(Inconclusive, match="no topic was requested during the drain"),
        creation.created_during("the drain"),
    ):
        pass
    with creation.created_during("the drain"):
        creation.create("meanwhile")


def test_nothing_begins_while_a_topic_is_in_the_making(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block begins only when the requests before it are answered; a slow one could fill the whole block."""
    state = FakeState()
    creation, asked, go_on = TopicCreation(state), threading.Event(), threading.Event()

    def create_topic(name: str, replicas: int) -> Topic:
        asked.set()
        go_on.wait()
        return state.create(name, replicas)

    monkeypatch.setattr(state.cluster, "create_topic", create_topic)
    creating = threading.Thread(target=creation.create, args=("long",))
    creating.start()
    asked.wait()
    threading.Timer(0.1, go_on.set).start()
    with creation.created_during("the drain"):
        assert go_on.is_set()
        creation.create("meanwhile")
    creating.join()


def test_a_step_that_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    go_on = threading.Event()
    with in_background(go_on.wait, every_s=1.0) as errors:
        pass
    go_on.set()
    assert [str(error) for error in errors] == ["a step in the background has not ended for 0.01 s"]


# --- what is there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "folder", "left"),
    [
        ((), None, None),
        ((replica_in_dir("orders"),), None, "orders-0 in"),
        ((), "nobodys-0.abc-delete", "nobodys-0.abc-delete"),
    ],
    ids=["nothing", "a-replica", "a-folder"],
)
def test_a_log_dir_that_is_not_empty_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    described: tuple[ReplicaInDir, ...],
    folder: str | None,
    left: str | None,
) -> None:
    """Neither by its broker nor by its folders may it have a replica."""
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    if folder:
        (tmp_path / folder).mkdir()
    (tmp_path / "meta.properties").touch()
    broker = fake_broker(describe_log_dirs=lambda: [log_dir_state(tmp_path, *described)])
    with breaks_promise(left):
        check_empty(log_dir_at(tmp_path, broker))


@pytest.mark.parametrize(("brokers", "holds"), [((1, 2), True), ((1,), False), ((1, 2, 3), False)])
def test_replicas_are_on_these_brokers_and_on_each(brokers: tuple[int, ...], holds: bool) -> None:
    state = StateCheck(fake_cluster())
    for index, replicas in enumerate(((1, 2), (2, 1))):
        state.add_partition(partition_state("orders", *replicas, index=index), {})
    with nullcontext() if holds else pytest.raises(PromiseBroken, match="replicas are on brokers"):
        check_only_on(state, *map(fake_broker, brokers))


def test_a_log_dir_that_gets_nothing_new_is_seen() -> None:
    state = fake(StateCheck, replicas_in=lambda _: {("old", 0), ("new", 1)})
    check_some_in(state, A, [topic_of("new")])
    with pytest.raises(PromiseBroken, match="none of 1 new topics is on"):
        check_some_in(state, A, [topic_of("newer")])


@pytest.mark.parametrize("count", [3, 4, 5])
def test_so_many_new_replicas_come_to_a_log_dir_and_no_others(count: int) -> None:
    there = {("amid", index) for index in range(count)} | {("other", 0)}
    cluster = fake_cluster(create_topic=lambda *_, **__: None)
    state = fake(StateCheck, cluster=cluster, add_topic=lambda _: None, check=lambda: None, replicas_in=lambda _: there)
    with nullcontext() if count == 4 else pytest.raises(PromiseBroken, match=f"{count} new replicas are on"):
        create_and_count(state, "amid", replicas=3, to={A: 4})
