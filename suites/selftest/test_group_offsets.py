"""What a group coordinator has of acknowledged commits is compared with them, by a fake coordinator's answers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta

import pytest

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.topic import Partition
from harness.crowding import Crowding, Deadline
from harness.journal import now
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.security import Bootstrap
from harness.kafka.versions import Mode
from suites import group_offsets
from suites.group_offsets import AckedCommit, MemberlessGroup, acked_while_held
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import fake, fake_broker, fake_cluster, partition_of, partition_state

UNSTABLE = Refused("the offset", "UNSTABLE_OFFSET_COMMIT")


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a crowded machine, an answer that does not come shows nothing."""
    monkeypatch.setattr(Deadline, "crowding", Crowding())


class FakeCoordinator:
    """Takes commits, and answers with the offset that it is told to have.

    :param stable: its answer to a request for a stable offset
    :param others: the other live brokers
    :param offline: the brokers whose replica of its log is offline
    """

    def __init__(
        self,
        stable: int | Refused | None = None,
        others: Sequence[Broker] = (),
        mode: Mode = Mode.KRAFT,
        offline: tuple[int, ...] = (),
    ) -> None:
        self.has: int | None = None
        self._others, self._mode, self._offline = list(others), mode, offline
        self._stable = stable
        with socket.socket() as unused:  # nobody listens there any more
            unused.bind(("127.0.0.1", 0))
            self._port = unused.getsockname()[1]
        self.log = self._log()

    def commit(self, _group: str, _topic: str, _partition: int, offset: int) -> None:
        self.has = offset

    def committed(self, _group: str, _topic: str, _partition: int, *, stable: bool = False) -> int | None:
        if stable and isinstance(self._stable, Refused):
            raise self._stable
        return self._stable if stable and not isinstance(self._stable, Refused) else self.has

    def _log(self) -> Partition:
        broker = fake_broker(
            admin=fake(Admin, commit_offset=self.commit, committed_offset=self.committed),
            port=self._port,
            bootstrap=Bootstrap(addresses=f"127.0.0.1:{self._port}"),
        )
        cluster = fake_cluster("3.9.2", self._mode, live_brokers=lambda: [broker, *self._others])
        state = partition_state("__consumer_offsets", 1, 2, offline=self._offline)
        return fake(
            Partition,
            cluster=cluster,
            topic="__consumer_offsets",
            index=0,
            leader=lambda: broker,
            describe=lambda: state,
        )


@pytest.mark.parametrize(
    ("has", "unanswered", "broken"),
    [
        (7, False, None),
        (6, False, r"acknowledged; last seen: \[6\]"),
        (None, False, r"acknowledged; last seen: \[None\]"),
        (8, False, r"acknowledged; last seen: \[8\]"),  # nobody has committed it
        (7, True, None),
        (8, True, None),  # the coordinator wrote it, and could not answer
        (6, True, r"or an offset up to 8, which was not answered; last seen: \[6\]"),
        (9, True, r"last seen: \[9\]"),
    ],
)
def test_a_coordinator_must_have_what_was_acked_or_what_was_not_answered(
    monkeypatch: pytest.MonkeyPatch, has: int | None, unanswered: bool, broken: str | None
) -> None:
    monkeypatch.setattr(timeouts, "LOG_DIR_FAILURE_S", 0.01)
    coordinator = FakeCoordinator()
    group = MemberlessGroup("g", coordinator.log, partition_of("orders"))
    group.commit(6)
    group.commit(7)
    if unanswered:
        with group.committing():
            pass
    coordinator.has = has
    with breaks_promise(broken):
        group.check_kept()


ANSWERS = "waited .* for broker 2 to answer NOT_COORDINATOR for the group g of broker 1; last seen: None"


