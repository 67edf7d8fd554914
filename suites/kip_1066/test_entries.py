"""Shows which values ``cordoned.log.dirs`` accepts, where it can be set, and who shows it (KIP-1066, "Configurations").

"A comma-separated list of the directories that are cordoned. Entries in this list must be entries in log.dirs or
log.dir configuration." The scenarios have no load. They check who accepts an entry, and which log dirs it cordons.
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
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.request_log import requests_logged
from harness.kafka.tool_answers import describe_dynamic_configs, document_configs
from harness.kafka.tools import tool_output
from harness.kafka.versions import CORDON_METADATA_VERSION, Tool
from harness.runner.deviation import Deviation
from harness.waiting import await_until
from suites.checks import check_ends, check_promised_or_known, check_refused
from suites.controllers import controller_requests_logged, controllers_admin
from suites.deviations import (
    CORDONS_NOT_PRINTED,
    DEFAULT_AMONG_SYNONYMS,
    DOCUMENTED_OTHERWISE,
    HEARTBEAT_RENUMBERED,
    REGISTERED_WITHOUT_CORDONS,
    RELATIVE_UNCORDONED,
    SLASHED_UNCORDONED,
    STATIC_HALF_IN_FORCE,
)
from suites.kip_1066.cordons import (
    CORDONED,
    await_in_force,
    await_known_to_controller,
    cordon,
    cordon_scenario,
)
from suites.kip_1066.creation import created_despite_cordons, wide_topics_requested
from suites.kip_1066.refused import check_refused_without_effect
from suites.kip_1066.schemas import (
    RECORDS_BEFORE,
    RECORDS_WITH_CORDONS,
    check_describe_requests,
    check_heartbeat_requests,
    check_record_versions,
    check_registration_request,
)
from suites.kip_1066.test_refusals import NONE
from suites.observations import check_cordons_printed, configs_tool, directories, java_client, metadata_log
from suites.state_check import StateCheck

MISSING = r"All entries in cordoned\.log\.dirs must be present in log\.dirs or log\.dir\. Missing entries : "
ALONE = r"When cordoned\.log\.dirs is set to \*, it must not contain other values"
VIA_CONTROLLERS = r"When updating cordoned\.log\.dirs via controllers, +the new value must be a subset"


def refused_entries(first: LogDir, second: LogDir) -> dict[str, str]:
    """Values that are not a list of log dirs, with a regular expression of Kafka's error for each."""
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
        ",": r"must not be (empty|duplicated)",  # two empty entries
    }


@cordon_scenario("kip-1066/entries", plan="cordoned.log.dirs, its entries, static and dynamic", judged=False, brokers=2)
def test_entries(cluster: Cluster) -> None:
    """``cordoned.log.dirs`` may name one log dir, several, all or none; an entry that is not a log dir is refused.

    At the end the broker has ``log.dir`` in place of ``log.dirs``, and the same holds.
    """
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
    broker.node.configure({"log.dirs": None, "log.dir": f"{first.path},{second.path}"})
    check_not_started_with(state, broker, f"*,{first.path}", ALONE)
    check_refused(
        partial(broker.admin.set_broker_configs, broker.id, {CORDONED: "/nowhere"}), "INVALID_REQUEST", MISSING
    )
    cordon(state, broker, first)  # the second one was cordoned before


def check_named_twice(state: StateCheck, broker: Broker, cordoned: LogDir) -> None:
    """A log dir that is named twice counts once (4.3), or the value is refused (4.4); the cordon stays as it was.

    The KIP does not say which. A refusal must name the duplicate.
    """
    twice = {CORDONED: f"{cordoned.path},{cordoned.path}"}
    try:
        broker.admin.set_broker_configs(broker.id, twice)
    except Refused as refusal:
        if refusal.error != "INVALID_REQUEST" or "must not be duplicated" not in (refusal.message or ""):
            raise PromiseBroken(f"{refusal}, instead of an error that names the duplicate") from refusal
    await_in_force(state, broker, cordoned)
    state.check()


def check_other_targets(state: StateCheck, broker: Broker, cordoned: LogDir, other: Broker) -> None:
    """Only the broker itself accepts cordons, for itself; a controller knows no paths, and may only remove cordons."""
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
    """A broker does not start with a wrong entry in its properties file; without the entry, it does."""
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
    deviations=(CORDONS_NOT_PRINTED, DOCUMENTED_OTHERWISE),
    brokers=2,
)
def test_what_users_see(cluster: Cluster) -> None:
    """One log dir of a broker and all of another are cordoned: every source shows exactly these."""
    topic = cluster.create_topic("orders", partitions=4, replicas=2)
    state = StateCheck(cluster, topic)
    first, second = cluster.brokers
    everything = (metadata_log, configs_tool, java_client)
    cordon(state, first, first.log_dirs[1])
    cordon(state, second, *second.log_dirs, value="*")
    with requests_logged(first.admin, first.id, first.log) as requests:
        state.check(also=everything)
        check_describe_requests(requests)
    check_record_versions(directories(cluster), RECORDS_WITH_CORDONS)
    check_cordons_printed(cluster)
    check_documented(cluster)
    cordon(state, second)
    state.check(also=everything)


