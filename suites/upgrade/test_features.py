"""Shows the end of an upgrade: new protocols and record formats come into force, and go out of it again if they can.

KRaft finalizes features by ``kafka-features``, without a restart (KIP-778). ZooKeeper mode has a second rolling bounce
(KIP-112 and KIP-113, "Compatibility, Deprecation, and Migration Plan").
"""

from __future__ import annotations

import re

from faults.broker import BrokerStopped
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.errors import PromiseBroken, ToolFailed
from harness.journal import now
from harness.kafka.distribution import Distribution
from harness.kafka.java_client import metadata_versions
from harness.kafka.tool_answers import Feature, describe_features
from harness.kafka.tools_jvm import tool_lines
from harness.kafka.versions import Mode, Tool
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.checks import check_delivery
from suites.controllers import controllers_restarted
from suites.observations import metadata_log
from suites.state_check import StateCheck
from suites.steps import brokers_down, log_dirs_failed, one_partition_per_log_dir, restart_after_healing
from suites.upgrade.nodes import PROTOCOL, Roll, protocol_of, upgrade_scenario

METADATA = "metadata.version"
DOWNGRADE_REFUSED = r"Refusing to perform the requested downgrade because it might delete metadata information"
"""The error of a controller that is asked for a metadata.version below a change of the format."""


@upgrade_scenario(
    "upgrade/features",
    plan="after a rolling upgrade: features are finalized, or brokers bounced to the new protocol, and downgraded",
    floors=Floors(faults=4),
)
def test_features(cluster: Cluster, workload: CaseWorkload, build_under_test: Distribution) -> None:
    """All nodes are upgraded, then the features while a log dir has failed. It comes back: nothing is lost.

    Until then the old features are in force. A downgrade of metadata.version succeeds or is refused, as documented.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        features = finalized(cluster)
        roll = Roll(state, pair, build_under_test, keep=protocol_of(cluster.distribution))
        roll.controllers()
        roll.brokers(*cluster.brokers)
        check_finalized(cluster, features)
        victim = leader_of(orders[0])
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            pair.await_progress(after=now())
            if cluster.spec.mode is Mode.ZK:
                bounce_to_new_protocol(state, pair)
            else:
                check_upgraded(cluster, features)
            state.check(also=[metadata_log])
        restart_after_healing(state, victim)
        if cluster.spec.mode is Mode.KRAFT:
            check_downgraded(cluster, features[METADATA])
            controllers_restarted(cluster)
            state.check(timeouts.RECOVERY_S, also=[metadata_log])
        pair.await_progress(after=now())
    check_delivery(workload)


def bounce_to_new_protocol(state: StateCheck, pair: Pair) -> None:
    """Restart brokers without the setting that keeps them to the old protocol, one after another."""
    for broker in state.cluster.brokers:
        with brokers_down(state, BrokerStopped(broker)):
            broker.node.configure({PROTOCOL: None})
            pair.await_progress(after=now())


def described(cluster: Cluster) -> dict[str, Feature]:
    """The features of a KRaft cluster, by name; none in ZooKeeper mode."""
    if cluster.spec.mode is Mode.ZK:
        return {}
    return describe_features(cluster.distribution, cluster.bootstrap)


def finalized(cluster: Cluster) -> dict[str, str]:
    """The level of each feature that is in force; a feature that the build does not list is not in force."""
    return {name: feature.finalized for name, feature in described(cluster).items() if feature.finalized != "0"}


def check_finalized(cluster: Cluster, wanted: dict[str, str]) -> None:
    """The cluster has these levels of features in force."""
    await_until(
        lambda: finalized(cluster),
        lambda seen: seen == wanted,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"kafka-features to show that the features {wanted} are in force",
        retry_on=(ToolFailed,),
        failure=PromiseBroken,
    )


def check_upgraded(cluster: Cluster, before: dict[str, str]) -> None:
    """Upgraded by kafka-features, metadata.version has its highest level on every broker, and no level is lower."""
    version = cluster.distribution.version
    option = "--release-version" if version.upgrades_features_by_release else "--metadata"
    with OwnPart(cluster, "upgrade the features of its release").served():
        said = _features(cluster, "upgrade", option, f"{version.major}.{version.minor}")
    cluster.journal.write("features.upgraded", said=said)
    highest = described(cluster)[METADATA].supported
    await_until(
        lambda: {
            describe_features(cluster.distribution, broker.bootstrap)[METADATA].finalized for broker in cluster.brokers
        },
        lambda levels: levels == {highest},
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"all brokers to have {METADATA} {highest}",
        retry_on=(ToolFailed,),
        failure=PromiseBroken,
    )
    after = finalized(cluster)
    if lower := [name for name, level in before.items() if name != METADATA and int(after.get(name, 0)) < int(level)]:
        raise PromiseBroken(f"an upgrade of {before} lowered {', '.join(lower)}: {after}")
    cluster.journal.write("features.finalized", before=before, after=after)


def check_downgraded(cluster: Cluster, to: str) -> None:
    """A downgrade of metadata.version succeeds if no version above changed the metadata; else it has no effect.

    "Given your current and target versions, a downgrade is only possible if there are no metadata changes in the
    versions between" (Kafka's documentation, "Upgrading").
    """
    before = finalized(cluster)
    versions = {each.name: each for each in metadata_versions(cluster.distribution)}
    low, high = versions[to].level, versions[before[METADATA]].level
    is_safe = not any(each.changes_metadata for each in versions.values() if low < each.level <= high)
    said = _downgrade_error(cluster, low)
    cluster.journal.write("features.downgrade", to=to, is_safe=is_safe, says=said)
    if is_safe:
        if said is not None:
            raise PromiseBroken(f"a downgrade of {METADATA} from {before[METADATA]} to {to} is refused: {said}")
        check_finalized(cluster, before | {METADATA: to})
        return
    if said is None or not re.search(DOWNGRADE_REFUSED, said):
        raise PromiseBroken(
            f"a downgrade of {METADATA} from {before[METADATA]} to {to} should be refused, since the metadata changed "
            f"in between: {said or 'it succeeds'}"
        )
    check_finalized(cluster, before)


def _downgrade_error(cluster: Cluster, level: int) -> str | None:
    """Ask for a lower metadata.version: the error of kafka-features, None if it succeeds."""
    try:
        _features(cluster, "downgrade", "--feature", f"{METADATA}={level}")
    except ToolFailed as failure:
        return str(failure)
    return None


def _features(cluster: Cluster, *command: str) -> list[str]:
    return tool_lines(cluster.distribution, Tool.FEATURES, *cluster.bootstrap.of_tool(Tool.FEATURES), *command)
