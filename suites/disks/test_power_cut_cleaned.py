"""Shows that a power cut takes nothing from a log that was compacted (beyond KIP-112)."""

from __future__ import annotations

from faults.base import injected
from faults.file_system import PowerCut
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from suites.log_cleaning import COMPACTED, FREQUENT_CLEANING, NEEDED, check_logs_small, write_outdated_records
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import make_leader, write_untracked_records
from suites.untracked_transactions import check_last_values

ONLY_CLEANED = {str(number).encode(): f"untracked {number}".encode() for number in range(len(NEEDED), 2 * len(NEEDED))}
"""Values of keys that are written once, so they are in no segment but the cleaned ones."""


@scenario(
    "disks/power-cut-after-cleaning",
    kip=112,
    plan="a broker loses what it had not synced, after the cleaner has made segments anew",
    judged=False,
    volumes="ext4",
    needs=PowerCut.needs,
    kraft={"metadata_apart": False},  # the power cut hits the metadata log, too
    overrides=FREQUENT_CLEANING,
)
def test_power_cut_after_cleaning(cluster: Cluster) -> None:
    """A broker has compacted a log as it loses power: as leader, it has the last value of each key.

    The cleaned segments are below the recovery point, so no start checks them. The cleaner must sync them itself.
    """
    accounts = cluster.create_topic("accounts", configs=COMPACTED)
    state = StateCheck(cluster, accounts)
    victim = leader_of(accounts[0])
    write_untracked_records(accounts, len(ONLY_CLEANED) + len(NEEDED), keys=len(ONLY_CLEANED) + len(NEEDED))
    write_outdated_records(accounts)
    check_logs_small(accounts)
    with injected(PowerCut(victim)):
        state.broker_gone(victim)
        state.check()
    state.broker_back(victim)
    state.check(timeouts.RECOVERY_S)
    make_leader(cluster, state, victim)
    check_last_values(accounts, "read_uncommitted", NEEDED | ONLY_CLEANED)
