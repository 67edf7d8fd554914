"""Tries Kafka's own tools with the options that the suites use, and the parsers of their output."""

from __future__ import annotations

import re

from harness import timeouts
from harness.cluster import reassign
from harness.cluster.profile import BROKER_SETTINGS, SHORT_CONNECT_TIMEOUTS
from harness.cluster.quorum.dynamic import format_controller
from harness.cluster.quorum.format_template import format_template, random_uuid
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.reassign import Placement
from harness.errors import BuildLacks, ToolFailed
from harness.explain.segments import read_contents, read_sessions
from harness.host.scratch import scratch
from harness.kafka import tool_answers
from harness.kafka.broker_properties import refusals
from harness.kafka.java_client import cordoned_flags, metadata_versions
from harness.kafka.main_classes import exit_hook
from harness.kafka.metadata_records import read_metadata_log
from harness.kafka.tools import tool_output
from harness.kafka.tools_jvm import public_methods, tool_lines
from harness.kafka.versions import Tool
from harness.measure.metadata_history import irregular
from harness.waiting import await_until
from suites.kip_1066.cordons import CORDONED
from suites.probe.trial import PARTITIONS, RECORDS, SOON_S, TOPIC, Lacking, Trial, tries

_FIRST_TASKS = "log.initial.task.delay.ms"
_UNKNOWN = "jbod.unknown"


@tries("exit-hook")
def _exit_hook(trial: Trial) -> str:
    hook = exit_hook(trial.cluster.distribution.class_path)
    if hook is None:
        raise Lacking("its jars have no class Exit$Procedure")
    return hook


@tries("admin-client")
def _admin_client(trial: Trial) -> str:
    name = "org.apache.kafka.clients.admin.DescribeReplicaLogDirsResult$ReplicaLogDirInfo"
    return f"{len(public_methods(trial.cluster.distribution, name))} methods"


@tries("config-names")
def _config_names(trial: Trial) -> str:
    refused = refusals(trial.cluster.distribution, {**BROKER_SETTINGS, _UNKNOWN: "1"})
    if refused.keys() - {*SHORT_CONNECT_TIMEOUTS, _FIRST_TASKS} != {_UNKNOWN}:
        raise Lacking(f"it refuses {refused}, instead of only {_UNKNOWN}")
    return f"it does not know {', '.join(refused)}"


@tries("tool-topics-describe")
def _topics(trial: Trial) -> str:
    distribution, bootstrap = trial.cluster.distribution, trial.broker.bootstrap
    seen = tool_answers.describe_topics(distribution, bootstrap)
    if any(seen.get((TOPIC, index)) is None for index in range(PARTITIONS)):
        raise Lacking(f"{len(seen)} partitions of its output could be read, and not all of topic {TOPIC}")
    for option in ("--under-replicated-partitions", "--unavailable-partitions"):
        if tool_answers.describe_topics(distribution, bootstrap, option):
            raise Lacking(f"with {option} it names healthy partitions")
    return f"{len(seen)} partitions"


@tries("tool-topics-min-isr")
def _min_isr(trial: Trial) -> str:
    distribution, bootstrap = trial.cluster.distribution, trial.broker.bootstrap
    if tool_answers.describe_topics(distribution, bootstrap, "--under-min-isr-partitions"):
        raise Lacking("with --under-min-isr-partitions it names healthy partitions")
    seen = tool_answers.describe_topics(distribution, bootstrap, "--at-min-isr-partitions")
    if (TOPIC, 0) not in seen:
        raise Lacking(f"with --at-min-isr-partitions it does not name {TOPIC}-0, which has one replica")
    return f"{len(seen)} partitions"


@tries("tool-topics-create")
def _create(trial: Trial) -> str:
    options = ("--create", "--topic", "by-tool", "--partitions", "2", "--replication-factor", "1")
    tool_lines(trial.cluster.distribution, Tool.TOPICS, *trial.broker.bootstrap.of_tool(Tool.TOPICS), *options)
    await_until(
        lambda: sum(p.topic == "by-tool" for p in trial.admin.describe_cluster().partitions) == 2,
        timeout_s=SOON_S,
        what="the two partitions of topic by-tool, which kafka-topics created",
    )
    return "by-tool"