@pytest.mark.parametrize(
    ("error", "mode", "offline", "broken"),
    [
        ("NOT_COORDINATOR", Mode.KRAFT, (), None),
        ("NOT_COORDINATOR", Mode.KRAFT, (2,), None),
        (None, Mode.KRAFT, (), ANSWERS),
        (None, Mode.KRAFT, (2,), ANSWERS),
        ("COORDINATOR_LOAD_IN_PROGRESS", Mode.KRAFT, (), "last seen: COORDINATOR_LOAD_IN_PROGRESS"),
        # Only this is known: with ZooKeeper, the broker whose log dir has failed answers.
        (None, Mode.ZK, (2,), None),
        (None, Mode.ZK, (), ANSWERS),
        ("NOT_COORDINATOR", Mode.ZK, (2,), "no longer deviates"),
        ("COORDINATOR_LOAD_IN_PROGRESS", Mode.ZK, (2,), "last seen: COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_only_the_coordinator_answers_for_its_group(
    monkeypatch: pytest.MonkeyPatch, error: str | None, mode: Mode, offline: tuple[int, ...], broken: str | None
) -> None:
    monkeypatch.setattr(group_offsets, "_RESIGNS_S", 0.01)

    def answer(_group: str, _topic: str, _partition: int) -> int:
        if error is None:
            return 6
        raise Refused("the offset", error)

    former = fake_broker(2, admin=fake(Admin, committed_offset=answer))
    coordinator = FakeCoordinator(others=[former], mode=mode, offline=offline)
    group = MemberlessGroup("g", coordinator.log, partition_of("orders"))
    group.commit(6)
    with breaks_promise(broken):
        group.check_kept()


@pytest.mark.parametrize(
    ("stable", "has", "pending", "offset"),
    [
        (UNSTABLE, 5, None, "timed out"),
        (UNSTABLE, 6, "has the offset 6 of orders-0 instead of 5", "timed out"),
        (
            5,
            5,
            "answers . for the offset of orders-0 instead of UNSTABLE_OFFSET_COMMIT",
            None,
        ),  # it has forgotten the open transaction
        (
            6,
            5,
            "answers . for the offset of orders-0 instead of UNSTABLE_OFFSET_COMMIT",
            "has the offset 6 of orders-0 instead of 5",
        ),
        (Refused("the offset", "NOT_COORDINATOR"), 5, "waited .* NOT_COORDINATOR", "timed out"),
    ],
)
def test_offsets_of_a_transaction_count_as_soon_as_it_is_committed(
    monkeypatch: pytest.MonkeyPatch, stable: int | Refused, has: int, pending: str | None, offset: str | None
) -> None:
    monkeypatch.setattr(timeouts, "PROGRESS_S", 0.01)
    coordinator = FakeCoordinator(stable)
    coordinator.has = has
    group = MemberlessGroup("g", coordinator.log, partition_of("orders"))
    with breaks_promise(pending):
        group.check_pending(5)
    with breaks_promise("waited 0.0 s" if offset == "timed out" else offset):
        group.check_offset(5)


@pytest.mark.parametrize(
    ("sent", "acked", "partition", "named"),
    [
        (10.1, 10.2, 0, True),
        (9.9, 10.2, 0, False),  # the followers may have fetched it
        (10.1, 11.1, 0, False),
        (10.1, 10.2, 1, False),
    ],
)
def test_a_commit_that_is_acked_without_the_followers_is_named(
    sent: float, acked: float, partition: int, named: bool
) -> None:
    log, begin = FakeCoordinator().log, now()
    at = [begin + timedelta(seconds=seconds) for seconds in (10, 11, sent, acked)]
    log.cluster.journal.write(
        "followers.held",
        brokers=[2, 3],
        topic=log.topic,
        partitions=[partition],
        held_at=at[0].isoformat(),
        until=at[1].isoformat(),
    )
    found = acked_while_held(log, [AckedCommit(offset=7, sent_at=at[2], acked_at=at[3])])
    assert bool(found) == named
    assert not named or found.startswith("7, and this was acknowledged while followers in the ISR of __consumer_off")