def check_documented(cluster: Cluster) -> None:
    """The documentation that the build generates has the KIP's type, importance, default and update mode."""
    rows = document_configs(cluster.distribution).get(CORDONED, {})
    if (seen := (rows.get("Default"), rows.get("Update Mode"))) != ('""', "per-broker"):
        raise PromiseBroken(f"{CORDONED} is documented with this default and update mode: {seen}")
    kind = (rows.get("Type"), rows.get("Importance"))
    check_promised_or_known(DOCUMENTED_OTHERWISE, cluster, kind, promised=("string", "low"), known=("list", "medium"))


@cordon_scenario(
    "kip-1066/by-tool",
    plan="updated at runtime via … the kafka-configs.sh tool",
    judged=False,
    deviations=(DEFAULT_AMONG_SYNONYMS,),
    brokers=2,
    mbeans=False,
)
def test_by_tool(cluster: Cluster) -> None:
    """kafka-configs cordons one log dir of a broker, then both, and uncordons them."""
    state = StateCheck(cluster, cluster.create_topic("orders", partitions=4, replicas=2))
    broker = cluster.brokers[0]
    first, second = broker.log_dirs
    for log_dirs, alter in {
        (first,): ("--add-config", f"{CORDONED}={first.path}"),
        (first, second): ("--add-config", f"{CORDONED}=[{first.path},{second.path}]"),
        (): ("--delete-config", CORDONED),
    }.items():
        target = (*cluster.bootstrap.of_tool(Tool.CONFIGS), "--entity-type", "brokers", "--entity-name", str(broker.id))
        with tool_output(cluster.distribution, Tool.CONFIGS, *target, "--alter", *alter, timeout_s=timeouts.TOOL_S):
            await_in_force(state, broker, *log_dirs)
        state.check(also=[configs_tool])
        if log_dirs:
            check_described(cluster, broker, ",".join(str(each.path) for each in log_dirs))


def check_described(cluster: Cluster, broker: Broker, value: str) -> None:
    """``kafka-configs --describe`` prints the dynamic config as the KIP shows it."""
    title, *lines = describe_dynamic_configs(cluster.distribution, cluster.bootstrap, broker.id)
    if title != f"Dynamic configs for broker {broker.id} are:":
        raise PromiseBroken(f"kafka-configs --describe begins with: {title}")
    seen = next((line for line in lines if line.startswith(CORDONED)), f"no {CORDONED}")
    shown, default = f"{CORDONED}={value}", f"DEFAULT_CONFIG:{CORDONED}="
    check_promised_or_known(
        DEFAULT_AMONG_SYNONYMS,
        cluster,
        seen,
        promised=f"{shown} sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{shown}}}",
        known=f"{shown} sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{shown}, {default}}}",
    )