@tries("tool-leader-election")
def _leader_election(trial: Trial) -> str:
    lines = tool_answers.elect_preferred_leader(trial.cluster.distribution, trial.broker.bootstrap, TOPIC, 0)
    if not any(f"{TOPIC}-0" in line for line in lines):
        raise Lacking(f"it does not name {TOPIC}-0: {lines}")
    return lines[-1]


@tries("tool-log-dirs")
def _log_dirs(trial: Trial) -> str:
    for only in ((), ("--topic-list", TOPIC)):
        seen = tool_answers.describe_log_dirs(trial.cluster.distribution, trial.broker.bootstrap, [1], *only)
        dirs = {each.path for each in seen[1]}
        replicas = [replica for each in seen[1] for replica in each.replicas if replica.topic == TOPIC]
        if dirs != {str(log_dir.path) for log_dir in trial.broker.log_dirs} or len(replicas) < PARTITIONS:
            raise Lacking(f"it shows {len(dirs)} log dirs and {len(replicas)} replicas of topic {TOPIC}")
    return f"{len(dirs)} log dirs"


@tries("tool-configs-describe")
def _configs(trial: Trial) -> str:
    seen = _described(trial)
    shown = seen.get("log.dirs")
    wanted = ",".join(str(log_dir.path) for log_dir in trial.broker.log_dirs)
    if shown != wanted:
        raise Lacking(f"kafka-configs shows log.dirs={shown} instead of {wanted}")
    return f"{len(seen)} settings"


@tries("tool-configs-describe-one")
def _configs_of_one(trial: Trial) -> str:
    """Describe a config that has no effect."""
    trial.admin.set_broker_configs(1, {"jbod.described": "probe"})
    lines = await_until(
        lambda: tool_answers.describe_dynamic_configs(trial.cluster.distribution, trial.broker.bootstrap, 1),
        lambda lines: any(line.startswith("jbod.described=") and "synonyms={" in line for line in lines),
        timeout_s=SOON_S,
        what="kafka-configs to show a dynamic config with its synonyms",
    )
    trial.admin.set_broker_configs(1, {"jbod.described": None})
    return lines[0]


@tries("tool-config-docs")
def _config_docs(trial: Trial) -> str:
    docs = tool_answers.document_configs(trial.cluster.distribution)
    if not {"Type", "Importance", "Default", "Update Mode"} <= docs.get(CORDONED, {}).keys():
        raise Lacking(f"it prints {len(docs)} configs, and of {CORDONED} {docs.get(CORDONED)}")
    return f"{len(docs)} configs"


@tries("java-client")
def _java_client(trial: Trial) -> str:
    flags = cordoned_flags(trial.cluster.distribution, trial.broker.bootstrap, [1])[1]
    if flags.keys() != {str(log_dir.path) for log_dir in trial.broker.log_dirs}:
        raise Lacking(f"it shows {len(flags)} log dirs of broker 1, which has {len(trial.broker.log_dirs)}")
    return f"{len(flags)} log dirs"


@tries("metadata-versions")
def _metadata_versions(trial: Trial) -> str:
    versions = metadata_versions(trial.cluster.distribution)
    if not any(each.changes_metadata for each in versions):
        raise Lacking(f"none of {len(versions)} versions changed the metadata")
    return f"{len(versions)} versions, up to {versions[-1].name}"


def _described(trial: Trial) -> dict[str, str]:
    seen = tool_answers.describe_broker_configs(trial.cluster.distribution, trial.broker.bootstrap)
    return seen.get(1, {})


def _in_force(trial: Trial, *names: str) -> str:
    """kafka-configs shows these settings with jbod's values; a build that does not know a setting shows none."""
    seen = _described(trial)
    set_here = {**BROKER_SETTINGS, **trial.cluster.spec.overrides}
    if unknown := [f"{name} is {seen.get(name)}" for name in names if seen.get(name) != set_here[name]]:
        raise Lacking(f"not known, or not in force: {', '.join(unknown)}")
    return f"{len(names)} in force"


