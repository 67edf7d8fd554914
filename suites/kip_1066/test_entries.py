"""What may be written into ``cordoned.log.dirs``, where, and who shows it then (KIP-1066, "Configurations").

"A comma-separated list of the directories that are cordoned. Entries in this list must be entries in log.dirs or
log.dir configuration." Without a load: of each entry it is seen who takes it and which log dirs are called cordoned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import Refused
from harness.kafka.tools import tool_output
from harness.kafka.versions import CORDON_METADATA_VERSION, Tool
from harness.runner.deviation import Deviation
from harness.waiting import await_until
from suites.checks import check_ends, check_promised_or_known, check_refused
from suites.deviations import (
    CORDONS_NOT_PRINTED,
    REGISTERED_WITHOUT_CORDONS,
    RELATIVE_UNCORDONED,
    SLASHED_UNCORDONED,
    STATIC_HALF_IN_FORCE,
)
from suites.kip_1066.cordons import (
    CORDONED,
    await_in_force,
    await_known_to_controller,
    controllers_admin,
    cordon,
    cordon_scenario,
)
from suites.kip_1066.creation import created_despite_cordons, wide_topics_requested
from suites.kip_1066.refused import check_refused_without_effect
from suites.kip_1066.test_refusals import NONE
from suites.observations import configs_tool, directories, metadata_log
from suites.state_check import StateCheck

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
        ",": r"must not be (empty|duplicated)",  # it has two that are empty
    }


@cordon_scenario("kip-1066/entries", plan="cordoned.log.dirs, its entries, static and dynamic", judged=False, brokers=2)
def test_entries(cluster: Cluster) -> None:
    """One log dir, several, all, none, set at run time or in the file; what is no log dir is refused."""
    topic = cluster.create_topic("orders", partitions=4, replicas=2)
    state = StateCheck(cluster, topic)
    broker, other = cluster.brokers
    first, second = broker.log_dirs
    for value, cordoned in {
        f"{first.path}": [first],
        f"{first.path}, {second.path}": [first, second],
        "*": [first, second],
        "": [],
    }.items():
        cordon(state, broker, *cordoned, value=value)
    cordon(state, broker, second)
    check_named_twice(state, broker, second)
    for entry, saying in refused_entries(first, second).items():
        check_refused(partial(broker.admin.set_broker_configs, broker.id, {CORDONED: entry}), "INVALID_REQUEST", saying)
        state.check()
    check_other_targets(state, broker, second, other)
    check_not_started_with(state, broker, f"{first.path}/", MISSING)
    check_not_started_with(state, broker, f"*,{first.path}", ALONE)


def check_named_twice(state: StateCheck, broker: Broker, cordoned: LogDir) -> None:
    """A log dir that is cordoned and named twice stays cordoned, alone: taken as one up to 4.3, refused since 4.4.

    The KIP says nothing of it, so that either is right; a refusal must give this as its reason.
    """
    twice = {CORDONED: f"{cordoned.path},{cordoned.path}"}
    try:
        broker.admin.set_broker_configs(broker.id, twice)
    except Refused as refusal:
        if refusal.error != "INVALID_REQUEST" or "must not be duplicated" not in (refusal.message or ""):
            raise PromiseBroken(f"{refusal}, instead of a word of the duplicate") from refusal
    await_in_force(state, broker, cordoned)
    state.check()


def check_other_targets(state: StateCheck, broker: Broker, cordoned: LogDir, other: Broker) -> None:
    """Per broker only, and by the broker itself; a controller, which knows no paths, may only take cordons away."""
    controller = controllers_admin(state.cluster)
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
    state.check(also=[configs_tool])
    cordon(state, broker, *broker.log_dirs)
    for left in ([cordoned], []):
        state.set_cordoned(broker, *left)
        controller.set_broker_configs(broker.id, {CORDONED: ",".join(str(each.path) for each in left)})
        await_in_force(state, broker, *left)


def check_not_started_with(state: StateCheck, broker: Broker, entry: str, saying: str) -> None:
    """In the file, what is no log dir ends the broker's start; without it, it is back."""
    broker.stop()
    state.broker_gone(broker)
    broker.node.configure({CORDONED: entry})
    broker.start()
    check_ends(broker, exit_code=1, saying=saying)
    broker.node.configure({CORDONED: ""})
    broker.start()
    state.broker_back(broker)
    state.check(timeouts.RECOVERY_S)


