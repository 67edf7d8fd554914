"""Shows that no acked record is lost when a leader is cut off from brokers or controller while clients reach it.

No disk fails here. It needs brokers with networks of their own (``--backend docker``). A leader that does not know of
the next leader may accept records, but must not ack those that the others do not have. A leader whose followers cannot
reach it must not ack with fewer replicas than ``min.insync.replicas``.
"""

from __future__ import annotations

from faults.base import injected
from faults.network import NETWORK_FAULTS, Cut, CutOff, CutOffInwards
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery
from suites.scenario import each_fault, scenario
from suites.state_check import StateCheck
from suites.steps import check_nothing_acked


@scenario(
    "network/leader-cut-off",
    kip=112,
    plan="not of the KIP: a leader that only clients can reach",
    floors=Floors(during=0),  # clients may ask the old leader for a while, which is measured
)
@each_fault("cut", NETWORK_FAULTS)
def test_leader_cut_off(cluster: Cluster, workload: CaseWorkload, cut: type[Cut]) -> None:
    """The leader is cut off from brokers and controller, both ways or one: another leads, no acked record is lost."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    victim = leader_of(orders[0])
    others = nodes_of(cluster.others(victim))
    check_another_leads(workload, orders, cut(victim, [*cluster.quorum_nodes, *others]))


@scenario(
    "network/leader-without-controller",
    kip=112,
    plan="not of the KIP: a leader that brokers and clients can reach, but neither controller nor ZooKeeper",
    floors=Floors(during=0),  # as for leader-cut-off
    needs=CutOff.needs,
)
def test_leader_without_controller(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader is cut off from the controller or ZooKeeper alone: another leads, and no acked record is lost.

    Its followers reach it all the while, and must follow the new leader.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    victim = leader_of(orders[0])
    others = nodes_of(cluster.others(victim))
    check_another_leads(workload, orders, CutOff(victim, cluster.quorum_nodes, still_reachable=others))


def check_another_leads(workload: CaseWorkload, orders: Topic, cut: Cut) -> None:
    """Cut off the leader until there is another one, heal the cut, and check that no acked record is lost."""
    cluster, victim = orders.cluster, cut.broker
    witness, _ = cluster.others(victim)
    with workload.running(orders) as pair:
        with injected(cut):
            await_until(
                lambda: witness.admin.describe_cluster(topics=(orders.name,)).partitions[0].leader,
                lambda leader: leader not in (None, victim.id),
                timeout_s=timeouts.BROKER_FAILURE_S,
                what=f"another leader than {victim}, which is cut off",
                retry_on=(NoAnswer,),
                failure=PromiseBroken,
            )
        cluster.await_healthy(failure=PromiseBroken)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "network/leader-alone",
    kip=112,
    plan="not of the KIP: a leader that controller and clients can reach, but no other broker",
)
@each_fault("cut", (CutOff, CutOffInwards))
def test_leader_alone(cluster: Cluster, workload: CaseWorkload, cut: type[Cut]) -> None:
    """The leader is cut off from the other brokers alone, both ways or one: they leave the ISR, and it serves on."""
    orders = led_by(cluster, where_the_controller_is(cluster))
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with injected(isolated(cluster, victim, cut)):
            check_leads_alone(state, victim)
            pair.await_progress(after=now())
        check_followers_back(state)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "network/leader-alone-too-few",
    kip=112,
    plan="not of the KIP: the same, where one replica is too few for acks=all",
    floors=Floors(during=0),  # nothing may be acked: what is written then waits
    needs=CutOff.needs,
)
def test_leader_alone_too_few(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader is cut off from the other brokers, with min.insync.replicas=2: alone in the ISR, it acks nothing."""
    orders = led_by(cluster, where_the_controller_is(cluster), {"min.insync.replicas": "2"})
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with injected(isolated(cluster, victim)):
            check_leads_alone(state, victim)
            check_nothing_acked(pair, orders, victim, since=now())
        check_followers_back(state)
        pair.await_progress(after=now())
    check_delivery(workload)


def nodes_of(brokers: list[Broker]) -> list[Node]:
    """The nodes of these brokers."""
    return [broker.node for broker in brokers]


def where_the_controller_is(cluster: Cluster) -> Broker:
    """The broker that is the controller; any broker in KRaft, where none is.

    In ZooKeeper mode a leader asks the controller's broker to shrink the ISR. A leader on another broker, which reaches
    no other broker, could not shrink it as long as its ZooKeeper session lasts.
    """
    return cluster.controller_broker() or cluster.brokers[0]


def led_by(cluster: Cluster, leader: Broker, configs: dict[str, str] | None = None) -> Topic:
    """Create a topic of one partition that this broker leads and the others follow."""
    ids = [leader.id, *(broker.id for broker in cluster.others(leader))]
    [topic] = cluster.create_topics(NewTopic(name="orders", assignment={0: ids}, configs=configs or {}))
    return topic


def isolated(cluster: Cluster, broker: Broker, cut: type[Cut] = CutOff) -> Cut:
    """The fault that cuts the broker off from the other brokers only, not from the controller or ZooKeeper."""
    return cut(broker, nodes_of(cluster.others(broker)), still_reachable=cluster.quorum_nodes)


def check_leads_alone(state: StateCheck, leader: Broker) -> None:
    """The leader stays and is alone in the ISR, by all sources; nothing is offline.

    In ZooKeeper mode only the leader, which is the controller, is asked: the other brokers do not hear of the new ISR.
    """
    if state.cluster.spec.mode is Mode.KRAFT:
        state.broker_isolated(leader)
        state.check()
        return
    await_until(
        lambda: leader.admin.describe_cluster(topics=state.cluster.topics).partitions,
        lambda seen: all(
            (each.leader, each.isr, each.offline_replicas) == (leader.id, (leader.id,), ()) for each in seen
        ),
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{leader}, which no other broker reaches, to be alone in the ISR and to lead",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_followers_back(state: StateCheck) -> None:
    """The followers are back in the ISR and the leader has stayed, by all sources."""
    state.isolation_ended()
    state.check(timeouts.RECOVERY_S)