@tries("config-settings")
def _settings(trial: Trial) -> str:
    return _in_force(trial, *(name for name in BROKER_SETTINGS if name not in (*SHORT_CONNECT_TIMEOUTS, _FIRST_TASKS)))


@tries("config-connects-soon")
def _connects_soon(trial: Trial) -> str:
    return _in_force(trial, *SHORT_CONNECT_TIMEOUTS)


@tries("config-first-tasks")
def _first_tasks(trial: Trial) -> str:
    return _in_force(trial, _FIRST_TASKS)


@tries("tool-configs-alter")
def _alter(trial: Trial) -> str:
    first, second, _ = (str(log_dir.path) for log_dir in trial.broker.log_dirs)
    at = trial.broker.bootstrap.of_tool(Tool.CONFIGS)
    target = (*at, "--entity-type", "brokers", "--entity-name", "1", "--alter")
    for alter, value in (
        (("--add-config", f"{CORDONED}=[{first},{second}]"), f"{first},{second}"),
        (("--delete-config", CORDONED), None),
    ):
        tool_lines(trial.cluster.distribution, Tool.CONFIGS, *target, *alter)
        await_until(
            lambda: trial.admin.dynamic_configs(1).own.get(CORDONED),
            lambda got, value=value: got == value,  # type: ignore[misc]
            timeout_s=SOON_S,
            what=f"{CORDONED} to be {value}",
        )
    return CORDONED


# --- kafka-reassign-partitions ----------------------------------------------------------------------------------------


@tries("tool-reassign-generate")
def _generate(trial: Trial) -> str:
    for ignore_racks in (False, True):
        now, then = reassign.generate(trial.cluster, [trial.topic], [trial.broker], ignore_racks=ignore_racks)
        if len(now) != PARTITIONS or len(then) != PARTITIONS:
            raise Lacking(f"it shows {len(now)} partitions, and proposes {len(then)}, of {PARTITIONS}")
    return f"{len(then)} partitions"


@tries("tool-reassign-execute")
def _execute(trial: Trial) -> str:
    partition = trial.topic[2]
    here = partition.log_dir_on(trial.broker)
    there = next(log_dir for log_dir in trial.broker.log_dirs if log_dir != here)
    placement = Placement(partition=partition, on=(there,))
    reassign.execute(trial.cluster, placement, throttle=1 << 30, log_dirs_throttle=1 << 30, timeout_ms=10_000)
    await_until(
        lambda: reassign.verify(trial.cluster, placement),
        lambda left: not left,
        timeout_s=SOON_S,
        what=f"--verify to report that {placement} is done",
    )
    if trial.broker.log_dir_of(TOPIC, 2) != there:
        raise Lacking(f"--verify reports that all is done, and {partition} is not in {there}")
    return f"{partition} into {there}"


@tries("tool-reassign-same-factor")
def _same_factor(trial: Trial) -> str:
    """Reassign a partition to the broker that has it."""
    partition = trial.topic[2]
    reassign.execute(trial.cluster, Placement(partition=partition, on=(trial.broker,)), keep_factor=True)
    return f"{partition} stays"


@tries("tool-reassign-cancel")
def _cancel(trial: Trial) -> str:
    partition = trial.topic[2]
    placement = Placement(partition=partition, on=(partition.log_dir_on(trial.broker),))
    said = [line for line in reassign.cancel(trial.cluster, placement) if line]
    return said[-1] if said else "done"


@tries("tool-reassign-list")
def _list(trial: Trial) -> str:
    return f"{len(reassign.list_under_way(trial.cluster))} reassignments"


# --- tools of KRaft -------------------------------------------------------------------------------------------------


