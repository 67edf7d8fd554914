"""Tries the files, znodes and classes that the suites read without asking a broker."""

from __future__ import annotations

import zipfile

from harness.cluster.log_dir import HIGH_WATERMARKS, RECOVERY_POINTS
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.host.cache import cache_dir
from harness.host.scratch import scratch
from harness.kafka.java_client import plugin_methods
from harness.kafka.points import missing_points, points_of, with_points
from harness.kafka.tiered_storage import PLUGIN_CLASS, local_tiered_storage
from harness.waiting import await_until
from suites.log_cleaning import until_cleaning_s
from suites.probe.dependencies import DEPENDENCIES
from suites.probe.trial import PARTITIONS, SOON_S, TOPIC, Lacking, Trial, tries


@tries("rack-aware-selector")
def _selector(trial: Trial) -> str:
    [name] = next(dependency.words for dependency in DEPENDENCIES if dependency.id == "rack-aware-selector")
    entry = f"{name.replace('.', '/')}.class"
    for jar in trial.cluster.distribution.class_path:
        with zipfile.ZipFile(jar) as content:
            if entry in content.namelist():
                return f"in {jar.name}"
    raise Lacking("none of its jars has it")


@tries("tiered-plugin")
def _plugin(trial: Trial) -> str:
    with scratch("plugin") as storage:
        jar = local_tiered_storage(cache_dir())
        methods = plugin_methods(trial.cluster.distribution, jar, PLUGIN_CLASS, storage)
    if missing := [method for method, is_there in methods.items() if not is_there]:
        raise Lacking(f"LocalTieredStorage does not implement {'; '.join(missing)}")
    return f"{len(methods)} methods"


@tries("points")
def _points(trial: Trial) -> str:
    build = with_points(trial.cluster.distribution, trial.cluster.spec.mode)
    if missing := missing_points(build):
        raise Lacking("; ".join(f"{id}: {why}" for id, why in missing.items()))
    return f"{len(points_of(build.version, trial.cluster.spec.mode))} points"


@tries("file-segments")
def _segments(trial: Trial) -> str:
    partitions = trial.topic.partitions
    folders = [partition.log_dir_on(trial.broker).replica_dir(TOPIC, partition.index) for partition in partitions]
    for folder in folders:
        names = {path.suffix for path in folder.glob("*")}
        if missing := {".log", ".index", ".timeindex"} - names:
            raise Lacking(f"{folder} has no file …{', …'.join(sorted(missing))}")
    return f"{len(folders)} folders"


@tries("file-checkpoints")
def _checkpoints(trial: Trial) -> str:
    wanted = {f"{TOPIC}-{index}" for index in range(PARTITIONS)}
    for checkpoint in (RECOVERY_POINTS, HIGH_WATERMARKS):
        await_until(
            lambda checkpoint=checkpoint: {  # type: ignore[misc]
                name for log_dir in trial.broker.log_dirs for name in log_dir.partitions_in_checkpoint(checkpoint)
            },
            lambda named: named >= wanted,
            timeout_s=SOON_S + until_cleaning_s(trial.cluster),
            what=f"{checkpoint} to name all of topic {TOPIC}",
            retry_on=(OSError,),
        )
    return f"{len(wanted)} replicas named"


@tries("file-meta")
def _meta(trial: Trial) -> str:
    read = [(log_dir.path / "meta.properties").read_text() for log_dir in trial.broker.log_dirs]
    if trial.is_kraft:
        return f"directory.id {trial.broker.log_dirs[0].directory_id()}"
    return f"{len(read)} log dirs"


@tries("file-made")
def _made(trial: Trial) -> str:
    partition = trial.topic[0]
    file = partition.log_dir_on(trial.broker).replica_dir(TOPIC, partition.index) / "partition.metadata"
    if not file.exists():
        raise Lacking(f"there is no {file}")
    return file.read_text().replace("\n", ", ").strip(", ")


@tries("znodes")
def _znodes(trial: Trial) -> str:
    quorum = trial.cluster.quorum
    assert isinstance(quorum, ZooKeeperQuorum)
    ids, partitions = quorum.registrations(), quorum.partitions()
    if {*ids} != {1} or sum(topic == TOPIC for topic, _ in partitions) != PARTITIONS:
        raise Lacking(f"the znodes show brokers {sorted(ids)} and {len(partitions)} partitions")
    quorum.leftovers()
    with quorum.log_dir_events():
        return f"{len(partitions)} partitions"
