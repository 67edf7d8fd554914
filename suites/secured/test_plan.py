"""Shows KIP-112's system-test plan on a cluster with TLS, SCRAM and ACLs.

Each item is run once, with the plan's first way to fail. The other ways differ on the disk only:
``jbod run suites/kip_112/test_plan.py --listener-security sasl_tls`` runs them all. A broker tells the controller of a
failed log dir, and of its replicas' log dirs, as a user whom the controller must accept.
"""

from __future__ import annotations

import pytest

from faults.log_dir import PLAN_FAULTS, LogDirFault
from faults.targets import follower_of, leader_of
from harness.cluster.cluster import Cluster
from harness.runner.case_workload import CaseWorkload
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE
from suites.kip_112 import test_plan as plan
from suites.secured.users import secured_scenario

first_way = pytest.mark.parametrize("fail_log_dir", PLAN_FAULTS[:1], ids=[PLAN_FAULTS[0].name])


@secured_scenario(
    "secured/leader-at-bootstrap",
    kip=112,
    plan="1) Log directory failure discovered during bootstrap: brokers log in to each other",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
)
@first_way
def test_leader_at_bootstrap(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A killed leader logs in again with a failed log dir: it goes on with the good one, and other brokers lead."""
    plan.test_leader_at_bootstrap(cluster, workload, fail_log_dir)


@secured_scenario(
    "secured/leader-at-runtime",
    kip=112,
    plan="2) Log directory failure discovered on leader during runtime: brokers log in to each other",
)
@first_way
def test_leader_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The leader's log dir fails behind TLS and logins: another broker leads, and the good log dir is served."""
    plan.fails_at_runtime(cluster, workload, fail_log_dir, leader_of)


@secured_scenario(
    "secured/follower-at-runtime",
    kip=112,
    plan="3) Log directory failure discovered on follower during runtime: brokers log in to each other",
)
@first_way
def test_follower_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A follower's log dir fails behind TLS and logins: the leader stays, and the good log dir is served."""
    plan.fails_at_runtime(cluster, workload, fail_log_dir, follower_of)
