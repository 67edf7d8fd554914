"""Shows bugs of Kafka in moves between log dirs (KIP-113), one scenario each: invalid on builds with the bug.

Three bugs are declared deviations: KAFKA-19458, since the last build with ZooKeeper has it, and KAFKA-20961 and
KAFKA-17375, since all builds have them. KNOWN_BUGS.md has the builds. A throttle holds each move until the event that
the bug needs, or nothing else happens, so no scenario is a race.
"""

from __future__ import annotations

from faults.base import injected
from faults.broker import BrokerPaused, BrokerStopped
from faults.targets import follower_of, leader_of, other_dir
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.timeouts import CLEANING_S, RECOVERY_S, REQUEST_S
from harness.waiting import await_until
from suites.checks import promised
from suites.deviations import CLEANING_STOPS, EPOCHS_LEFT_BEHIND, LARGE_RECORD_NOT_COPIED
from suites.known_bugs.patience import patience_s, patience_to_reassign
from suites.log_cleaning import COMPACTED, check_logs_small, cleaner_scenario, stays_large, write_outdated_records
from suites.moves import SMALL_FETCHES, await_moved, begin_move, check_under_way, finish_move, moves_held, not_moved
from suites.on_disk import check_no_leftovers
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import write_untracked_records

DELETED_S = 40.0
# Seconds after which a move that started again deletes what it had copied. The move must have ended by then.
DELETE_DELAY_S = 5
MOVED_S = 20.0  # at most four megabytes, on an idle cluster
SMALLEST_SEGMENT = 1 << 20
"""The lowest value of segment.bytes since Kafka 4.0."""
NEITHER_ENDED = r"""last seen: \['its future replica in .* is 1 records behind', "Reassignment\("""
"""The error if neither the move nor the reassignment has ended."""


def move_amid_new_leader(cluster: Cluster, topic: Topic) -> None:
    """A partition's leader changes while a replica moves: the move ends all the same."""
    state = StateCheck(cluster, topic)
    leader, mover = leader_of(topic[0]), follower_of(topic[0])
    there = other_dir(topic[0].log_dir_on(mover))
    with moves_held(mover):
        begin_move(topic[0], there)
        with injected(BrokerStopped(leader)):
            state.broker_gone(leader)
            state.check()
        check_under_way(topic[0], there)
    await_moved(topic[0], there, timeout_s=MOVED_S)
    state.moved(topic[0], there)
    state.broker_back(leader)
    state.check(RECOVERY_S)


@scenario(
    "known-bugs/new-leader-amid-move",
    kip=113,
    plan="a leader changes while a replica is moved: the move goes on",
    issue="KAFKA-9654",
    judged=False,
    overrides=SMALL_FETCHES,
)
def test_new_leader_amid_move(cluster: Cluster) -> None:
    """The leader changes while a follower's replica moves between log dirs: the move ends."""
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, 1000, size=1000)
    move_amid_new_leader(cluster, orders)


@cleaner_scenario(
    "known-bugs/cleaned-after-new-leader-amid-move",
    plan="a leader changes while a replica is moved: the log goes on being cleaned",
    issue="KAFKA-16709",
    judged=False,
)
def test_cleaned_after_new_leader_amid_move(cluster: Cluster) -> None:
    """The leader changes while a follower's replica moves between log dirs: its log is cleaned as before the move."""
    accounts = cluster.create_topic("accounts", replicas=3, configs=COMPACTED)
    write_outdated_records(accounts)
    check_logs_small(accounts)
    move_amid_new_leader(cluster, accounts)
    write_outdated_records(accounts)
    check_logs_small(accounts)


@cleaner_scenario(
    "known-bugs/move-called-off",
    plan="a move is called off: the log goes on being cleaned",
    issue="KAFKA-19458",
    judged=False,
    deviations=(CLEANING_STOPS,),
)
def test_move_called_off(cluster: Cluster) -> None:
    """The move of a replica is cancelled: the replica stays, and its log is cleaned as before the move."""
    accounts = cluster.create_topic("accounts", replicas=3, configs=COMPACTED)
    write_outdated_records(accounts)
    check_logs_small(accounts)
    mover = follower_of(accounts[0])
    here = accounts[0].log_dir_on(mover)
    with moves_held(mover):
        begin_move(accounts[0], other_dir(here))
        accounts[0].move_to(here)
        await_moved(accounts[0], here, timeout_s=MOVED_S)
    write_outdated_records(accounts)
    check_logs_small(accounts, on=cluster.others(mover))
    with promised(cluster, unless=CLEANING_STOPS, seen=stays_large(accounts, mover)):
        check_logs_small(accounts, on=[mover], timeout_s=CLEANING_S / 2)


@scenario(
    "known-bugs/records-deleted-amid-move",
    kip=113,
    plan="a replica is moved: nothing of it is left behind",
    issue="KAFKA-16424",
    judged=False,
    overrides=SMALL_FETCHES | {"log.segment.delete.delay.ms": f"{DELETE_DELAY_S}000"},
)
def test_records_deleted_amid_move(cluster: Cluster) -> None:
    """Records are deleted after a move has copied them: the move starts again, and its old segments are deleted."""
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, 1000, size=1000)
    mover = follower_of(orders[0])  # a leader would answer only after its future replica has deleted them, too
    there = other_dir(orders[0].log_dir_on(mover))
    began = now()
    with moves_held(mover):
        begin_move(orders[0], there, copying=1000)
        orders[0].delete_records(before=1000)
        check_under_way(orders[0], there)
    await_moved(orders[0], there, timeout_s=MOVED_S)
    moved_at = now()
    again = mover.log.first(r"orders-0.* Deleting segments as part of log truncation", since=began)
    if again is None or (moved_at - again.at).total_seconds() >= DELETE_DELAY_S:
        how = "did not start again" if again is None else f"took longer than {DELETE_DELAY_S} s after it started again"
        raise Inconclusive(f"the move of orders-0 into {there} {how}, so it left nothing that could stay")
    check_no_leftovers(cluster, {"orders"}, timeout_s=DELETED_S)


