"""What may be written into ``cordoned.log.dirs``, where, and who shows it then (KIP-1066, "Configurations").

"A comma-separated list of the directories that are cordoned. Entries in this list must be entries in log.dirs or
log.dir configuration." Without a load: of each entry it is seen who takes it and which log dirs are called cordoned.
"""

from __future__ import annotations

from functools import partial

from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.log_dir import LogDir
from harness.releases.tools import tool_output
from harness.releases.versions import CORDON_METADATA_VERSION, Tool
from suites.checks import check_ends, check_known, check_refused
from suites.deviations import (
    CORDONS_NOT_PRINTED,
    REGISTERED_WITHOUT_CORDONS,
    RELATIVE_UNCORDONED,
    STATIC_HALF_IN_FORCE,
)
from suites.kip_1066.cordons import (
    CORDONED,
    a_cordon,
    await_in_force,
    await_known_to_controller,
    cordon,
    directories,
    quorum_of,
)
from suites.model import World
from suites.sources import TOOLS, configs_tool, registrations
from suites.steps import restarted_healed

MISSING = r"All entries in cordoned\.log\.dirs must be present in log\.dirs or log\.dir\. Missing entries : "
ALONE = r"When cordoned\.log\.dirs is set to \*, it must not contain other values"
VIA_CONTROLLERS = r"When updating cordoned\.log\.dirs via controllers, +the new value must be a subset"


def refused_entries(first: LogDir, second: LogDir) -> dict[str, str]:
    """What is no list of log dirs, and what Kafka says of it."""
    path = first.path
    return {
        f"{path}/": MISSING,  # entries are compared as they are written
        f"{path.parent}/./{path.name}": MISSING,
        path.name: MISSING,
        "/nowhere": MISSING + "/nowhere$",
        f"{path},/nowhere,{second.path}": MISSING + "/nowhere$",
        str(path.parent): MISSING,
        f"*,{path}": ALONE,
        f"{path},*": ALONE,
        f"{path},": "must not be empty",
        ",": "must not be empty",
    }


@a_cordon("kip-1066/entries", plan="cordoned.log.dirs, its entries, static and dynamic", judged=False, brokers=2)
def test_entries(cluster: Cluster) -> None:
    """One log dir, several, all, none, set at run time or in the file; what is no log dir is refused."""
    topic = cluster.create_topic("orders", partitions=4, replicas=2)
    world = World(cluster, topic)
    broker, other = cluster.brokers
    first, second = broker.log_dirs
    for value, cordoned in {
        f"{first.path}": [first],
        f"{first.path}, {second.path}": [first, second],
        f"{second.path},{second.path}": [second],
        "*": [first, second],
        "": [],
    }.items():
        cordon(world, broker, *cordoned, value=value)
    cordon(world, broker, second)
    for entry, saying in refused_entries(first, second).items():
        check_refused(partial(broker.admin.set_broker_configs, broker.id, {CORDONED: entry}), "INVALID_REQUEST", saying)
        world.check()
    check_other_targets(world, broker, second, other)
    check_not_started_with(world, broker, f"{first.path}/")


def check_other_targets(world: World, broker: Broker, cordoned: LogDir, other: Broker) -> None:
    """Per broker only, and by the broker itself; a controller, which knows no paths, may only take cordons away."""
    controller = quorum_of(world.cluster).admin
    check_refused(
        lambda: broker.admin.set_broker_configs(None, {CORDONED: "*"}), "INVALID_REQUEST", "default cluster level"
    )
    check_refused(
        lambda: other.admin.set_broker_configs(broker.id, {CORDONED: "*"}), "INVALID_REQUEST", "Unexpected broker id"
    )
    for id, value in ((broker.id, "*"), (other.id, str(other.log_dirs[0].path)), (100, "*")):
        check_refused(
            partial(controller.set_broker_configs, id, {CORDONED: value}),
            "INVALID_CONFIG",
            VIA_CONTROLLERS,
        )
    world.check(also=[configs_tool])
    world.cordons(broker)
    controller.set_broker_configs(broker.id, {CORDONED: ""})
    await_in_force(world, broker)


def check_not_started_with(world: World, broker: Broker, entry: str) -> None:
    """In the file, what is no log dir ends the broker's start; without it, it is back."""
    broker.stop()
    world.broker_gone(broker)
    broker.node.configure({CORDONED: entry})
    broker.start()
    check_ends(broker, exit_code=1, saying=MISSING)
    broker.node.configure({CORDONED: ""})
    broker.start()
    world.broker_back(broker)
    world.check(timeouts.RECOVERY_S)


# --- who shows it -----------------------------------------------------------------------------------------------------


@a_cordon(
    "kip-1066/what-users-see",
    plan="kafka-configs, DescribeLogDirs v5, kafka-log-dirs, the metadata records",
    judged=False,
    deviations=(CORDONS_NOT_PRINTED,),
    brokers=2,
)
def test_what_users_see(cluster: Cluster) -> None:
    """A cordoned log dir, and a wholly cordoned broker: every source that there is says so, and of no other."""
    topic = cluster.create_topic("orders", partitions=4, replicas=2)
    world = World(cluster, topic)
    first, second = cluster.brokers
    everything = (*TOOLS, configs_tool)
    cordon(world, first, first.log_dirs[1])
    cordon(world, second, *second.log_dirs, value="*")
    world.check(also=everything)
    cordon(world, second)
    world.check(also=everything)