@tries("tool-cluster")
def _unregister(trial: Trial) -> str:
    """Ask to unregister a broker that does not exist: the answer must say so."""
    arguments = ("unregister", *trial.broker.bootstrap.of_tool(Tool.CLUSTER), "--id", "77")
    try:
        said = tool_lines(trial.cluster.distribution, Tool.CLUSTER, *arguments)
    except ToolFailed as error:
        if not re.search("77|BrokerIdNotRegistered", str(error)):
            raise
        said = [str(error)]
    return (said or ["done"])[-1].strip()


@tries("tool-metadata-quorum")
def _metadata_quorum(trial: Trial) -> str:
    """Ask to remove a voter that does not exist, and to add a controller that is a voter: the answers must say so."""
    distribution, at = trial.cluster.distribution, trial.broker.bootstrap.of_tool(Tool.METADATA_QUORUM)
    seen = tool_answers.describe_quorum(distribution, trial.broker.bootstrap)
    if len(seen.voters) != 1 or seen != trial.admin.describe_quorum():
        raise Lacking(f"it shows {seen}, and DescribeQuorum {trial.admin.describe_quorum()}")
    [voter] = seen.voters
    unknown = ("--controller-id", "77", "--controller-directory-id", voter.directory_id)
    config = ("--command-config", str(trial.controller.config))
    for change in ((*at, "remove-controller", *unknown), (*at, *config, "add-controller")):
        try:
            tool_lines(distribution, Tool.METADATA_QUORUM, *change)
        except ToolFailed as error:
            if not re.search("kraft.version|[Vv]oter", str(error)):
                raise
    return f"{len(seen.observers)} observers"


@tries("tool-features")
def _features(trial: Trial) -> str:
    """Upgrade to the present version: nothing changes."""
    at = trial.broker.bootstrap.of_tool(Tool.FEATURES)
    described = "".join(tool_lines(trial.cluster.distribution, Tool.FEATURES, *at, "describe"))
    found = re.search(r"metadata\.version\s.*?FinalizedVersionLevel: (\S+)", described)
    if found is None:
        raise Lacking(f"describe shows no finalized metadata.version: {described[:200]}")
    arguments = (*at, "upgrade", "--release-version", found[1])
    said = tool_lines(trial.cluster.distribution, Tool.FEATURES, *arguments)
    return f"at {found[1]}: {(said or ['done'])[-1].strip()}"


@tries("format-release-version")
def _format_release(trial: Trial) -> str:
    return str(sorted(format_template(trial.cluster.distribution, "4.2-IV1").names()))


@tries("format-voters")
def _format_voters(trial: Trial) -> str:
    properties = dict(trial.controller.spec.properties)
    del properties["controller.quorum.voters"]
    properties["controller.quorum.bootstrap.servers"] = "127.0.0.1:1"
    voters = f"{properties['node.id']}@127.0.0.1:1:{random_uuid()}"
    for options in (("--initial-controllers", voters), ("--no-initial-controllers",)):
        with scratch("format") as folder:
            dir = folder / "metadata"
            dir.mkdir()
            format_controller(trial.cluster.distribution, properties | {"log.dirs": str(dir)}, random_uuid(), *options)
            made = {str(file.relative_to(dir)) for file in dir.rglob("*") if file.is_file()}
    return str(sorted(made))


@tries("format-ignore-formatted")
def _ignore_formatted(trial: Trial) -> str:
    quorum, node = trial.cluster.quorum, trial.broker.node
    assert isinstance(quorum, KRaftQuorum)
    arguments = ("-t", quorum.cluster_id, "-c", str(node.config))
    refused = node.run_tool(Tool.STORAGE, "format", *arguments)
    if not refused.returncode or "ignore-formatted" not in refused.stdout + refused.stderr:
        raise Lacking(f"formatted log dirs are not refused: {(refused.stderr or refused.stdout).strip()[-200:]}")
    done = node.run_tool(Tool.STORAGE, "format", "--ignore-formatted", *arguments)
    if done.returncode:
        raise Lacking((done.stderr or done.stdout).strip()[-300:])
    return "refused without, and done with it"


