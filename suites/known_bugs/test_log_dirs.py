"""Shows bugs of Kafka with failed log dirs (KIP-112), one scenario each: invalid on builds with the bug.

These are the bugs that the suite of KIP-112 does not show. KAFKA-19221 is a declared deviation, since the last build
with ZooKeeper has it. KNOWN_BUGS.md has the builds.
"""

from __future__ import annotations

import re
import stat

from faults.base import Fault, injected
from faults.broker import BrokerKilled, BrokerStopped
from faults.file_system import NoInodes
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.versions import Mode
from harness.timeouts import RECOVERY_S
from suites.checks import check_noticed, promised, refuses_to_start
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE, UNTRIMMED_MARKED_CLEAN
from suites.on_disk import check_same_bytes
from suites.reassignments import reassign
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import delete_by_hand, log_dirs_failed, write_untracked_records


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


NO_TOPIC_ID = "does not have a topic ID, which is not allowed"
"""The log line of a broker that refuses to start because a replica has no partition.metadata."""


@scenario(
    "known-bugs/topic-id-lost",
    kip=112,
    plan="a broker starts without the file that names a replica's topic",
    issue="KAFKA-16814",
    modes=(Mode.KRAFT,),
    judged=False,
)
def test_topic_id_lost(cluster: Cluster) -> None:
    """A broker starts without a replica's partition.metadata: it creates the replica again, which catches up."""
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, 100)
    state = StateCheck(cluster, orders)
    victim = follower_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with injected(BrokerStopped(victim)):
        state.broker_gone(victim)
        state.check()
        (log_dir.replica_dir("orders", 0) / "partition.metadata").unlink()
        victim.start()
        if (line := refuses_to_start(victim, saying=NO_TOPIC_ID)) is not None:
            cause = next(each for each in line.text.splitlines() if NO_TOPIC_ID in each)
            raise PromiseBroken(f"{victim} does not start without partition.metadata of {orders[0]}: {cause[:300]}")
        state.broker_back(victim)
        state.check(RECOVERY_S)
    check_same_bytes(orders[0])
    for stray in log_dir.path.glob("orders-0.*-stray"):  # newer builds keep the old log for the operator
        delete_by_hand(victim, stray)


class TimeIndexReadOnly(Fault):
    """The time index of a replica's first segment cannot be opened for writing. The broker has it mapped and goes on.

    A broker that shuts down opens the file again, to trim it to its entries (``AbstractIndex.resize``).
    """

    name = "time_index_read_only"

    def __init__(self, log_dir: LogDir, partition: Partition) -> None:
        super().__init__(log_dir.broker)
        self._file = log_dir.replica_dir(partition.topic, partition.index) / f"{0:020d}.timeindex"
        self._token: int | None = None

    @property
    def target(self) -> str:
        """The file and the broker."""
        return f"{self._file.parent.name}/{self._file.name} of {self.broker}"

    def apply(self) -> None:
        """Remove the permission to write."""
        mode = stat.S_IMODE(self._file.stat().st_mode)
        self._token = self.broker.undo_log.will("chmod", path=str(self._file), mode=mode)
        self._file.chmod(mode & ~0o222)

    def proof(self) -> str | None:
        """The error when the broker's own user opens the file for writing."""
        argv = ["dd", "if=/dev/null", f"of={self._file}", "conv=notrunc", "status=none"]
        error = self.broker.node.run_as_user(argv).stderr.strip()
        return error if "Permission denied" in error else None

    def revert(self) -> None:
        """Give the permission back."""
        if self._token is not None:
            self.broker.undo_log.undo(self._token)
            self._token = None


def check_marked_clean(log_dir: LogDir) -> None:
    """A broker that has stopped marked its other log dirs as cleanly shut down, and not this one.

    :raises Inconclusive: it did not mark another log dir, so it did not shut down cleanly
    """
    marked = [each for each in log_dir.broker.log_dirs if (each.path / ".kafka_cleanshutdown").exists()]
    if log_dir in marked:
        raise PromiseBroken(f"{log_dir} is marked as cleanly shut down, though an index could not be trimmed")
    if len(marked) != len(log_dir.broker.log_dirs) - 1:
        raise Inconclusive(f"{log_dir.broker} marked only {[str(each) for each in marked]} as cleanly shut down")


@scenario(
    "known-bugs/error-on-close",
    kip=112,
    plan="a log dir fails while its broker shuts down",
    issue="KAFKA-19221",
    judged=False,
    deviations=(UNTRIMMED_MARKED_CLEAN,),
)
def test_error_on_close(cluster: Cluster) -> None:
    """A broker cannot trim an index when it shuts down: it does not mark the log dir as cleanly shut down."""
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, 100)
    state = StateCheck(cluster, orders)
    victim = follower_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with injected(TimeIndexReadOnly(log_dir, orders[0])):
        victim.stop()
        state.broker_gone(victim)
        known = f"^{re.escape(str(log_dir))} is marked as cleanly shut down"
        with promised(cluster, unless=UNTRIMMED_MARKED_CLEAN, seen=known) as outcome:
            check_marked_clean(log_dir)
    victim.start()
    state.broker_back(victim)
    state.check(RECOVERY_S)
    if not outcome.deviates:  # else the records of this replica expire at once
        check_same_bytes(orders[0])
