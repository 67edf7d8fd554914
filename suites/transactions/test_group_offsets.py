"""Shows that a group's offsets in a transaction are committed with it or not at all, also after failovers.

KIP-98 promises of such offsets that they "will be considered consumed only if the transaction is committed
successfully". They are in the group coordinator's log (``__consumer_offsets``) from the start. So each new coordinator
must know which of them belong to open transactions, and KIP-447 has it say so (UNSTABLE_OFFSET_COMMIT).
"""

from __future__ import annotations

from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.errors import Inconclusive
from harness.kafka.versions import VersionRange
from suites.group_offsets import MemberlessGroup
from suites.on_disk import check_same_bytes
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, make_leader, restart_after_healing
from suites.transactions.test_transactions import OVERRIDES
from suites.untracked_transactions import UntrackedProducer, check_reads

KNOWS_UNSTABLE_OFFSETS = VersionRange.parse(">=2.5")
BEFORE = 5
EXPIRES_OFTEN = {"offsets.retention.check.interval.ms": "1000"}
"""Coordinators look for expired offsets each second (default: every 10 min)."""


# Fresh: see suites/readers/test_readers.py.
@scenario(
    "transactions/group-offsets",
    kip=112,
    plan="2) Log directory failure discovered on leader during runtime, of the group coordinator, amid transactions",
    builds=KNOWS_UNSTABLE_OFFSETS,
    judged=False,
    fresh=True,
    overrides=OVERRIDES | EXPIRES_OFTEN,
)
def test_group_offsets(cluster: Cluster) -> None:
    """Group coordinators fail while transactions have groups' offsets: a commit keeps them, and an abort drops them."""
    offsets = cluster.create_topic("__consumer_offsets", configs={"cleanup.policy": "compact"})
    coordinator_log = cluster.create_topic("__transaction_state", configs={"cleanup.policy": "compact"})
    ledger = cluster.create_topic("ledger")
    state = StateCheck(cluster, offsets, coordinator_log, ledger)
    victim = leader_of(offsets[0])
    log_dir = offsets[0].log_dir_on(victim)
    if log_dir == coordinator_log[0].log_dir_on(victim):
        raise Inconclusive(f"{log_dir} has the logs of both coordinators")
    kept, dropped, busy = (MemberlessGroup(name, offsets[0], ledger[0]) for name in ("kept", "dropped", "busy"))
    commits, aborts = (UntrackedProducer(ledger, name) for name in ("commits", "aborts"))
    everything: list[bytes] = []
    committed: list[bytes] = []

    def begin(offset: int) -> None:
        """Begin a transaction for each group, with records and this offset."""
        for producer, group in ((commits, kept), (aborts, dropped)):
            values = producer.write()
            producer.send_offset(group.name, ledger[0], offset)
            everything.extend(values)
            committed.extend(values if producer is commits else ())

    def check_each_whole(before: int, offset: int) -> None:
        """Each group has its offset from before; then it is the other one for the group whose transaction commits."""
        # A new coordinator may show its log up to the high watermark that it had as a follower, until the next write.
        busy.commit(offset)
        kept.check_pending(before)
        dropped.check_pending(BEFORE)
        commits.write(commit=True, count=0)
        aborts.write(commit=False, count=0)
        kept.check_offset(offset)
        dropped.check_offset(BEFORE)
        check_reads(ledger, "read_committed", committed)

    kept.commit(BEFORE)
    dropped.commit(BEFORE)
    begin(BEFORE + 1)
    with log_dirs_failed(state, Chmod000(log_dir)):
        check_each_whole(BEFORE, BEFORE + 1)
        begin(BEFORE + 2)
    restart_after_healing(state, victim)
    make_leader(cluster, state, victim)
    busy.check_kept()
    check_each_whole(BEFORE + 1, BEFORE + 2)
    check_reads(ledger, "read_uncommitted", everything)
    check_same_bytes(*offsets.partitions, *ledger.partitions)
