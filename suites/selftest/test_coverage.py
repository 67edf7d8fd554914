"""Each item of a KIP's test plan has a scenario. COVERAGE.md is generated from scenarios, so it shows no gap."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from suites.selftest.processes import JBOD

PLANS: Mapping[int, Sequence[str]] = {
    112: (
        # "the following eight scenarios"
        "1. Topic gets created",
        "2. A log directory stops working on a broker during runtime",
        "3. Broker bootstraps with bad log directories",
        "4. The disk (or log directory) gets fixed",
        "5. User queries replicas state",
        "6. Controller failover",
        "7. Partition reassignment",
        "8. Topic deletion",
        # "Test Plan"
        "1) Log directory failure discovered during bootstrap",
        "2) Log directory failure discovered on leader during runtime",
        "3) Log directory failure discovered on follower during runtime",
    ),
    113: (
        # "Test Plan"
        "1) Move replica between disks on the same broker and across brokers",
        "2) Verify that bad log directories discovered during runtime do not affect replicas on the good ones",
        # "How to move replica between log directories on the same broker", and "3. Handle failure …"
        "2. Complete replica data movement",
        "3. both … exist on good log directories",
        "3. topicPartition.move exists but topicPartition doesn't … no bad log directory",
        "3. topicPartition.move exists but topicPartition doesn't … and if there is bad log directory",
        "3. If topicPartition.delete exists",
    ),
    18: (
        "IO Errors",
        "Putting LogDirs Directory Offline",
    ),
    36: (
        "Proposed Changes: properties and algorithm of the rack aware assignment",
        "If one or more brokers does NOT have rack information",
        "Motivation: fault tolerance from the racks",
    ),
    1066: (
        # "Error handling", request by request
        "Error handling: CreateTopics/CreatePartitions requests without explicit partition assignments",
        "Error handling: CreateTopics with explicit partition assignments",
        "Error handling: CreatePartitions with explicit partition assignments",
        "Error handling: AlterPartitionReassignments request",
        "Error handling: AlterReplicaLogDirs request",
        # "Motivation"
        "add new brokers to a cluster that is at capacity",
        "reassign its partitions, then remove the broker",
        "the process of removing a disk",
    ),
}
"""How the items of each plan begin, as scenarios name them. KIP-18's rules for leaders and ISR have no scenario: the
expected state checks them in every one (suites/expected_state.py)."""


@pytest.mark.parametrize("kip", PLANS)
def test_no_item_of_a_plan_is_without_a_scenario(kip: int) -> None:
    done = subprocess.run([JBOD, "list", "--json"], capture_output=True, text=True, check=True)
    plans = [each["plan"] for each in json.loads(done.stdout)["scenarios"] if each["kip"] == kip and each["cases"]]
    assert [item for item in PLANS[kip] if not any(plan.startswith(item) for plan in plans)] == []