# --- who shows it -----------------------------------------------------------------------------------------------------


@cordon_scenario(
    "kip-1066/what-users-see",
    plan="kafka-configs, DescribeLogDirs v5, kafka-log-dirs, the metadata records",
    judged=False,
    deviations=(CORDONS_NOT_PRINTED,),
    brokers=2,
)
def test_what_users_see(cluster: Cluster) -> None:
    """A cordoned log dir, and a wholly cordoned broker: every source that there is says so, and of no other."""
    topic = cluster.create_topic("orders", partitions=4, replicas=2)
    state = StateCheck(cluster, topic)
    first, second = cluster.brokers
    everything = (metadata_log, configs_tool)
    cordon(state, first, first.log_dirs[1])
    cordon(state, second, *second.log_dirs, value="*")
    state.check(also=everything)
    cordon(state, second)
    state.check(also=everything)


@cordon_scenario(
    "kip-1066/by-tool", plan="updated at runtime via … the kafka-configs.sh tool", judged=False, brokers=2, mbeans=False
)
def test_by_tool(cluster: Cluster) -> None:
    """kafka-configs cordons one log dir, then both of a broker, and uncordons them."""
    state = StateCheck(cluster, cluster.create_topic("orders", partitions=4, replicas=2))
    broker = cluster.brokers[0]
    first, second = broker.log_dirs
    for log_dirs, alter in {
        (first,): ("--add-config", f"{CORDONED}={first.path}"),
        (first, second): ("--add-config", f"{CORDONED}=[{first.path},{second.path}]"),
        (): ("--delete-config", CORDONED),
    }.items():
        target = ("--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers", "--entity-name", str(broker.id))
        with tool_output(cluster.distribution, Tool.CONFIGS, *target, "--alter", *alter, timeout_s=timeouts.TOOL_S):
            await_in_force(state, broker, *log_dirs)
        state.check(also=[configs_tool])


@cordon_scenario(
    "kip-1066/registration",
    plan="the broker will include the Uuids of cordoned log directories when it registers",
    judged=False,
    deviations=(REGISTERED_WITHOUT_CORDONS,),
    brokers=2,
    mbeans=False,
)
def test_registration(cluster: Cluster) -> None:
    """A wholly cordoned broker is restarted: its registration says so, and no topic comes to it at any time."""
    state = StateCheck(cluster, cluster.create_topic("orders", partitions=2, replicas=2))
    asked, broker = cluster.brokers
    cordon(state, broker, *broker.log_dirs, value="*")
    with wide_topics_requested(cluster, asked) as topics:
        broker.stop()
        down = now()
        state.broker_gone(broker)
        await_until(
            lambda: any(topic.at > down for topic in topics[:-1]), timeout_s=timeouts.REQUEST_S, what="topics asked for"
        )
        broker.start()
        await_known_to_controller(cluster, broker, *broker.log_dirs)
        known = now()
        await_until(
            lambda: [topic for topic in topics if topic.at > known][ENOUGH:],
            timeout_s=timeouts.PROGRESS_S,
            what=f"more than {ENOUGH} topics to be asked for",
        )
    made = created_despite_cordons(topics, down=down, started=broker.started_at, known=known)
    cluster.journal.write(
        "cordon.unheeded",
        broker=broker.id,
        asked=len(topics),
        made=len(made),
        for_s=(made[-1].answered - made[0].at).total_seconds() if made else 0.0,
    )
    without = check_promised_or_known(
        REGISTERED_WITHOUT_CORDONS,
        cluster,
        directories(cluster).registered_as_cordoned[broker.id],
        promised=frozenset(log_dir.directory_id() for log_dir in broker.log_dirs),
        known=None,
    )
    if made and not without:
        raise PromiseBroken(f"{[topic.name for topic in made]} came to {broker}, all of whose log dirs are cordoned")
    for topic in cluster.await_topics({each.name: 1 for each in made}) if made else ():
        state.add_topic(topic, cordoned=frozenset())
    state.broker_back(broker)
    await_in_force(state, broker, *broker.log_dirs)


ENOUGH = 10
"""Topics, more than these, that are asked for once the controller knows the cordons again."""


# --- in the file, and by whose paths ----------------------------------------------------------------------------------

IN_FORCE = ("cordoned", "gets no new replicas")
IGNORED = ("not cordoned", "gets new replicas")


