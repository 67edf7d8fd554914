"""Shows bugs of Kafka with failed log dirs (KIP-112), one scenario each: invalid on builds with the bug.

These are the bugs that the suite of KIP-112 does not show. KNOWN_BUGS.md has the builds.
"""

from __future__ import annotations

from faults.base import injected
from faults.broker import BrokerKilled
from faults.file_system import NoInodes
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement
from harness.timeouts import RECOVERY_S
from suites.checks import check_noticed
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, reassign


@scenario(
    "known-bugs/reassigned-to-wounded",
    kip=112,
    plan="7. Partition reassignment: onto a broker with a failed log directory",
    issue="KAFKA-10314",
    judged=False,
)
def test_reassigned_to_wounded(cluster: Cluster) -> None:
    """A partition is reassigned to a broker with a failed log dir: the replica is created on the good one, in sync."""
    orders = cluster.create_topic("orders", replicas=2)
    everywhere = cluster.create_topic("everywhere", replicas=3)
    holders = [leader_of(orders[0]), *orders[0].followers()]
    [target] = cluster.others(*holders)
    state = StateCheck(cluster, orders, everywhere)
    with log_dirs_failed(state, Chmod000(everywhere[0].log_dir_on(target))):
        reassign(cluster, state, Placement(partition=orders[0], on=(*holders, target)), timeout_s=RECOVERY_S / 2)


@scenario(
    "known-bugs/full-at-start",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: one has no inodes left",
    issue="KAFKA-13773",
    judged=False,
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
    fresh=True,  # in a used log dir, a start deletes files, which frees inodes
    volumes="ext4",
    needs=NoInodes.needs,
)
def test_full_at_start(cluster: Cluster) -> None:
    """A killed broker starts with a disk that has no inodes left: it goes on without that log dir."""
    orders = cluster.create_topic("orders", replicas=3)
    state = StateCheck(cluster, orders)
    # Without a record in the leader's epoch, loading the log writes its leader-epoch-checkpoint.
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with injected(BrokerKilled(victim)):
        state.broker_gone(victim)
        state.check()
        with injected(NoInodes(log_dir)) as fault:
            victim.start()
            state.log_dir_failed(log_dir)
            state.broker_back(victim)
            state.check(RECOVERY_S / 2)
            check_noticed(fault)
