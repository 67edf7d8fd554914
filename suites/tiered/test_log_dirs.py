"""Shows log dirs that fail while a topic is tiered (KIP-405): those of its replicas, and of Kafka's own metadata topic.

Segments go to remote storage all the while, and leave the local logs. So most of the log is only remote as the fault
strikes, and every later leader must find it there.
"""

from __future__ import annotations

from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.journal import now
from harness.kafka.tiered_storage import METADATA_TOPIC
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from suites.checks import promised
from suites.deviations import REMOTE_READS_NEED_FIRST_DIR, TIERED_START_NEEDS_FIRST_DIR
from suites.leadership import lead
from suites.observations import metadata_log
from suites.state_check import StateCheck
from suites.steps import ends_as_known, format_new_dirs, log_dirs_failed, replace_by_empty_disk, restart_after_healing
from suites.tiered.remote import (
    LOAD,
    check_not_copied,
    check_read_from_start,
    check_served_by,
    check_tiered_delivery,
    check_tiers_on,
    create_tiered,
    place,
    tiered_scenario,
)

NO_INDEX_CACHE = r"Unable to create directory \S+ for RemoteIndexCache"
"""The log line of a broker that ends at its start because it cannot use its cache of remote indexes."""
RUNTIME = "2. A log directory stops working on a broker during runtime: "


@tiered_scenario("tiered/leader", kip=112, plan=RUNTIME + "of a tiered topic's leader (KIP-405)")
def test_leader(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir of a tiered topic's leader fails: the next leader goes on tiering, and has what is only remote.

    Local logs stay small on every broker, also on the failed one after it is back.
    """
    orders = create_tiered(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders, **LOAD) as pair:
        check_tiers_on(orders[0])
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            pair.await_progress(after=now())
            check_read_from_start(orders[0], check_tiers_on(orders[0]))
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
        check_tiers_on(orders[0])
    check_tiered_delivery(workload, orders)


@tiered_scenario("tiered/metadata-leader", kip=112, plan=RUNTIME + f"of the leader of {METADATA_TOPIC} (KIP-405)")
def test_metadata_leader(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir with the leader of __remote_log_metadata fails, on the tiered topic's leader: tiering goes on.

    What is only remote stays readable. After healing the broker knows all remote segments again, and leads the tiered
    topic.
    """
    orders = create_tiered(cluster)
    metadata = cluster.topics[METADATA_TOPIC]
    state = StateCheck(cluster, orders, metadata)
    victim = leader_of(orders[0])
    first, second = victim.log_dirs
    place(state, orders[0], first)
    place(state, metadata[0], second)
    lead(metadata[0], victim)
    state.led_by_preferred(metadata[0], victim)
    state.check()
    with workload.running(orders, **LOAD) as pair:
        check_tiers_on(orders[0])
        with log_dirs_failed(state, Chmod000(second)):
            pair.await_progress(after=now())
            check_read_from_start(orders[0], check_tiers_on(orders[0]))
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
        lead(orders[0], victim)
        state.led_by_preferred(orders[0], victim)
        check_read_from_start(orders[0], check_tiers_on(orders[0]))
    check_tiered_delivery(workload, orders)


@tiered_scenario(
    "tiered/emptied",
    kip=112,
    plan="4. The disk (or log directory) gets fixed: replaced by an empty one, of a tiered topic's leader (KIP-405)",
)
def test_emptied(cluster: Cluster, workload: CaseWorkload) -> None:
    """A tiered replica is rebuilt on an empty disk: it copies what the leader has locally, and then leads.

    It gets the state before that from remote storage. As the leader it reads and extends what is only remote.
    """
    orders = create_tiered(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders, **LOAD) as pair:
        check_tiers_on(orders[0])
        with log_dirs_failed(state, Chmod000(log_dir)):
            pair.await_progress(after=now())
            remote_only = check_tiers_on(orders[0])
            victim.stop()
            state.broker_gone(victim)
        replace_by_empty_disk(log_dir)
        if cluster.spec.mode is Mode.KRAFT:
            format_new_dirs(cluster, victim)
        victim.start()
        state.replicas_recreated(log_dir)
        state.check(also=[metadata_log])
        check_not_copied(orders[0], remote_only, on=victim)
        lead(orders[0], victim)
        state.led_by_preferred(orders[0], victim)
        check_read_from_start(orders[0], check_tiers_on(orders[0]))
        pair.await_progress(after=now())
    check_tiered_delivery(workload, orders)


@tiered_scenario(
    "tiered/first-log-dir",
    kip=112,
    plan=RUNTIME + "the first in log.dirs, beside a tiered topic's leader (KIP-405)",
    deviations=(REMOTE_READS_NEED_FIRST_DIR, TIERED_START_NEEDS_FIRST_DIR),
)
def test_first_log_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker leads a tiered topic in its second log dir, and its first one fails: it serves what is only remote.

    The broker also starts while that log dir is bad.
    """
    orders = create_tiered(cluster)
    metadata = cluster.topics[METADATA_TOPIC]
    state = StateCheck(cluster, orders, metadata)
    victim = leader_of(orders[0])
    first, second = victim.log_dirs
    place(state, orders[0], second)
    place(state, metadata[0], first)
    state.check()
    with workload.running(orders, **LOAD) as pair:
        check_tiers_on(orders[0])
        with log_dirs_failed(state, Chmod000(first)):
            pair.await_progress(after=now())
            check_tiers_on(orders[0])
            with promised(cluster, unless=REMOTE_READS_NEED_FIRST_DIR, seen="last seen: UNKNOWN_SERVER_ERROR$"):
                check_served_by(victim, orders[0], 0)
            victim.stop()
            state.broker_gone(victim)
            state.check()
            victim.start()
            if not ends_as_known(cluster, victim, TIERED_START_NEEDS_FIRST_DIR, saying=NO_INDEX_CACHE):
                state.broker_back(victim)
        restart_after_healing(state, victim)
        lead(orders[0], victim)
        state.led_by_preferred(orders[0], victim)
        check_read_from_start(orders[0], check_tiers_on(orders[0]))
        pair.await_progress(after=now())
    check_tiered_delivery(workload, orders)