def require_seen(wanted: tuple[str, str], seen: tuple[str, str]) -> None:
    """What is so without a cordon.

    :raises Inconclusive: it isn't, so that a cordon shows nothing
    """
    if seen != wanted:
        raise Inconclusive(f"without a cordon the log dir should be {wanted}: {seen}")


def check_seen(promised: tuple[str, str], cluster: Cluster, log_dir: LogDir, topic: str) -> None:
    """As :func:`cordon_effect` has it.

    :raises PromiseBroken: it is otherwise
    """
    if (seen := cordon_effect(cluster, log_dir, topic)) != promised:
        raise PromiseBroken(f"{log_dir} is {seen} instead of {promised}")


def cordoned_flags(broker: Broker) -> set[bool | None]:
    """What the broker says of its log dirs: whether they are cordoned."""
    return {state.is_cordoned for state in broker.describe_log_dirs()}


def cordon_effect(cluster: Cluster, log_dir: LogDir, topic: str) -> tuple[str, str]:
    """Whether its broker, the only one, calls a log dir cordoned, and whether replicas of a new topic come there.

    More of them than there are log dirs, so that without a cordon some do.
    """
    flagged = {state.path: state.is_cordoned for state in log_dir.broker.describe_log_dirs()}[str(log_dir.path)]
    created = cluster.create_topic(topic, partitions=2 * len(log_dir.broker.log_dirs), replicas=1)
    placed = any(partition.log_dir_on(log_dir.broker) == log_dir for partition in created.partitions)
    return "cordoned" if flagged else "not cordoned", "gets new replicas" if placed else "gets no new replicas"


@cordon_scenario(
    "kip-1066/static",
    plan="This can be set in the broker properties files",
    judged=False,
    deviations=(STATIC_HALF_IN_FORCE,),
    brokers=1,
    log_dirs=3,
    mbeans=False,
)
def test_static(cluster: Cluster) -> None:
    """Log dirs that the file has cordoned are so to the controller and to the broker, like those cordoned at run time.

    One, several or all, which a restart without them in the file uncordons.
    """
    [broker] = cluster.brokers
    first, second, third = broker.log_dirs
    require_seen(IGNORED, cordon_effect(cluster, first, "before"))
    restarted_with(cluster, broker, {CORDONED: "*"})
    await_known_to_controller(cluster, broker, *broker.log_dirs)
    check_promised_or_known(STATIC_HALF_IN_FORCE, cluster, cordoned_flags(broker), promised={True}, known={False})
    check_nothing_placed(cluster)
    for topic, log_dirs in {"one": [first], "several": [first, second]}.items():
        restarted_with(cluster, broker, {CORDONED: ",".join(str(each.path) for each in log_dirs)})
        await_known_to_controller(cluster, broker, *log_dirs)
        for log_dir in log_dirs:
            seen = cordon_effect(cluster, log_dir, f"{topic}-{log_dir.path.name}")
            check_promised_or_known(STATIC_HALF_IN_FORCE, cluster, seen, promised=IN_FORCE, known=IGNORED)
    broker.configure({CORDONED: str(third.path)})
    await_known_to_controller(cluster, broker, third)
    check_seen(IN_FORCE, cluster, third, "dynamic")
    broker.configure({CORDONED: None})  # the file's again
    await_known_to_controller(cluster, broker, first, second)
    for log_dir in (first, second):
        check_seen(IN_FORCE, cluster, log_dir, f"static-again-{log_dir.path.name}")
    restarted_with(cluster, broker, {CORDONED: ""})
    await_known_to_controller(cluster, broker)
    for log_dir in (first, second):
        check_seen(IGNORED, cluster, log_dir, f"uncordoned-{log_dir.path.name}")


def restarted_with(cluster: Cluster, broker: Broker, settings: Mapping[str, str]) -> None:
    """The broker is restarted with these settings in its file, and serves."""
    broker.stop()
    broker.node.configure(settings)
    broker.start()
    cluster.await_healthy()


@cordon_scenario(
    "kip-1066/relative-log-dirs",
    plan="Entries in this list must be entries in log.dirs",
    judged=False,
    deviations=(RELATIVE_UNCORDONED,),
    brokers=1,
    mbeans=False,
    overrides={"log.dirs": "broker-1-log-dir-1,broker-1-log-dir-2"},
)
def test_relative_log_dirs(cluster: Cluster) -> None:
    """Where ``log.dirs`` has relative paths, an entry that is one of them is cordoned, and all are by ``*``."""
    [broker] = cluster.brokers
    check_entry(cluster, broker.log_dirs[0].path.name, RELATIVE_UNCORDONED)