@a_cordon(
    "kip-1066/registration",
    plan="the broker will include the Uuids of cordoned log directories when it registers",
    judged=False,
    deviations=(REGISTERED_WITHOUT_CORDONS,),
    brokers=2,
    mbeans=False,
)
def test_registration(cluster: Cluster) -> None:
    """A broker with cordoned log dirs is restarted: its registration names them, not only what follows."""
    world = World(cluster, cluster.create_topic("orders", partitions=2, replicas=2))
    broker = cluster.brokers[1]
    cordon(world, broker, broker.log_dirs[0])
    restarted_healed(world, broker)
    await_in_force(world, broker, broker.log_dirs[0])
    seen = directories(cluster).registered_as_cordoned[broker.id]
    check_known(
        REGISTERED_WITHOUT_CORDONS,
        cluster.distribution.version,
        seen,
        promised=frozenset({broker.log_dirs[0].directory_id()}),
        known=None,
    )


# --- in the file, and by whose paths ----------------------------------------------------------------------------------

IN_FORCE = ("cordoned", "gets no new replicas")
IGNORED = ("not cordoned", "gets new replicas")


def seen_of(cluster: Cluster, log_dir: LogDir, topic: str) -> tuple[str, str]:
    """Whether its broker, the only one, calls a log dir cordoned, and whether replicas of a new topic come there.

    More of them than there are log dirs, so that without a cordon some do.
    """
    flagged = {state.path: state.is_cordoned for state in log_dir.broker.describe_log_dirs()}[str(log_dir.path)]
    created = cluster.create_topic(topic, partitions=2 * len(log_dir.broker.log_dirs), replicas=1)
    placed = any(partition.log_dir_on(log_dir.broker) == log_dir for partition in created.partitions)
    return "cordoned" if flagged else "not cordoned", "gets new replicas" if placed else "gets no new replicas"


@a_cordon(
    "kip-1066/static",
    plan="This can be set in the broker properties files",
    judged=False,
    deviations=(STATIC_HALF_IN_FORCE,),
    brokers=1,
    log_dirs=3,
    mbeans=False,
)
def test_static(cluster: Cluster) -> None:
    """A log dir that the file has cordoned is so to the controller and to the broker, like one cordoned at run time."""
    [broker] = cluster.brokers
    log_dir, other, _ = broker.log_dirs
    assert seen_of(cluster, log_dir, "before") == IGNORED
    broker.stop()
    broker.node.configure({CORDONED: str(log_dir.path)})
    broker.start()
    cluster.await_healthy()
    await_known_to_controller(cluster, broker, log_dir)
    seen = seen_of(cluster, log_dir, "static")
    check_known(STATIC_HALF_IN_FORCE, cluster.distribution.version, seen, promised=IN_FORCE, known=IGNORED)
    broker.configure({CORDONED: str(other.path)})
    await_known_to_controller(cluster, broker, other)
    assert seen_of(cluster, other, "dynamic") == IN_FORCE
    broker.configure({CORDONED: None})  # the file's again
    await_known_to_controller(cluster, broker, log_dir)
    assert seen_of(cluster, log_dir, "static-again") == IN_FORCE


@a_cordon(
    "kip-1066/relative-log-dirs",
    plan="Entries in this list must be entries in log.dirs",
    judged=False,
    deviations=(RELATIVE_UNCORDONED,),
    brokers=1,
    mbeans=False,
    overrides={"log.dirs": "broker-1-log-dir-1,broker-1-log-dir-2"},
)
def test_relative_log_dirs(cluster: Cluster) -> None:
    """Where ``log.dirs`` has relative paths, an entry that is one of them is cordoned."""
    [broker] = cluster.brokers
    log_dir = broker.log_dirs[0]
    assert seen_of(cluster, log_dir, "before") == IGNORED
    broker.configure({CORDONED: log_dir.path.name})
    seen = seen_of(cluster, log_dir, "after")
    check_known(RELATIVE_UNCORDONED, cluster.distribution.version, seen, promised=IN_FORCE, known=IGNORED)


# --- the feature's version --------------------------------------------------------------------------------------------


@a_cordon(
    "kip-1066/metadata-version",
    plan="below metadata.version 4.3-IV0, and after its upgrade",
    judged=False,
    brokers=2,
    metadata_version="4.2-IV1",
    overrides={CORDONED: "*"},
)
def test_metadata_version(cluster: Cluster) -> None:
    """Below its version a cordon can't be set, and one in the file does nothing; with the upgrade it is in force."""
    first, second = cluster.brokers
    world = World(cluster, cluster.create_topic("before", partitions=4, replicas=2))
    for value in ("", "*", None):
        check_refused(
            partial(first.admin.set_broker_configs, first.id, {CORDONED: value}),
            "INVALID_CONFIG",
            rf"requires metadata\.version >= {CORDON_METADATA_VERSION}",
        )
    world.check(also=[registrations])
    arguments = ("--bootstrap-server", cluster.bootstrap, "upgrade", "--release-version", CORDON_METADATA_VERSION)
    with tool_output(cluster.distribution, Tool.FEATURES, *arguments, timeout_s=timeouts.TOOL_S):
        pass
    for broker in cluster.brokers:
        await_known_to_controller(cluster, broker, *broker.log_dirs)
    check_refused(
        lambda: first.admin.create_topic("shut", partitions=1, replicas=1), "INVALID_REPLICATION_FACTOR", "cordoned"
    )
    first.configure({CORDONED: str(first.log_dirs[0].path)})
    second.configure({CORDONED: ""})
    await_in_force(world, first, first.log_dirs[0])
    await_in_force(world, second)
    world.learn(cluster.create_topic("after", partitions=4, replicas=2))
    world.check(also=[registrations])