@tries("records-directories")
def _directories(trial: Trial) -> str:
    assert isinstance(trial.cluster.quorum, KRaftQuorum)
    log = trial.cluster.quorum.metadata_log(trial.controller)
    ids = frozenset(log_dir.directory_id() for log_dir in trial.broker.log_dirs)
    seen = await_until(
        lambda: tool_answers.dump_directories(trial.cluster.distribution, log),
        lambda seen: {seen.assigned.get((TOPIC, index), {}).get(1) for index in range(PARTITIONS)} <= ids,
        timeout_s=SOON_S,
        what=f"the metadata log to have a directory of each replica of {TOPIC}",
    )
    if seen.online.get(1) != ids:
        raise Lacking(f"it shows {len(seen.online.get(1, ()))} log dirs of broker 1, which has {len(ids)}")
    return f"{len(ids)} log dirs, {len(seen.assigned)} partitions"


@tries("records-history")
def _history(trial: Trial) -> str:
    assert isinstance(trial.cluster.quorum, KRaftQuorum)
    records = read_metadata_log(trial.cluster.distribution, trial.cluster.quorum.metadata_log(trial.controller))
    wanted = {"REGISTER_BROKER_RECORD", "TOPIC_RECORD", "PARTITION_RECORD"}
    if missing := wanted - {record.kind for record in records}:
        raise Lacking(f"it has no {' and no '.join(sorted(missing))}")
    try:
        found = irregular(records)
    except BuildLacks as lack:
        raise Lacking(str(lack)) from lack
    return f"{len(records)} records, {len(found)} irregular"


@tries("records-cordons")
def _cordons(trial: Trial) -> str:
    """The try of ``config-cordoned`` sets the third log dir."""
    assert isinstance(trial.cluster.quorum, KRaftQuorum)
    log, broker = trial.cluster.quorum.metadata_log(trial.controller), trial.broker
    broker.admin.set_broker_configs(1, {CORDONED: str(broker.log_dirs[2].path)})
    should = frozenset([broker.log_dirs[2].directory_id()])
    await_until(
        lambda: tool_answers.dump_directories(trial.cluster.distribution, log).cordoned.get(1),
        lambda ids: ids == should,
        timeout_s=SOON_S,
        what="the metadata log to have the cordoned log dir",
    )
    broker.admin.set_broker_configs(1, {CORDONED: None})
    return "one log dir"


# --- logs, clients ----------------------------------------------------------------------------------------------------


@tries("tool-dump-log")
def _dump_log(trial: Trial) -> str:
    folder = trial.topic[0].log_dir_on(trial.broker).replica_dir(TOPIC, 0)
    contents = read_contents(trial.cluster.distribution, [folder], "none", (), ())[folder]
    if contents.last != RECORDS // PARTITIONS - 1:
        raise Lacking(f"{TOPIC}-0 has {RECORDS // PARTITIONS} records, but the last offset shown is {contents.last}")
    read_sessions(trial.cluster.distribution, folder)
    return f"{RECORDS // PARTITIONS} records"


@tries("tool-verifiable")
def _verifiable(trial: Trial) -> str:
    at, timeout_s = (*trial.broker.bootstrap.of_tool(Tool.VERIFIABLE_PRODUCER), "--topic", TOPIC), timeouts.TOOL_S
    distribution = trial.cluster.distribution
    sent = ("--max-messages", "100", "--acks", "-1")
    with tool_output(distribution, Tool.VERIFIABLE_PRODUCER, *at, *sent, timeout_s=timeout_s) as said:
        acked = sum("producer_send_success" in line for line in said)
    read = ("--max-messages", "100", "--group-id", "probe", "--reset-policy", "earliest")
    with tool_output(distribution, Tool.VERIFIABLE_CONSUMER, *at, *read, timeout_s=timeout_s) as said:
        consumed = any("records_consumed" in line for line in said)
    if acked != 100 or not consumed:
        raise Lacking(f"{acked} of 100 records acked, {'some' if consumed else 'none'} read")
    return "100 records"
