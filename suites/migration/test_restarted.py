"""Shows a broker that starts again, in migration mode, while the log dir that ended it is still bad.

Kafka ends a broker in migration mode whose log dir fails. A supervisor of services starts it again at once.
"""

from __future__ import annotations

from faults.log_dir import Chmod000
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_ends, promised
from suites.deviations import DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES, REPLICAS_MADE_AGAIN
from suites.migration.failing import broker_ended
from suites.migration.roll import Roll, migration_scenario
from suites.state_check import StateCheck
from suites.steps import FOUND_TWICE, delete_by_hand, one_partition_per_log_dir, write_untracked_records


@migration_scenario(
    "migration/restarted-with-failed",
    plan="ZooKeeper to KRaft: a broker that a failed log dir has ended starts again, while the log dir is bad",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES, REPLICAS_MADE_AGAIN),
    floors=Floors(faults=4),
)
def test_restarted_with_failed(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker starts with the bad log dir that has ended it: it does not create those replicas on its good log dir.

    A topic with one replica has no leader for the partitions on the bad log dir. Afterwards the log dir is healed.
    """
    orders = one_partition_per_log_dir(cluster)
    lone = cluster.create_topic("lone", partitions=6, replicas=1)
    write_untracked_records(lone, 600)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.enter(*cluster.brokers)
        victim = leader_of(orders[0])
        bad = orders[0].log_dir_on(victim)
        good = other_dir(bad)
        alone = [each for each in lone.partitions if victim.log_dir_of("lone", each.index) == bad]
        if not alone:
            raise Inconclusive(f"{bad} has no partition of {lone}, so it has the only replica of none")
        made_again = rf"^{victim} created {orders[0]} on {good} too, leads \d+ of {len(alone)} empty .*, and refuses"
        with promised(cluster, unless=REPLICAS_MADE_AGAIN, seen=made_again) as outcome:
            with broker_ended(roll, state, Chmod000(bad), ahead=orders):
                victim.start()
                await_rejoined(orders[1], victim)
                pair.await_progress(after=now())
                made_twice = good.replica_dir("orders", 0).exists()
                emptied = [each for each in alone if is_led_empty(each, victim)]
                state.broker_back(victim)
                state.broker_gone(victim)
            victim.restart()
            if made_twice:
                check_ends(victim, exit_code=1, saying=FOUND_TWICE)
                raise PromiseBroken(
                    f"{victim} created {orders[0]} on {good} too, leads {len(emptied)} of {len(alone)} empty "
                    f"partitions of {lone}, and refuses to start with both"
                )
        if outcome.deviates:
            delete_made_again(good, bad)
            victim.start()
        state.broker_back(victim)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
        roll.check_metadata()
    check_delivery(workload)


def await_rejoined(partition: Partition, broker: Broker) -> None:
    """Wait until the broker's replica of a partition on a good log dir is in the ISR again."""
    other, *_ = partition.cluster.others(broker)
    await_until(
        lambda: broker.id in partition.describe(other).isr,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{broker} to be in the ISR of {partition}, which is on a good log dir",
        retry_on=(NoAnswer,),
        watch=broker.node.check_alive,
        failure=PromiseBroken,
    )


def is_led_empty(partition: Partition, broker: Broker) -> bool:
    """Whether the broker leads a partition with records, and shows none of them."""
    other, *_ = partition.cluster.others(broker)
    if partition.describe(other).leader != broker.id:
        return False
    end = await_until(
        lambda: broker.admin.end_offset(partition.topic, partition.index),
        lambda _: True,
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to answer where {partition} ends",
        retry_on=(NoAnswer,),
        failure=Inconclusive,
    )
    return end == 0


def delete_made_again(good: LogDir, bad: LogDir) -> None:
    """Delete the replicas on a good log dir that are on the healed one, too; their broker is down."""
    there = {path.name for path in bad.path.iterdir() if path.is_dir()}
    for again in [path for path in good.path.iterdir() if path.is_dir() and path.name in there]:
        delete_by_hand(good.broker, again)
