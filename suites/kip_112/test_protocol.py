"""Shows a cluster that upgrades its inter-broker protocol by a rolling bounce, as KIP-36, KIP-112 and KIP-113 require.

"In the first rolling bounce we will deploy the new code but broker will still communicate using the existing protocol.
In the second rolling bounce we will change the config" (KIP-112). The scenario begins after the first bounce.
"""

from __future__ import annotations

from collections.abc import Sequence

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.waiting import await_until
from suites.checks import check_ends, check_promised_or_known
from suites.deviations import EMPTY_RACKS
from suites.moves import await_moved
from suites.on_disk import check_logs_unchanged, check_same_bytes, leaders_logs
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, one_partition_per_log_dir, restart_after_healing, write_untracked_records

OLD_PROTOCOL = {"inter.broker.protocol.version": "0.9.0", "log.message.format.version": "0.9.0"}
"""Settings of a broker that knows neither racks (0.10.0, KIP-36) nor failed log dirs (1.0, KIP-112)."""
HALTS = r"Halting broker because dir \S+ is offline"
"""The log line of a broker that halts because a log dir failed and its protocol has no offline replicas."""
RACKS = ("a", "b", "c")


@scenario(
    "kip-112/protocol-upgrade",
    kip=112,
    plan="Compatibility: two rolling bounces (also of KIP-36 and KIP-113)",
    modes=(Mode.ZK,),
    judged=False,
    racks=RACKS,
    overrides=OLD_PROTOCOL | {"auto.create.topics.enable": "true", "default.replication.factor": "3"},
    deviations=(EMPTY_RACKS,),
)
def test_protocol_upgrade(cluster: Cluster) -> None:
    """With the old protocol a failed log dir halts its broker, and racks are unknown; a rolling bounce ends both.

    During the bounce, some brokers use the old protocol and some the new one, and all replicas stay in the ISR.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    write_untracked_records(orders, 100)
    check_registered(cluster, upgraded=())
    halted = leader_of(orders[0])
    with injected(Chmod000(orders[0].log_dir_on(halted))):
        check_ends(halted, exit_code=1, saying=HALTS)
        state.broker_gone(halted)
        check_led_by_others(orders, halted)
    halted.start()
    state.broker_back(halted)
    state.check(timeouts.RECOVERY_S)
    before = leaders_logs(orders.partitions)
    controller = cluster.controller_broker()
    # The controller is last, so it remains the controller.
    in_turn = sorted(cluster.brokers, key=lambda broker: broker == controller)
    for number, broker in enumerate(in_turn, start=1):
        broker.stop()
        state.broker_gone(broker)
        broker.node.configure(dict.fromkeys(OLD_PROTOCOL))
        broker.start()
        state.broker_back(broker)
        state.check(timeouts.RECOVERY_S)
        check_registered(cluster, upgraded=in_turn[:number])
        if number == 1:
            check_automatic(state)
    check_logs_unchanged(before)
    write_untracked_records(orders, 100)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with log_dirs_failed(state, Chmod000(log_dir)):
        write_untracked_records(orders, 100)
    restart_after_healing(state, victim)
    orders[0].move_to(other_dir(log_dir))
    await_moved(orders[0], other_dir(log_dir))
    state.moved(orders[0], other_dir(log_dir))
    state.check()
    check_same_bytes(*orders.partitions)


def check_automatic(state: StateCheck) -> None:
    """A topic is created because a client asks for its metadata, though only some brokers have registered a rack."""
    cluster = state.cluster
    cluster.live_brokers()[0].admin.want_topic("automatic")
    state.add_topic(*cluster.await_topics({"automatic": 1}, failure=PromiseBroken))


def check_led_by_others(topic: Topic, halted: Broker) -> None:
    """Other brokers lead, without the halted one in the ISR; the old protocol has no field for offline replicas."""

    def differences() -> list[str]:
        brokers = topic.cluster.live_brokers()
        seen = [partition.describe(broker) for broker in brokers for partition in topic.partitions]
        return [
            str(each)
            for each in seen
            if each.leader in (None, halted.id) or halted.id in each.isr or each.offline_replicas
        ]

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeouts.BROKER_FAILURE_S,
        what=f"others than {halted} to lead {topic}, and metadata to have no offline replicas",
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )


def check_registered(cluster: Cluster, *, upgraded: Sequence[Broker]) -> None:
    """Upgraded brokers are registered with their racks and a JSON version above 2, others with version 2 and no rack.

    Metadata has racks only if the controller uses the new protocol. Then it has those of all upgraded brokers.
    """
    assert isinstance(cluster.quorum, ZooKeeperQuorum)
    racks = dict(zip((broker.id for broker in cluster.brokers), RACKS, strict=True))
    should = {id: racks[id] if id in {broker.id for broker in upgraded} else None for id in racks}
    znodes = cluster.quorum.registrations()
    seen = {id: znode.get("rack") for id, znode in znodes.items()}
    wrong = [id for id, znode in znodes.items() if (znode["version"] > 2) != (should[id] is not None)]
    if seen != should or wrong:
        raise PromiseBroken(f"registrations need the racks {should}, and a version above 2 only with a rack: {znodes}")
    unknown, empty = dict.fromkeys(racks), dict.fromkeys(racks, "")

    def differences() -> list[str]:
        controller = cluster.controller_broker()
        expected = [should] if controller in upgraded else [unknown, empty]
        metadata = {broker: broker.describe_cluster().racks for broker in cluster.brokers}
        return [f"{broker} {each}, from {controller}" for broker, each in metadata.items() if each not in expected]

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeouts.RECOVERY_S,
        what=f"metadata to have the racks {should}, or none from a controller with the old protocol",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    if cluster.controller_broker() not in upgraded:
        known = cluster.describe().racks
        check_promised_or_known(EMPTY_RACKS, cluster, known, promised=unknown, known=empty)
    versions = {id: znode["version"] for id, znode in znodes.items()}
    cluster.journal.write("racks.registered", racks=seen, versions=versions)