@cordon_scenario(
    "kip-1066/slashed-log-dirs",
    plan="Entries in this list must be entries in log.dirs",
    judged=False,
    deviations=(SLASHED_UNCORDONED,),
    brokers=1,
    mbeans=False,
)
def test_slashed_log_dirs(cluster: Cluster) -> None:
    """Where paths in ``log.dirs`` end in a slash, an entry that is one of them is cordoned, and all are by ``*``."""
    [broker] = cluster.brokers
    restarted_with(cluster, broker, {"log.dirs": ",".join(f"{each.path}/" for each in broker.log_dirs)})
    check_entry(cluster, f"{broker.log_dirs[0].path}/", SLASHED_UNCORDONED)


def check_entry(cluster: Cluster, entry: str, deviation: Deviation) -> None:
    """The only broker's first log dir can be cordoned by the entry that it is in ``log.dirs``.

    Builds with the deviation don't take its path, which is none, either (of others the KIP leaves that open); and as
    the control ``*``, which is left in force, shuts the same broker with its log dirs by their plain paths.
    """
    [broker] = cluster.brokers
    log_dir = broker.log_dirs[0]
    require_seen(IGNORED, cordon_effect(cluster, log_dir, "before"))
    broker.configure({CORDONED: entry})
    if check_promised_or_known(
        deviation, cluster, cordon_effect(cluster, log_dir, "entry"), promised=IN_FORCE, known=IGNORED
    ):
        by_path = partial(broker.admin.set_broker_configs, broker.id, {CORDONED: str(log_dir.path)})
        check_refused(by_path, "INVALID_REQUEST", MISSING)
    broker.configure({CORDONED: "*"})
    check_promised_or_known(deviation, cluster, cordoned_flags(broker), promised={True}, known={False})
    restarted_with(cluster, broker, {"log.dirs": ",".join(str(each.path) for each in broker.log_dirs)})
    await_known_to_controller(cluster, broker, *broker.log_dirs)
    check_nothing_placed(cluster)


def check_nothing_placed(cluster: Cluster) -> None:
    """All brokers are wholly cordoned, and no topic is created any more."""
    admin = cluster.brokers[0].admin
    ask = partial(admin.create_topic, "shut", partitions=1, replicas=1)
    check_refused_without_effect(cluster, "shut", ask, "INVALID_REPLICATION_FACTOR", NONE)


# --- the feature's version --------------------------------------------------------------------------------------------


@cordon_scenario(
    "kip-1066/metadata-version",
    plan="below metadata.version 4.3-IV0, and after its upgrade",
    judged=False,
    deviations=(STATIC_HALF_IN_FORCE,),
    brokers=2,
    metadata_version="4.2-IV1",
    overrides={CORDONED: "*"},
)
def test_metadata_version(cluster: Cluster) -> None:
    """Below its version a cordon can't be set, and one in the file does nothing; with the upgrade it is in force."""
    first, second = cluster.brokers
    state = StateCheck(cluster, cluster.create_topic("before", partitions=4, replicas=2))
    for value in ("", "*", None):
        check_refused(
            partial(first.admin.set_broker_configs, first.id, {CORDONED: value}),
            "INVALID_CONFIG",
            rf"requires metadata\.version >= {CORDON_METADATA_VERSION}",
        )
    state.check(also=[metadata_log])
    arguments = ("--bootstrap-server", cluster.bootstrap, "upgrade", "--release-version", CORDON_METADATA_VERSION)
    with tool_output(cluster.distribution, Tool.FEATURES, *arguments, timeout_s=timeouts.TOOL_S):
        pass
    for broker in cluster.brokers:
        await_known_to_controller(cluster, broker, *broker.log_dirs)
        check_promised_or_known(
            STATIC_HALF_IN_FORCE,
            cluster,
            cordoned_flags(broker),
            promised={True},
            known={False},
        )
    check_nothing_placed(cluster)
    first.configure({CORDONED: str(first.log_dirs[0].path)})
    second.configure({CORDONED: ""})
    await_in_force(state, first, first.log_dirs[0])
    await_in_force(state, second)
    state.add_topic(cluster.create_topic("after", partitions=4, replicas=2))
    state.check(also=[metadata_log])