@cordon_scenario(
    "kip-1066/registration",
    plan="the broker will include the Uuids of cordoned log directories when it registers",
    judged=False,
    deviations=(REGISTERED_WITHOUT_CORDONS, HEARTBEAT_RENUMBERED),
    brokers=2,
    mbeans=False,
)
def test_registration(cluster: Cluster) -> None:
    """A broker with all log dirs cordoned restarts: its registration has the cordons, and it never gets a replica."""
    state = StateCheck(cluster, cluster.create_topic("orders", partitions=2, replicas=2))
    asked, broker = cluster.brokers
    cordon(state, broker, *broker.log_dirs, value="*")
    with wide_topics_requested(cluster, asked) as topics:
        broker.stop()
        down = now()
        state.broker_gone(broker)
        await_until(
            lambda: any(topic.at > down for topic in topics[:-1]), timeout_s=timeouts.REQUEST_S, what="topic requests"
        )
        with controller_requests_logged(cluster) as requests:
            broker.start()
            await_known_to_controller(cluster, broker, *broker.log_dirs)
            known = now()
            check_registration_request(cluster, requests, broker)
            check_heartbeat_requests(cluster, requests, broker)
        await_until(
            lambda: [topic for topic in topics if topic.at > known][ENOUGH:],
            timeout_s=timeouts.PROGRESS_S,
            what=f"more than {ENOUGH} topics to be requested",
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
        raise PromiseBroken(f"{[topic.name for topic in made]} are on {broker}, whose log dirs are all cordoned")
    for topic in cluster.await_topics({each.name: 1 for each in made}) if made else ():
        state.add_topic(topic, cordoned=frozenset())
    state.broker_back(broker)
    await_in_force(state, broker, *broker.log_dirs)


ENOUGH = 10
"""More than so many topics must be requested after the controller knows the cordons again."""


# --- the properties file, and how it writes paths ---------------------------------------------------------------------

IN_FORCE = ("cordoned", "gets no new replicas")
IGNORED = ("not cordoned", "gets new replicas")


def require_seen(wanted: tuple[str, str], seen: tuple[str, str]) -> None:
    """Without a cordon, the log dir is as it should be.

    :raises Inconclusive: it is not, so a cordon would show nothing
    """
    if seen != wanted:
        raise Inconclusive(f"without a cordon the log dir should be {wanted}: {seen}")


def check_seen(promised: tuple[str, str], cluster: Cluster, log_dir: LogDir, topic: str) -> None:
    """:func:`cordon_effect` gives the promised answer."""
    if (seen := cordon_effect(cluster, log_dir, topic)) != promised:
        raise PromiseBroken(f"{log_dir} is {seen} instead of {promised}")


def cordoned_flags(broker: Broker) -> set[bool | None]:
    """The values of ``isCordoned`` over the broker's log dirs, by DescribeLogDirs."""
    return {state.is_cordoned for state in broker.describe_log_dirs()}


def cordon_effect(cluster: Cluster, log_dir: LogDir, topic: str) -> tuple[str, str]:
    """Whether the only broker shows the log dir as cordoned, and whether it places replicas of a new topic there.

    The topic has more partitions than the broker has log dirs, so that without a cordon some would be placed there.
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
    """Log dirs that the properties file cordons are cordoned for the controller and the broker, as at run time.

    This is tried with one log dir, several and all. A restart without them in the file uncordons them.
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
    broker.configure({CORDONED: None})  # the value of the file applies again
    await_known_to_controller(cluster, broker, first, second)
    for log_dir in (first, second):
        check_seen(IN_FORCE, cluster, log_dir, f"static-again-{log_dir.path.name}")
    restarted_with(cluster, broker, {CORDONED: ""})
    await_known_to_controller(cluster, broker)
    for log_dir in (first, second):
        check_seen(IGNORED, cluster, log_dir, f"uncordoned-{log_dir.path.name}")


def restarted_with(cluster: Cluster, broker: Broker, settings: Mapping[str, str]) -> None:
    """Restart the broker with these settings in its properties file, and wait until the cluster is healthy."""
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
    """If ``log.dirs`` has relative paths, an entry that is one of them cordons its log dir, and ``*`` cordons all."""
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
    """If paths in ``log.dirs`` end in a slash, an entry that is one of them cordons its log dir, and ``*`` all."""
    [broker] = cluster.brokers
    restarted_with(cluster, broker, {"log.dirs": ",".join(f"{each.path}/" for each in broker.log_dirs)})
    check_entry(cluster, f"{broker.log_dirs[0].path}/", SLASHED_UNCORDONED)


def check_entry(cluster: Cluster, entry: str, deviation: Deviation) -> None:
    """The only broker's first log dir is cordoned by its entry in ``log.dirs``.

    Builds with the deviation refuse its absolute path, too. As a control, ``*`` stays set, and must cordon the same
    broker once ``log.dirs`` has plain absolute paths.
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
    """All log dirs of all brokers are cordoned: a new topic is refused."""
    admin = cluster.brokers[0].admin
    ask = partial(admin.create_topics, [NewTopic(name="shut", replicas=1)])
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
    """Below metadata.version 4.3-IV0, cordons cannot be set, and those in the file apply only after the upgrade."""
    first, second = cluster.brokers
    state = StateCheck(cluster, cluster.create_topic("before", partitions=4, replicas=2))
    for value in ("", "*", None):
        check_refused(
            partial(first.admin.set_broker_configs, first.id, {CORDONED: value}),
            "INVALID_CONFIG",
            rf"requires metadata\.version >= {CORDON_METADATA_VERSION}",
        )
    state.check(also=[metadata_log])
    check_record_versions(directories(cluster), RECORDS_BEFORE)
    arguments = (*cluster.bootstrap.of_tool(Tool.FEATURES), "upgrade", "--release-version", CORDON_METADATA_VERSION)
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
