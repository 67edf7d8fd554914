"""Each event changes the expected state of partitions by the rules of the KIPs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.cluster.session_loss import LostSession
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Partition, Topic
from harness.crowding import Crowding, Deadline
from harness.errors import HarnessError, Inconclusive, PromiseBroken, ToolFailed
from harness.journal import Journal, now
from harness.kafka.broker_log import BrokerLog
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from suites.expected_state import ExpectedPartition
from suites.observations import (
    TOOL_SOURCES,
    Source,
    compare_folders,
    log_dirs_tool,
    metadata_log,
    offline_replicas,
    processes,
)
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import (
    cluster_state,
    fake,
    fake_broker,
    fake_cluster,
    fake_distribution,
    fake_node,
    log_dir_at,
    partition_of,
    partition_state,
    topic_of,
)
from suites.selftest.journal_lines import lines_of
from suites.state_check import HeldMovesEnded, Observation, StateCheck

BROKERS = {id: fake_broker(id, is_running=True) for id in (1, 2, 3)}
DIRS = {(id, n): log_dir_at(Path(f"/b{id}/d{n}"), BROKERS[id]) for id in BROKERS for n in (1, 2)}
for id, broker in BROKERS.items():
    broker.log_dirs = (DIRS[id, 1], DIRS[id, 2])


@pytest.fixture
def state() -> StateCheck:
    """``t`` on every broker's first log dir, led by 2; ``u`` on every second, led by 1; ``lone`` on broker 3 alone."""
    cluster = fake_cluster(
        brokers=[*BROKERS.values()],
        unreachable=set(),
        broker=BROKERS.__getitem__,
        check_nodes=lambda: None,
        check_watched=lambda: None,
        await_healthy=lambda **_: None,
    )
    state = StateCheck(cluster)
    state.add_partition(partition_state("t", 2, 3, 1), {id: DIRS[id, 1] for id in (2, 3, 1)})
    state.add_partition(partition_state("u", 1, 2, 3), {id: DIRS[id, 2] for id in (1, 2, 3)})
    state.add_partition(partition_state("lone", 3), {3: DIRS[3, 1]})
    return state


def expect(leader: int | None, isr: set[int] | None, offline: set[int], *replicas: int) -> ExpectedPartition:
    return ExpectedPartition(
        replicas=replicas, leader=leader, isr=None if isr is None else frozenset(isr), offline=frozenset(offline)
    )


def test_a_leaders_dir_fails_and_the_next_of_the_assignment_leads(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[2, 1])
    assert state.expected("t") == expect(3, {3, 1}, {2}, 2, 3, 1)


