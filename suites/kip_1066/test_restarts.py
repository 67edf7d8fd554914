"""Shows what becomes of a cordon when its broker restarts (KIP-1066)."""

from __future__ import annotations

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.tool_answers import dump_snapshot
from harness.waiting import await_until
from suites.checks import check_promised_or_known
from suites.controllers import quorum_of
from suites.deviations import CORDON_APPLIED_LATE, CORDON_FORGOTTEN
from suites.kip_1066.cordons import CORDONED, await_known_to_controller, cordon_scenario
from suites.kip_1066.test_entries import IGNORED, IN_FORCE, check_seen, cordon_effect, require_seen


@cordon_scenario(
    "kip-1066/restarted-from-snapshot",
    plan="updated at runtime … no new partitions can be allocated on it",
    judged=False,
    deviations=(CORDON_FORGOTTEN,),
    brokers=1,
    mbeans=False,
    overrides={"metadata.log.max.snapshot.interval.ms": "1000"},
)
def test_restarted_from_snapshot(cluster: Cluster) -> None:
    """A broker restarts, and its metadata snapshot has its cordon: the log dir stays cordoned."""
    [broker] = cluster.brokers
    cordoned = broker.log_dirs[1]
    require_seen(IGNORED, cordon_effect(cluster, cordoned, "before"))
    broker.configure({CORDONED: str(cordoned.path)})
    await_known_to_controller(cluster, broker, cordoned)
    check_seen(IN_FORCE, cluster, cordoned, "cordoned")
    await_in_snapshot(cluster, broker, cordoned)
    broker.restart()
    cluster.await_healthy()
    await_known_to_controller(cluster, broker, cordoned)
    seen = cordon_effect(cluster, cordoned, "restarted")
    check_promised_or_known(CORDON_FORGOTTEN, cluster, seen, promised=IN_FORCE, known=IGNORED)


def await_in_snapshot(cluster: Cluster, broker: Broker, *log_dirs: LogDir) -> None:
    """Wait until the broker's newest metadata snapshot has exactly these log dirs of it as cordoned."""
    folder = quorum_of(cluster).metadata_log(broker.node)
    should = frozenset(log_dir.directory_id() for log_dir in log_dirs)

    def cordoned() -> frozenset[str] | None:
        if (newest := max(folder.glob("*.checkpoint"), key=lambda path: path.name, default=None)) is None:
            return None
        return dump_snapshot(cluster.distribution, newest).registered_as_cordoned.get(broker.id)

    await_until(
        cordoned,
        lambda seen: seen == should,
        timeout_s=timeouts.PROGRESS_S,
        what=f"{broker} to write a metadata snapshot with its cordon",
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )


NEW = 4
"""The number of replicas in the good log dir, and of those that are new: without a cordon, all go to the other."""


@cordon_scenario(
    "kip-1066/assigned-while-down",
    plan="only a log directory not currently cordoned will be selected",
    judged=False,
    deviations=(CORDON_APPLIED_LATE,),
    brokers=2,
    mbeans=False,
)
def test_assigned_while_down(cluster: Cluster) -> None:
    """A broker is down, and gets replicas meanwhile: it creates them in the log dir that is not cordoned."""
    up, broker = cluster.brokers
    cordoned, other = broker.log_dirs
    broker.configure({CORDONED: str(cordoned.path)})
    await_known_to_controller(cluster, broker, cordoned)
    before = cluster.create_topic("before", partitions=NEW, replicas=2)
    if (places := {each.log_dir_on(broker) for each in before.partitions}) != {other}:
        raise Inconclusive(f"{cordoned} is cordoned, and {before} is in {places}")
    broker.stop()
    cluster.request_topics(NewTopic(name="orders", assignment={index: [up.id, broker.id] for index in range(NEW)}))
    broker.start()
    cluster.await_healthy()
    orders = Topic(cluster, "orders", NEW)
    places = {each.log_dir_on(broker) for each in orders.partitions}
    check_promised_or_known(CORDON_APPLIED_LATE, cluster, places, promised={other}, known={cordoned})