@scenario(
    "known-bugs/idle-after-move",
    kip=113,
    plan="a leader's replica is moved, and nothing is written: its follower joins the ISR",
    issue="KAFKA-20961",
    judged=False,
    deviations=(EPOCHS_LEFT_BEHIND,),
)
def test_idle_after_move(cluster: Cluster) -> None:
    """Both replicas have led, the leader's one moves, and nothing is written: the other replica rejoins the ISR."""
    orders = cluster.create_topic("orders", replicas=2)
    state = StateCheck(cluster, orders)
    write_untracked_records(orders, 10)
    first, second = leader_of(orders[0]), follower_of(orders[0])
    with injected(BrokerStopped(first)):
        state.broker_gone(first)
        state.check()
    state.broker_back(first)
    enough_s = patience_s(lambda: state.check(RECOVERY_S))  # it rejoins the ISR, as the other broker should later
    there = other_dir(orders[0].log_dir_on(first))
    with injected(BrokerPaused(second)):  # a broker that is stopped forgets leader epochs without records
        state.broker_gone(second)
        state.check()
        orders[0].move_to(there)
        finish_move(state, orders[0], there)
    state.broker_back(second)
    with promised(cluster, unless=EPOCHS_LEFT_BEHIND, seen=alone_in_isr(orders[0], first)) as outcome:
        state.check(enough_s)
    if outcome.deviates:
        write_untracked_records(orders, 1)
        state.check()


def alone_in_isr(partition: Partition, broker: Broker) -> str:
    """A regular expression for the error of a state check if a replica is missing in the ISR, and nothing else differs.

    :param broker: the only one in the ISR
    """
    differs = rf"[^;'\[\]]+ {partition}: isr \{{{broker.id}\}} instead of \{{\d, \d\}}"
    more = rf"(?:{differs}|the MBeans of {broker} say UnderReplicatedPartitions 1 instead of 0)"
    return rf"last seen: \['{differs}'(, '{differs}')*\](; besides: {more}(; {more})*)?$"


def await_copied_everywhere(partition: Partition, moved_to: LogDir, *, timeout_s: float) -> None:
    """Wait until the move into this log dir and all reassignments have ended.

    :raises PromiseBroken: they do not end
    """

    def unfinished() -> list[str]:
        move = not_moved(partition, moved_to)
        return [*([move] if move else []), *map(str, partition.cluster.reassignments())]

    await_until(
        unfinished,
        lambda left: not left,
        timeout_s=timeout_s,
        what=f"the move of {partition} into {moved_to} and its reassignment to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


@scenario(
    "known-bugs/large-record-moved",
    kip=113,
    plan="a replica is moved and reassigned: it has a record that is larger than the present segment size",
    issue="KAFKA-17375",
    judged=False,
    floors=NO_FAULT,
    deviations=(LARGE_RECORD_NOT_COPIED,),
)
def test_large_record_moved(cluster: Cluster) -> None:
    """segment.bytes falls below the size of a written record: a move and a reassignment of its partition end."""
    orders = cluster.create_topic("orders", replicas=2, configs={"max.message.bytes": f"{4 * SMALLEST_SEGMENT}"})
    state = StateCheck(cluster, orders)
    enough_s = patience_to_reassign(state, orders[0])
    write_untracked_records(orders, 1, size=2 * SMALLEST_SEGMENT)
    orders.configure({"segment.bytes": f"{SMALLEST_SEGMENT}"})
    leader, mover = leader_of(orders[0]), follower_of(orders[0])
    [spare] = cluster.others(leader, mover)
    here = orders[0].log_dir_on(mover)

    def begin() -> None:
        cluster.reassign(orders[0], [leader, mover, spare])
        await_until(  # then the mover knows the topic's configs, too
            lambda: spare.id in orders[0].describe(mover).replicas,
            timeout_s=REQUEST_S,
            what=f"{mover} to know the reassignment of {orders}",
            retry_on=(NoAnswer,),
            failure=Inconclusive,
        )
        orders[0].move_to(other_dir(here))

    begin()
    with promised(cluster, unless=LARGE_RECORD_NOT_COPIED, seen=NEITHER_ENDED) as outcome:
        await_copied_everywhere(orders[0], other_dir(here), timeout_s=enough_s)
    if outcome.deviates:
        orders.configure({"segment.bytes": f"{4 * SMALLEST_SEGMENT}"})
        cluster.cancel_reassignment(orders[0])
        orders[0].move_to(here)
        await_copied_everywhere(orders[0], here, timeout_s=MOVED_S)
        begin()
        await_copied_everywhere(orders[0], other_dir(here), timeout_s=MOVED_S)
    state.moved(orders[0], other_dir(here))
    state.reassigned(orders[0], [orders[0].log_dir_on(broker) for broker in (leader, mover, spare)])
    state.check()
