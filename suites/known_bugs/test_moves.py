"""Shows bugs of Kafka in moves between log dirs (KIP-113), one scenario each: invalid on builds with the bug.

KAFKA-19458 is a declared deviation, since the last build with ZooKeeper has it. KNOWN_BUGS.md has the builds. A
throttle holds each move until the event that the bug needs, so none of them is a race.
"""

from __future__ import annotations

from faults.base import injected
from faults.broker import BrokerStopped
from faults.targets import follower_of, leader_of, other_dir
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from harness.errors import Inconclusive
from harness.journal import now
from harness.timeouts import CLEANING_S, RECOVERY_S
from suites.checks import promised
from suites.deviations import CLEANING_STOPS
from suites.log_cleaning import COMPACTED, check_logs_small, cleaner_scenario, stays_large, write_outdated_records
from suites.on_disk import check_no_leftovers
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import SMALL_FETCHES, await_moved, begin_move, check_under_way, moves_held, write_untracked_records

DELETED_S = 40.0
# Seconds after which a move that started again deletes what it had copied. The move must have ended by then.
DELETE_DELAY_S = 5
MOVED_S = 20.0  # at most four megabytes, on an idle cluster


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
    check_logs_small(accounts, failure=Inconclusive)
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
    check_logs_small(accounts, failure=Inconclusive)
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