def test_a_held_move_that_got_to_its_end_over_a_restart_is_no_broken_promise(
    state: StateCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a broken promise if anything else differs, or if its broker was not restarted in KRaft.

    It is one, too, if the broker's log does not show that the move ended before the broker knew the throttle.
    """
    judged: list[tuple[str, LogDir]] = []
    too_late: list[PromiseBroken] = [PromiseBroken("it ended too late")]

    def check_ended_before_throttle(_: object, partition: str, to: LogDir) -> None:
        judged.append((partition, to))
        if too_late:
            raise too_late.pop()

    monkeypatch.setattr("suites.state_check.check_ended_before_throttle", check_ended_before_throttle)
    monkeypatch.setattr(BROKERS[1], "started_at", now(), raising=False)
    partition = partition_of("t")
    disk = {("t", 0, 1): DIRS[1, 2]}
    monkeypatch.setattr(
        StateCheck, "all_disagreements", lambda self: [str(k) for k in disk if self._places[k] != disk[k]]
    )
    monkeypatch.setattr(StateCheck, "disagreements", lambda self, also=(): self.all_disagreements())
    monkeypatch.setattr(state, "_observe_leaderships", Observation)

    def restarted() -> None:
        state.broker_gone(BROKERS[1])
        monkeypatch.setattr(BROKERS[1], "started_at", now())
        state.broker_back(BROKERS[1])

    state.move_held(partition, DIRS[1, 2])
    differs = Observation(differences=["('t', 0, 1)"])
    assert state._observe(()) == differs
    state.cluster.spec = ClusterSpec(mode=Mode.ZK)
    restarted()
    assert state._observe(()) == differs
    state.cluster.spec = ClusterSpec(mode=Mode.KRAFT)
    state.move_held(partition, DIRS[1, 2])
    state.broker_gone(BROKERS[1])
    state.broker_back(BROKERS[1])  # resumed, and not restarted
    assert state._observe(()) == differs
    restarted()
    agreeing = disk.pop(("t", 0, 1))
    assert state._observe(()) == Observation()
    disk["t", 0, 1] = agreeing
    disk["u", 0, 1] = DIRS[1, 1]
    assert state._observe(()) == replace(differs, differences=["('t', 0, 1)", "('u', 0, 1)"])
    assert (state.future_replicas_in(DIRS[1, 2]), state.replicas_in(DIRS[1, 1])) == ({("t", 0)}, {("t", 0)})
    del disk["u", 0, 1]
    with pytest.raises(PromiseBroken, match="it ended too late"):
        state.check(timeout_s=0.01)
    with pytest.raises(HeldMovesEnded, match="the move of t-0 into"):
        state.check(timeout_s=0.01)
    assert judged == [("t-0", DIRS[1, 2])] * 2
    assert (state.future_replicas_in(DIRS[1, 2]), state.replicas_in(DIRS[1, 1])) == (set(), set())
    disk["t", 0, 1] = DIRS[1, 1]
    state.move_held(partition, DIRS[1, 1])
    assert state._observe(()) == differs


def test_one_held_move_may_end_over_a_restart_and_another_one_not(
    state: StateCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both brokers were restarted: the first one's move is still held, and the second one's has ended."""
    disk = {("t", 0, 2): DIRS[2, 1], ("t", 0, 1): DIRS[1, 2]}
    monkeypatch.setattr(
        StateCheck, "all_disagreements", lambda self: [str(k) for k in disk if self._places[k] != disk[k]]
    )
    for id in (2, 1):
        state.move_held(partition_of("t"), DIRS[id, 2])
        monkeypatch.setattr(BROKERS[id], "started_at", now() + timedelta(seconds=1), raising=False)
    assert state._ended_moves() == {("t", 0, 1): DIRS[1, 2]}


def test_a_followers_dir_fails_and_the_leader_stays(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[1, 1])
    assert state.expected("t") == expect(2, {2, 3}, {1}, 2, 3, 1)


def test_only_the_failed_dirs_partitions_are_touched(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[2, 1])
    assert state.expected("u") == expect(1, {1, 2, 3}, set(), 1, 2, 3)
    assert state.expected("lone") == expect(3, {3}, set(), 3)


@pytest.mark.parametrize(
    ("event", "keep_theirs"),
    [
        (lambda state: state.log_dir_failed(DIRS[2, 1]), {"u", "lone"}),  # of t's leader
        (lambda state: state.log_dir_failed(DIRS[1, 1]), {"u", "lone"}),  # of a follower: t gets a new one in ZK mode
        (lambda state: state.log_dir_failed(DIRS[3, 1]), {"u"}),
        (lambda state: state.broker_gone(BROKERS[2]), {"lone"}),
        (lambda state: restarted(state, BROKERS[2]), {"lone"}),
        (lambda state: state.reassigned(partition_of("t"), [DIRS[id, 1] for id in (2, 3, 1)]), {"u", "lone"}),
        (lambda state: state.reassignment_cancelled(partition_of("u"), [BROKERS[1]]), {"t", "lone"}),
        (lambda state: state.moved(partition_of("lone"), DIRS[3, 2]), {"t", "u", "lone"}),
        (lambda state: state.set_cordoned(BROKERS[2], DIRS[2, 1]), {"t", "u", "lone"}),
    ],
)
def test_what_an_event_does_not_touch_keeps_its_leader_epoch(
    state: StateCheck, event: Callable[[StateCheck], None], keep_theirs: set[str]
) -> None:
    event(state)
    assert {topic for topic, _ in state.leader_epochs} == keep_theirs


def test_a_log_dir_that_fails_while_its_broker_is_down_may_begin_a_leader_epoch(state: StateCheck) -> None:
    """The broker finds the failure before or after it registers; only the second begins a leader epoch."""
    state.broker_gone(BROKERS[3])
    state.leader_epochs = {("t", 0): 3, ("u", 0): 1, ("lone", 0): 0}
    [hit] = state.replicas_in(DIRS[3, 1]) & {("t", 0), ("u", 0)}
    state.log_dir_failed(DIRS[3, 1])
    assert hit not in state.leader_epochs
    assert state.leader_epochs


def test_a_broker_that_comes_back_begins_no_leader_epoch(state: StateCheck) -> None:
    state.broker_gone(BROKERS[2])
    state.leader_epochs = {("t", 0): 3, ("u", 0): 1}  # as the others see them while it is down
    state.broker_back(BROKERS[2])
    assert state.leader_epochs == {("t", 0): 3, ("u", 0): 1}
    state.broker_gone(BROKERS[3])
    assert state.leader_epochs == {}


def test_a_broker_that_is_cut_off_is_gone_for_the_others_and_runs_all_the_while(state: StateCheck) -> None:
    """Its replicas are offline until the cut ends. Then they rejoin the ISR, and the broker was never started."""
    state.log_dir_failed(DIRS[1, 1])
    state.broker_cut_off(BROKERS[2])
    assert state.expected("u") == expect(1, {1, 3}, {2}, 1, 2, 3)
    assert BROKERS[2] not in state.live_brokers()
    assert [*processes(state)] == []
    state.broker_back(BROKERS[2])
    assert state.expected("u") == expect(1, {1, 2, 3}, set(), 1, 2, 3)
    assert state.updated_since_start == {}
    assert [*processes(state)] == []


def restarted(state: StateCheck, broker: Broker) -> None:
    state.broker_gone(broker)
    state.broker_back(broker)


def test_leader_epochs_are_known_again_when_all_brokers_agree_on_them(
    state: StateCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event may begin a new leader epoch; once all brokers see the same one, it must stay."""
    state.log_dir_failed(DIRS[2, 1])

    def seen_by(broker: Broker, epoch_of_t: int) -> None:
        topics = {"t": epoch_of_t, "u": 0, "lone": 0}
        seen = cluster_state(*(replace(partition_state(t, 1), leader_epoch=epoch) for t, epoch in topics.items()))
        monkeypatch.setattr(broker, "describe_cluster", lambda: seen)

    for id, epoch in ((1, 5), (2, 6), (3, 6)):
        seen_by(BROKERS[id], epoch)
    monkeypatch.setattr(state, "disagreements", lambda also=(): [])
    monkeypatch.setattr(state, "all_disagreements", list)
    with pytest.raises(PromiseBroken, match=r"brokers see t-0 in the leader epochs \[5, 6\]"):
        state.check(timeout_s=0.01)
    seen_by(BROKERS[1], 6)
    state.check(timeout_s=0.01)
    assert state.leader_epochs == {("t", 0): 6, ("u", 0): 0, ("lone", 0): 0}


@pytest.mark.parametrize(
    ("kafka", "slow", "tools"),
    [("4.3.1", False, TOOL_SOURCES), ("4.3.1", True, ()), ("2.1.1", False, (log_dirs_tool,))],
)
def test_kafkas_own_programs_are_asked_at_each_step(
    state: StateCheck, monkeypatch: pytest.MonkeyPatch, kafka: str, slow: bool, tools: tuple[Source, ...]
) -> None:
    """They are left out where a disk is slow; before 2.2 kafka-topics is, too, since it cannot ask brokers."""
    vars(state.cluster).update(distribution=fake_distribution(kafka))
    if slow:
        state.disk_slow(BROKERS[1])
    asked: list[Source] = []
    monkeypatch.setattr(state, "disagreements", lambda also=(): [*map(asked.append, also)][:0])
    monkeypatch.setattr(state, "_observe_leaderships", Observation)
    state.check(timeout_s=0.01, also=[metadata_log])
    assert asked == [*tools, metadata_log]


def test_a_program_that_fails_for_a_moment_is_asked_again_and_one_that_goes_on_breaks_a_promise(
    state: StateCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a broker ends meanwhile, the error says so, and not that the tool failed."""
    monkeypatch.setattr(state, "_observe_leaderships", Observation)
    monkeypatch.setattr(state, "_tools", tuple)
    monkeypatch.setattr(state, "all_disagreements", list)
    fails = [1]

    def disagreements(also: object = ()) -> list[str]:
        if fails:
            fails.pop()
            raise ToolFailed("kafka-topics ended with exit code 1: timed out")
        return []

    monkeypatch.setattr(state, "disagreements", disagreements)
    state.check(timeout_s=5)
    monkeypatch.setattr(Deadline, "crowding", Crowding())  # on a crowded machine this would show nothing
    fails += [1] * 10_000
    with pytest.raises(PromiseBroken, match="kafka-topics ended with exit code 1"):
        state.check(timeout_s=0.05)

    def ended() -> None:
        raise PromiseBroken("broker 2 ended by itself")

    monkeypatch.setattr(state.cluster, "check_nodes", ended)
    with pytest.raises(PromiseBroken, match="broker 2 ended by itself"):
        state.check(timeout_s=5)


@pytest.mark.parametrize(
    ("event", "seen", "broken"),
    [
        # The leader of u, broker 1, is to stay, whatever becomes of its followers.
        (lambda state: state.log_dir_failed(DIRS[2, 2]), ("u", 2, 1), True),
        (lambda state: state.log_dir_failed(DIRS[2, 2]), ("u", None, 1), True),
        (lambda state: state.log_dir_failed(DIRS[2, 2]), ("u", 1, 1), False),
        (lambda state: state.log_dir_failed(DIRS[2, 2]), ("u", 2, 0), False),  # a late report of an older epoch
        (lambda state: None, ("u", 2, 1), True),
        (lambda state: None, ("strange", 2, 1), False),
        # Where an event changes the leader, others may lead for a moment.
        (lambda state: state.log_dir_failed(DIRS[1, 2]), ("u", 3, 1), False),
        (lambda state: restarted(state, BROKERS[3]), ("lone", None, 1), False),
        (lambda state: state.reassigning(partition_of("u")), ("u", 3, 1), False),
    ],
)
def test_a_leader_that_should_stay_and_goes_for_a_moment_is_seen(
    state: StateCheck,
    event: Callable[[StateCheck], None],
    seen: tuple[str, int | None, int],
    broken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watcher reports it, although all sources agree again by then.

    If a broker lost its session, the machine was too slow, and the case shows nothing.
    """
    topic, leader, epoch = seen
    state.cluster.journal = journal = Journal(None)
    starved: list[LostSession] = []

    def lost_session(_: object, but: set[int], since: datetime) -> LostSession | None:
        assert since == led_at
        assert 3 not in but  # an event touched it only before all sources last agreed
        return next(iter(starved), None)

    monkeypatch.setattr("suites.state_check.lost_session", lost_session)
    state._disturbed_at[3], led_at = now() - timedelta(seconds=2), now() - timedelta(seconds=1)
    state._led = {key: replace(led, at=led_at) for key, led in state._led.items()}
    event(state)
    journal.write("partition.changed", topic=topic, partition=0, leader=leader, leader_epoch=epoch, isr=[], seen_by=3)
    with pytest.raises(PromiseBroken, match=f"should lead {topic}-0 all the while") if broken else nullcontext():
        state._check_leaders_stayed()
    starved = [LOST] if broken else []
    with pytest.raises(Inconclusive, match="disturbed: broker 2 lost its session") if broken else nullcontext():
        state._check_leaders_stayed()


@pytest.mark.parametrize(
    ("event", "seen", "after_s", "broken"),
    [
        (lambda state, journal: None, ("u", [1, 3], 1), 3, True),
        (lambda state, journal: None, ("u", [1, 2, 3], 1), 3, False),
        (lambda state, journal: None, ("u", [1, 3], 1), 0.5, False),  # a broker has yet to hear of the last change
        (lambda state, journal: None, ("u", [1, 3], 0), 3, False),
        (lambda state, journal: None, ("new", [1, 3], 1), 3, False),
        (lambda state, journal: state.broker_gone(BROKERS[2]), ("u", [1, 3], 1), 3, False),
        (lambda state, journal: state.log_dir_failed(DIRS[2, 1]), ("lone", [], 1), 3, True),
        (lambda state, journal: state.set_cordoned(BROKERS[1], DIRS[1, 1]), ("u", [1, 3], 1), 3, True),
        (lambda state, journal: journal.write("node.paused", node="broker-2"), ("u", [1, 3], 1), 3, False),
        (lambda state, journal: journal.write("node.started", node="broker-3"), ("u", [1, 3], 1), 3, True),
        (lambda state, journal: inject(journal, 2), ("u", [1, 3], 1), 3, False),
        (lambda state, journal: inject(journal, 1), ("u", [1, 3], 1), 3, True),  # the leader's broker is another one
        (lambda state, journal: state.disk_slow(BROKERS[1]), ("u", [1, 3], 1), 3, False),  # unless its disk is slow
        (lambda state, journal: slow_for_a_while(state, BROKERS[1]), ("u", [1, 3], 1), 3, False),
        (lambda state, journal: slow_for_a_while(state, BROKERS[3]), ("u", [1, 3], 1), 3, True),
    ],
)
def test_a_replica_that_nothing_happened_to_stays_in_the_isr(
    state: StateCheck,
    event: Callable[[StateCheck, Journal], object],
    seen: tuple[str, list[int], int],
    after_s: float,
    broken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watcher reports it, although all sources agree again by then."""
    topic, isr, epoch = seen
    state.cluster.journal = journal = Journal(None)
    lost: list[LostSession] = []
    monkeypatch.setattr("suites.state_check.lost_session", lambda *_, **__: next(iter(lost), None))
    led_at = now() - timedelta(seconds=after_s)
    state._take_over_leaderships({key: replace(led, epoch=1, at=led_at) for key, led in state._led.items()})
    event(state, journal)
    journal.write("partition.changed", topic=topic, partition=0, leader=1, leader_epoch=epoch, isr=isr, seen_by=3)
    with breaks_promise(f"should be in the ISR of {topic}-0 all the while; at .* saw the ISR" if broken else None):
        state._check_isrs_stayed()
    if broken:
        lost.append(LOST)
        with pytest.raises(Inconclusive, match="controller-100 had been disturbed: broker 2 lost its session"):
            state._check_isrs_stayed()


def slow_for_a_while(state: StateCheck, broker: Broker) -> None:
    """A disk of a broker was slow."""
    state.disk_slow(broker)
    state.disk_fast_again(broker)


def inject(journal: Journal, broker: int) -> None:
    """A fault of a broker begins."""
    journal.write("fault.injecting", fault="f", target="t", broker=broker, noticed_by=None, node="", explains=[])


def test_a_watcher_that_has_ended_is_an_error(state: StateCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the watcher has ended, that is an error: it could not have seen another leader."""

    def ended() -> None:
        raise HarnessError("the thread that watches has ended")

    monkeypatch.setattr(state.cluster, "check_watched", ended)
    with pytest.raises(HarnessError, match="the thread that watches has ended"):
        state._check_leaders_stayed()


def test_only_a_broker_with_a_slow_disk_may_stay_silent(state: StateCheck) -> None:
    """KIP-112 promises no answer of such a broker: the journal notes it, and the other answers count."""

    def ask(broker: Broker) -> int:
        if broker.id in silent:
            raise NoAnswer(f"{broker.id} gave no answer")
        return broker.id

    state.cluster.journal = journal = Journal(None)
    state.disk_slow(BROKERS[2])
    silent: set[int] = set()
    assert [told for _, told in state.ask_each_broker(ask)] == [1, 2, 3]
    silent = {2}
    assert [told for _, told in state.ask_each_broker(ask)] == [1, 3]
    noted = [e["broker"] for e in lines_of(journal, "broker.silent")]
    assert noted == [2]
    silent = {3}
    with pytest.raises(NoAnswer, match="3 gave no answer"):
        list(state.ask_each_broker(ask))
    silent = {2}
    state.disk_fast_again(BROKERS[2])
    with pytest.raises(NoAnswer, match="2 gave no answer"):
        list(state.ask_each_broker(ask))


LOST = LostSession(text="broker 2 lost its session", at=now(), held=("controller-100",))
EXPIRED = "[ZooKeeperClient Kafka server] Session expired."
TIMED_OUT = "Fencing broker 3 at epoch 9 because its session has timed out."


def undisturbed(_: StateCheck) -> None:
    """Nothing happens to broker 3."""


def resumed(state: StateCheck) -> None:
    """Broker 3 is paused; all sources agree on that; then it is resumed."""
    state.broker_gone(BROKERS[3])
    state._agreed_at = now()
    state.broker_back(BROKERS[3])


def restarted_and_agreed(state: StateCheck) -> None:
    restarted(state, BROKERS[3])
    state._agreed_at = now()


@pytest.mark.parametrize(
    ("says", "after_s", "event", "meaning"),
    [
        (EXPIRED, 1, undisturbed, Inconclusive),
        (TIMED_OUT, 1, undisturbed, Inconclusive),
        (TIMED_OUT, 1, restarted_and_agreed, Inconclusive),
        (TIMED_OUT, -1, undisturbed, PromiseBroken),  # before all sources last agreed
        (EXPIRED, -1, undisturbed, PromiseBroken),
        (TIMED_OUT, 1, lambda state: restarted(state, BROKERS[3]), PromiseBroken),
        (EXPIRED, 1, resumed, PromiseBroken),
        ("all is well", 1, undisturbed, PromiseBroken),
    ],
)
def test_another_leader_is_the_machines_where_a_broker_lost_its_session(
    state: StateCheck,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    after_s: int,
    event: Callable[[StateCheck], None],
    meaning: type[Exception],
) -> None:
    """This holds for a broker that no event touched, and only where nothing but leaders and leader epochs differ.

    A session that was lost before all sources last agreed excuses nothing.
    """
    monkeypatch.setattr("harness.cluster.session_loss.stall_before", lambda *_: None)  # as if nothing had measured it
    log = BrokerLog(tmp_path / "broker.log")
    at = state._agreed_at + timedelta(seconds=after_s)
    log.path.write_text(f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}] INFO {says} (kafka)\n")
    state.cluster.brokers = [fake_broker(3, log=log, node=fake_node("broker-3", log=log))]
    state.cluster.quorum_nodes = []
    event(state)
    of_leaders = (
        "broker 1 sees t-0: leader epoch 5 instead of 4, though nothing has touched it",
        "broker 1 sees t-0: leader 2 instead of 1",
    )
    of_more = (
        "broker 1 sees t-0: leader None instead of 1",
        "broker 1 sees t-0: leader 2 instead of 1, isr {2} instead of {1, 2}",
        "broker 1 sees t-0: replicas (2, 1) instead of (1, 2), leader 2 instead of 1",
    )
    for differ in (*([each] for each in of_leaders + of_more), list(of_leaders), [of_leaders[0], of_more[0]]):
        monkeypatch.setattr(state, "disagreements", lambda also=(), found=differ: found)
        monkeypatch.setattr(state, "all_disagreements", lambda found=differ: found)
        with pytest.raises(meaning if set(differ) <= set(of_leaders) else PromiseBroken, match=re.escape(differ[0])):
            state.check(timeout_s=0.01)


@pytest.mark.parametrize(
    ("leader", "outcome"),
    [(3, nullcontext()), (1, nullcontext()), (2, pytest.raises(PromiseBroken, match="broker 2 leads t-0"))],
)
def test_after_healing_only_a_member_of_the_last_isr_may_lead(
    state: StateCheck,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leader: int,
    outcome: AbstractContextManager[object],
) -> None:
    """The log dir of t's leader, broker 2, had failed. Nothing is taken over from Kafka that the rules forbid."""
    monkeypatch.setattr(state, "check", lambda _timeout_s: None)
    state.log_dir_failed(DIRS[2, 1])
    of_t = replace(partition_state("t", 2, 3, 1), leader=leader, leader_epoch=1)
    seen = cluster_state(of_t, partition_state("u", 1, 2, 3), partition_state("lone", 3))
    monkeypatch.setattr(state.cluster, "describe", lambda: seen, raising=False)
    for broker in BROKERS.values():
        monkeypatch.setattr(broker, "describe_cluster", lambda: seen, raising=False)
        monkeypatch.setattr(broker, "log", BrokerLog(tmp_path / "broker.log"), raising=False)
    with outcome as raised:
        state.recovered()
    if not raised:
        assert state.expected("t") == expect(leader, {1, 2, 3}, set(), 2, 3, 1)


def test_a_leader_that_moves_away_is_followed_by_the_first_of_the_new_replicas(state: StateCheck) -> None:
    state.reassigned(partition_of("t"), [DIRS[3, 2], DIRS[1, 1]])
    assert state.expected("t") == expect(3, {3, 1}, set(), 3, 1)
    state.log_dir_failed(DIRS[3, 2])
    assert state.expected("t") == expect(1, {1}, {3}, 3, 1)


def test_a_leader_that_is_still_a_replica_stays(state: StateCheck) -> None:
    state.reassigned(partition_of("t"), [DIRS[1, 2], DIRS[2, 2]])
    assert state.expected("t") == expect(2, {1, 2}, set(), 1, 2)


def test_a_replica_that_left_a_log_dir_no_longer_goes_with_it(state: StateCheck) -> None:
    state.reassigned(partition_of("lone"), [DIRS[3, 2]])
    state.log_dir_failed(DIRS[3, 1])
    assert state.expected("lone") == expect(3, {3}, set(), 3)


def test_a_replica_that_moved_goes_with_its_new_log_dir(state: StateCheck) -> None:
    state.moved(partition_of("lone"), DIRS[3, 2])
    state.log_dir_failed(DIRS[3, 1])
    assert state.expected("lone") == expect(3, {3}, set(), 3)
    state.log_dir_failed(DIRS[3, 2])
    assert state.expected("lone") == expect(None, None, {3}, 3)


def test_a_broker_that_is_back_with_good_log_dirs_is_in_all_isrs(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[2, 1])
    state.broker_gone(BROKERS[2])
    state.log_dirs_healed(BROKERS[2])
    assert state.expected("t") == expect(3, {1, 2, 3}, set(), 2, 3, 1)
    assert state.expected("u") == expect(1, {1, 2, 3}, set(), 1, 2, 3)


@pytest.mark.parametrize(
    ("place", "outcome"),
    [
        ((2, 1), nullcontext()),
        ((2, 2), nullcontext()),
        (None, pytest.raises(PromiseBroken, match="in the ISR of t-0 and has it in no log dir")),
    ],
)
def test_what_was_on_a_lost_disk_is_made_anew_by_the_same_broker(
    state: StateCheck,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[int, int] | None,
    outcome: AbstractContextManager[object],
) -> None:
    monkeypatch.setattr(BROKERS[2], "log_dir_of", lambda *_: place and DIRS[place])
    state.log_dir_failed(DIRS[2, 1])
    state.broker_gone(BROKERS[2])
    with outcome:
        state.replicas_recreated(DIRS[2, 1])
        assert place is not None
        assert ("t", 0) in state.replicas_in(DIRS[place])
        assert state.expected("t") == expect(3, {1, 2, 3}, set(), 2, 3, 1)
        assert state.expected("u") == expect(1, {1, 2, 3}, set(), 1, 2, 3)


def test_another_assignment_than_before_is_seen_after_a_disk_was_replaced(
    state: StateCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expected assignment stays the one from before; it is not taken from Kafka."""
    monkeypatch.setattr(BROKERS[3], "log_dir_of", lambda *_: DIRS[3, 1])
    state.log_dir_failed(DIRS[3, 1])
    state.broker_gone(BROKERS[3])
    state.replicas_recreated(DIRS[3, 1])
    elsewhere = partition_state("lone", 1)
    assert state.expected("lone").disagreement(elsewhere) == (
        "replicas (1,) instead of (3,), leader 1 instead of 3, isr {1} instead of {3}"
    )


def test_a_single_replica_becomes_leaderless(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[3, 1])
    assert state.expected("lone") == expect(None, None, {3}, 3)


def test_offline_is_the_union_of_failed_dirs_and_dead_brokers(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[2, 1])
    state.broker_gone(BROKERS[3])
    assert state.expected("t") == expect(1, {1}, {2, 3}, 2, 3, 1)
    assert state.expected("u") == expect(1, {1, 2}, {3}, 1, 2, 3)


def test_a_broker_that_no_other_reaches_leads_alone_and_follows_none(state: StateCheck) -> None:
    state.broker_isolated(BROKERS[2])
    assert state.expected("t") == expect(2, {2}, set(), 2, 3, 1)
    assert state.expected("u") == expect(1, {1, 3}, set(), 1, 2, 3)
    assert state.expected("lone") == expect(3, {3}, set(), 3)
    state.isolation_ended()
    assert state.expected("t") == expect(2, {1, 2, 3}, set(), 2, 3, 1)
    assert state.expected("u") == expect(1, {1, 2, 3}, set(), 1, 2, 3)


def test_when_all_others_die_the_wounded_leads_what_is_on_its_good_dir(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[2, 1])
    state.broker_gone(BROKERS[1], BROKERS[3])
    assert state.expected("t") == expect(None, None, {1, 2, 3}, 2, 3, 1)
    assert state.expected("u") == expect(2, {2}, {1, 3}, 1, 2, 3)


def test_a_broker_back_rejoins_where_its_dir_is_good_and_takes_no_leadership(state: StateCheck) -> None:
    state.broker_gone(BROKERS[2])
    state.log_dir_failed(DIRS[2, 1])
    state.broker_back(BROKERS[2])
    assert state.expected("t") == expect(3, {3, 1}, {2}, 2, 3, 1)
    assert state.expected("u") == expect(1, {1, 2, 3}, set(), 1, 2, 3)


def test_who_led_last_leads_again_when_it_is_back(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[3, 1])
    state.broker_gone(BROKERS[3])
    state.broker_back(BROKERS[3])
    assert state.expected("lone") == expect(None, None, {3}, 3)
    state.broker_gone(BROKERS[3])
    state.log_dirs_healed(BROKERS[3])
    assert state.expected("lone") == expect(3, {3}, set(), 3)
    assert state.expected("t") == expect(2, {2, 3, 1}, set(), 2, 3, 1)


def test_who_was_not_in_the_last_isr_does_not_lead_when_it_is_back(state: StateCheck) -> None:
    state.broker_gone(BROKERS[1], BROKERS[2], BROKERS[3])
    state.broker_back(BROKERS[1])
    assert state.expected("t") == expect(None, None, {2, 3}, 2, 3, 1)
    state.broker_back(BROKERS[3])
    assert state.expected("t") == expect(3, {3}, {2}, 2, 3, 1)


@pytest.mark.parametrize(("mode", "stays"), [(Mode.ZK, {("t", 0)}), (Mode.KRAFT, set())])
def test_a_replica_that_is_moved_off_a_failed_dir_leaves_its_log_there(
    state: StateCheck, mode: Mode, stays: set[tuple[str, int]]
) -> None:
    """ZooKeeper mode keeps the log after the log dir is back; KRaft removes it."""
    state.cluster.spec = ClusterSpec(mode=mode)
    state.log_dir_failed(DIRS[2, 1])
    state.reassigned(partition_of("t"), [DIRS[3, 1], DIRS[1, 1]])
    assert state.expected("t") == expect(3, {3, 1}, set(), 3, 1)
    assert state.left_behind_in(DIRS[2, 1]) == {("t", 0)}
    state.log_dirs_healed(BROKERS[2])
    assert state.left_behind_in(DIRS[2, 1]) == stays


@pytest.mark.parametrize(
    "back", [lambda state: state.log_dirs_healed(BROKERS[2]), lambda state: state.replicas_recreated(DIRS[2, 1])]
)
@pytest.mark.parametrize(("mode", "counted"), [(Mode.ZK, {("t", 0)}), (Mode.KRAFT, set())])
def test_a_replica_on_a_failed_dir_is_counted_though_its_topic_is_deleted(
    state: StateCheck, mode: Mode, counted: set[tuple[str, int]], back: Callable[[StateCheck], None]
) -> None:
    """In ZooKeeper mode a broker counts it until the log dir is back, or an empty disk in its place."""
    state.cluster.spec = ClusterSpec(mode=mode)
    state.log_dir_failed(DIRS[2, 1])
    state.remove_topic(topic_of("t"))
    assert ("t", 0) not in state.partitions
    assert state.undeleted_in(DIRS[2, 1]) == counted
    assert state.undeleted_in(DIRS[1, 1]) == set()
    assert offline_replicas(state, BROKERS[2], cluster_state()) == len(counted)
    back(state)
    assert state.undeleted_in(DIRS[2, 1]) == set()


def test_a_replica_that_is_kept_is_where_its_broker_has_it(state: StateCheck) -> None:
    state.replica_kept(partition_of("lone"), DIRS[1, 2])
    assert [*compare_folders(state, DIRS[1, 2], ["u-0", "lone-0"])] == []
    assert [*compare_folders(state, DIRS[1, 2], ["u-0"])] == [f"the disk has no lone-0 in {DIRS[1, 2]}"]


def test_a_cancelled_move_leaves_the_replicas_in_another_order(state: StateCheck) -> None:
    state.reassignment_cancelled(partition_of("u"), [BROKERS[3], BROKERS[2]])
    assert state.expected("u") == expect(1, {1, 2, 3}, set(), 3, 2, 1)


def test_a_broker_that_is_made_the_preferred_leader_leads_and_comes_first(state: StateCheck) -> None:
    state.led_by_preferred(partition_of("u"), BROKERS[3])
    assert state.expected("u") == expect(3, {1, 2, 3}, set(), 3, 1, 2)
    assert ("u", 0) not in state.leader_epochs


def test_a_new_replica_on_a_failed_dir_is_a_broken_promise(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[2, 1])
    with pytest.raises(PromiseBroken, match="which has failed"):
        state.reassigned(partition_of("lone"), [DIRS[2, 1]])


def test_a_replica_that_is_taken_to_be_in_a_failed_dir_is_offline_and_breaks_no_promise(state: StateCheck) -> None:
    state.log_dir_failed(DIRS[1, 1])
    with pytest.raises(PromiseBroken, match="was placed on d1 of broker 1, which has failed"):
        state.moved(partition_of("u"), DIRS[1, 1])
    state.assumed_on_failed_dir(partition_of("u"), DIRS[1, 1])
    assert state.expected("u") == expect(2, {2, 3}, {1}, 1, 2, 3)
    state.broker_gone(BROKERS[1])
    state.moved(partition_of("u"), DIRS[1, 2])
    state.log_dirs_healed(BROKERS[1])
    assert state.expected("u") == expect(2, {1, 2, 3}, set(), 1, 2, 3)
    assert state.replicas_in(DIRS[1, 2]) == {("u", 0)}


def new_topic(log_dir_on: Callable[[Broker], LogDir], *replicas: int) -> Topic:
    """The topic new, with one partition that has these replicas."""
    new = fake(
        Partition,
        topic="new",
        index=0,
        describe=partial(partition_state, "new", *replicas),
        log_dir_on=log_dir_on,
    )
    return fake(Topic, name="new", partitions=(new,))


def test_what_is_learnt_half_is_not_learnt(state: StateCheck) -> None:
    """A topic is not added while a broker gives no answer for its replica's log dir; it can be added later."""
    answers: list[LogDir | NoAnswer] = [DIRS[1, 1], NoAnswer("gone"), DIRS[1, 1], DIRS[2, 1]]

    def log_dir_on(_broker: Broker) -> LogDir:
        answer = answers.pop(0)
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    topic = new_topic(log_dir_on, 1, 2)
    with pytest.raises(NoAnswer):
        state.add_topic(topic)
    assert ("new", 0) not in state.partitions
    state.add_topic(topic)
    assert ("new", 0) in state.replicas_in(DIRS[1, 1]) & state.replicas_in(DIRS[2, 1])


def test_an_isr_that_is_not_full_yet_must_become_so(state: StateCheck) -> None:
    state.dead.add(1)
    state.add_partition(replace(partition_state("new", 3, 2, 1), isr=(3,)), {id: DIRS[id, 1] for id in (3, 2, 1)})
    assert state.expected("new") == expect(3, {3, 2}, {1}, 3, 2, 1)


def test_a_cordon_changes_nothing_of_what_is_there(state: StateCheck) -> None:
    before = dict(state.partitions)
    state.set_cordoned(BROKERS[2], DIRS[2, 1], DIRS[2, 2])
    assert state.partitions == before
    assert state.replicas_in(DIRS[2, 1]) == {("t", 0)}


def test_a_new_replica_on_a_cordoned_dir_is_a_broken_promise(state: StateCheck) -> None:
    state.set_cordoned(BROKERS[3], DIRS[3, 1])
    with pytest.raises(PromiseBroken, match="was placed on d1 of broker 3, which is cordoned"):
        state.add_topic(new_topic(lambda _: DIRS[3, 1], 3))


def test_a_new_replica_beside_a_cordoned_dir_is_none(state: StateCheck) -> None:
    state.set_cordoned(BROKERS[3], DIRS[3, 1])
    state.add_topic(new_topic(lambda _: DIRS[3, 2], 3))
    assert state.replicas_in(DIRS[3, 2]) == {("u", 0), ("new", 0)}


def test_a_topic_is_held_only_against_the_cordons_that_it_was_created_under(state: StateCheck) -> None:
    state.set_cordoned(BROKERS[3], DIRS[3, 1])
    state.add_topic(new_topic(lambda _: DIRS[3, 1], 3), cordoned=frozenset())
    assert state.replicas_in(DIRS[3, 1]) == {("t", 0), ("lone", 0), ("new", 0)}


@pytest.mark.parametrize(("there", "fits"), [((1, 1), False), ((1, 2), True)])
def test_a_replica_is_not_reassigned_onto_a_cordoned_dir(state: StateCheck, there: tuple[int, int], fits: bool) -> None:
    state.set_cordoned(BROKERS[1], DIRS[1, 1])
    if fits:
        state.reassigned(partition_of("lone"), [DIRS[there]])
    else:
        with pytest.raises(PromiseBroken, match="which is cordoned"):
            state.reassigned(partition_of("lone"), [DIRS[there]])


def test_a_replica_may_stay_in_a_cordoned_dir_when_others_move(state: StateCheck) -> None:
    state.set_cordoned(BROKERS[2], DIRS[2, 1])
    state.reassigned(partition_of("t"), [DIRS[2, 1], DIRS[1, 1]])
    assert state.expected("t") == expect(2, {1, 2}, set(), 2, 1)


def test_a_replica_is_not_moved_into_a_cordoned_dir(state: StateCheck) -> None:
    state.set_cordoned(BROKERS[3], DIRS[3, 2])
    with pytest.raises(PromiseBroken, match="which is cordoned"):
        state.moved(partition_of("lone"), DIRS[3, 2])


def test_a_broker_is_uncordoned_for_itself(state: StateCheck) -> None:
    state.set_cordoned(BROKERS[1], DIRS[1, 1])
    state.set_cordoned(BROKERS[2], DIRS[2, 1], DIRS[2, 2])
    state.set_cordoned(BROKERS[2], DIRS[2, 2])
    state.set_cordoned(BROKERS[1])
    assert state.cordoned == {DIRS[2, 2]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"leader": None}, "leader None instead of 2"),
        ({"isr": (2, 3)}, "isr {2, 3} instead of {1, 2, 3}"),
        ({"replicas": (3, 2, 1)}, "replicas (3, 2, 1) instead of (2, 3, 1)"),
        ({"offline_replicas": (1,)}, "offline_replicas {1} instead of set()"),
    ],
)
def test_every_difference_is_named(state: StateCheck, change: dict[str, Any], says: str) -> None:
    seen = replace(partition_state("t", 2, 3, 1), **change)
    assert state.expected("t").disagreement(seen) == says


def test_the_order_of_an_isr_says_nothing(state: StateCheck) -> None:
    seen = replace(partition_state("t", 2, 3, 1), isr=(1, 2, 3))
    assert state.expected("t").disagreement(seen) is None
