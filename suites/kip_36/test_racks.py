"""Shows the rack in brokers' registrations and in metadata, and clusters where some brokers have no rack (KIP-36)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.cluster.reassign import generate
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken, ToolFailed
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.tools import tool_output
from harness.kafka.versions import Mode, Tool
from harness.waiting import await_until
from suites.deviations import (
    AUTOMATIC_BY_RACKS,
    AUTOMATIC_REFUSED,
    GENERATED_IN_STRIPES,
    NO_OPTION_TO_IGNORE_RACKS,
    NO_RACK_IS_A_RACK,
    TOOL_REFUSES_WITHOUT_REASON,
)
from suites.kip_36 import promises
from suites.kip_36.evidence import Evidence, check_kip, check_striped
from suites.kip_36.layouts import assignments, await_racks, by_topic, change_racks, create, racks_of
from suites.kip_36.oracle import Assignment, origin_without_racks
from suites.observations import directories
from suites.observing import expects
from suites.scenario import scenario

SOME = ("a", "a", None, None)
NOT_ALL = "Not all brokers have rack information"
OPTIONS = ("--ignore-racks", "--disable-rack-aware")
"""The option's name in the KIP, and in releases."""
PARTITIONS_REFUSED = rf"(?s)CREATE_PARTITIONS.*{NOT_ALL}"
"""The log line of a broker that refuses more partitions for the KIP's reason."""
UNKNOWN_OPTION = "not a recognized option"
DEVIATIONS = (
    TOOL_REFUSES_WITHOUT_REASON,
    AUTOMATIC_REFUSED,
    NO_RACK_IS_A_RACK,
    AUTOMATIC_BY_RACKS,
    NO_OPTION_TO_IGNORE_RACKS,
)


@scenario(
    "kip-36/some-without-rack",
    kip=36,
    plan="If one or more brokers does NOT have rack information; Changes to Broker property",
    judged=False,
    brokers=4,
    racks=SOME,
    overrides={"auto.create.topics.enable": "true", "num.partitions": "12", "default.replication.factor": "2"},
    deviations=DEVIATIONS,
)
def test_some_without_rack(cluster: Cluster) -> None:
    """Half of the brokers have a rack: tools refuse, automatic creation ignores racks."""
    evidence = Evidence(cluster, DEVIATIONS)
    check_registered(cluster)
    [given] = cluster.create_topics(
        NewTopic(
            name="given", replicas=2, assignment={index: (1 + index % 4, 1 + (index + 1) % 4) for index in range(12)}
        )
    )
    check_oldest_metadata(cluster)
    check_generate(cluster, evidence, given)
    check_automatic(cluster, evidence)
    check_tool(cluster, evidence)
    check_more_partitions(cluster, evidence, given)
    change_racks(cluster, ("b", "a", "b", "c"))
    check_registered(cluster)
    check = check_kip if cluster.spec.mode is Mode.ZK else check_striped
    racks = {id: str(rack) for id, rack in racks_of(cluster.brokers).items()}
    for what, assignment in assignments(cluster, create(cluster, "all", [(6, 2), (6, 3)])).items():
        check(evidence, racks, what, assignment)
        evidence.tried("topics on racks that came by restart")
    change_racks(cluster, (None, None, "b", "c"))
    check_registered(cluster)
    by_tools = ("refusals", "proposals that ignore racks", "by kafka-topics", "more partitions by kafka-topics")
    evidence.conclude({"topics on racks that came by restart": 2} | dict.fromkeys((*by_tools, "automatic"), 1))


def check_registered(cluster: Cluster) -> None:
    """Each broker's registration, and every broker's metadata, has its rack, or none.

    In ZooKeeper the znode's JSON has version 3 or later (4 and 5 came with KIP-103 and KIP-584).
    """
    should = racks_of(cluster.brokers)
    await_racks(cluster)
    if isinstance(cluster.quorum, ZooKeeperQuorum):
        znodes = cluster.quorum.registrations()
        seen = {id: znode.get("rack", None) for id, znode in znodes.items()}
        malformed = {
            id: znode for id, znode in znodes.items() if znode["version"] < 3 or znode.get("rack", "a") is None
        }
    else:
        seen = dict(directories(cluster).racks)
        malformed = {}
    if seen != should or malformed:
        raise PromiseBroken(
            f"brokers are registered with the racks {seen} instead of {should}; malformed znodes: {malformed or 'none'}"
        )
    cluster.journal.write("racks.registered", racks=seen)


def check_oldest_metadata(cluster: Cluster) -> None:
    """The Metadata response v0 has no racks: a client that knows no other version finds brokers and topics in it.

    With a rack behind each broker's port, such a client would read other brokers and topics, or none at all.
    """
    for broker in cluster.brokers:
        state = broker.describe_cluster()
        newest = (sorted(state.brokers), sorted({partition.topic for partition in state.partitions}))
        oldest = broker.admin.describe_cluster_v0()
        if oldest != newest:
            raise PromiseBroken(f"{broker} answers Metadata v0 with {oldest}, and the newest version with {newest}")
    cluster.journal.write("metadata.oldest", brokers=newest[0], topics=newest[1])


def check_generate(cluster: Cluster, evidence: Evidence, topic: Topic) -> None:
    """kafka-reassign-partitions --generate refuses, and says why; with --disable-rack-aware it ignores racks."""
    said = refusal(lambda: generate(cluster, [topic], cluster.brokers))
    if said is None or NOT_ALL not in said or "--disable-rack-aware" not in said:
        raise PromiseBroken(f"kafka-reassign-partitions --generate should refuse with {NOT_ALL!r}; its error: {said}")
    evidence.tried("refusals")
    for what, assignment in by_topic(generate(cluster, [topic], cluster.brokers, ignore_racks=True)[1]).items():
        evidence.tried("proposals that ignore racks")
        evidence.holds(what, promises.well_formed(racks_of(cluster.brokers), assignment, len(topic), 2))
        ignored = ignores_racks(cluster, assignment)
        evidence.holds(what, [] if ignored else [f"--disable-rack-aware, and racks were not ignored: {assignment}"])


def ignores_racks(cluster: Cluster, assignment: Assignment) -> bool:
    """Whether the proposal ignores racks, by the algorithm of the build."""
    by_kip = origin_without_racks(assignment, len(cluster.brokers)) is not None
    striped = expects(GENERATED_IN_STRIPES, cluster, lambda: not by_kip)
    return not racks_distinct(cluster, assignment) if striped else by_kip


def check_automatic(cluster: Cluster, evidence: Evidence) -> None:
    """A topic is created because a client asks for its metadata, and its assignment ignores racks, as before KIP-36.

    :raises PromiseBroken: the topic is not created, and no broker logs that it refused
    """
    since = now()
    refused = refused_as_promised("automatic")

    def outcome() -> str | None:
        cluster.live_brokers()[0].admin.want_topic("automatic")
        seen = [s for s in cluster.describe().partitions if s.topic == "automatic"]
        logged = any(broker.log.first(refused, since=since) for broker in cluster.brokers)
        return "created" if len(seen) == 12 else "refused" if logged else None

    came = await_until(
        outcome,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what="automatic creation of a topic to succeed or to be refused",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    evidence.tried("automatic")
    evidence.deviates(AUTOMATIC_REFUSED, "automatic", ["it was refused"] if came == "refused" else [])
    if came == "created":
        [assignment] = assignments(cluster, [Topic(cluster, "automatic", 12)]).values()
        by_racks = [f"by racks: {assignment}"] if racks_distinct(cluster, assignment) else []
        evidence.deviates(AUTOMATIC_BY_RACKS, "automatic", by_racks)
        explained = by_racks or origin_without_racks(assignment, len(cluster.brokers))
        no_origin = f"the algorithm without racks gives {assignment} for no start and shift"
        evidence.holds("automatic", [] if explained else [no_origin])


def check_tool(cluster: Cluster, evidence: Evidence) -> None:
    """kafka-topics refuses to create a topic and says why; with an option that ignores racks, it creates it.

    :raises PromiseBroken: it refuses, and neither its output nor a broker's log says why; or it refuses, and the topic
        exists, or CreateTopics creates it
    """
    since = now()
    said = refusal(lambda: kafka_topics(cluster, *create_topic("plain")))
    evidence.tried("by kafka-topics")
    evidence.deviates(NO_RACK_IS_A_RACK, "kafka-topics", ["it created the topic"] if said is None else [])
    if said is None:
        [assignment] = assignments(cluster, cluster.await_topics({"plain": 12})).values()
        evidence.holds("plain", [] if racks_distinct(cluster, assignment) else [f"not by racks: {assignment}"])
    unexplained = [said] if said is not None and NOT_ALL not in said else []
    if unexplained:
        await_until(
            lambda: any(broker.log.first(refused_as_promised("plain"), since=since) for broker in cluster.brokers),
            timeout_s=timeouts.LOG_DIR_FAILURE_S,
            what=f"a broker to log {NOT_ALL!r}, since kafka-topics gives only: {said}",
            failure=PromiseBroken,
        )
    evidence.deviates(TOOL_REFUSES_WITHOUT_REASON, "kafka-topics", unexplained)
    if said is not None:
        by_wire = refusal(lambda: cluster.create_topic("plain", partitions=12, replicas=2))
        refused = by_wire is not None and "TOPIC_ALREADY_EXISTS" not in by_wire
        evidence.holds("CreateTopics", [] if refused else [f"{by_wire or 'done'}, and kafka-topics was refused"])
    answers = {option: refusal(partial(kafka_topics, cluster, *create_topic("ignoring"), option)) for option in OPTIONS}
    evidence.deviates(NO_OPTION_TO_IGNORE_RACKS, "kafka-topics", [str(answers)] if all(answers.values()) else [])
    unforeseen = [word for word in answers.values() if word not in (None, said) and UNKNOWN_OPTION not in str(word)]
    evidence.holds("kafka-topics with an option that ignores racks", map(str, unforeseen))


def refused_as_promised(topic: str) -> str:
    """A regular expression of the log line for a topic that was refused for the KIP's reason."""
    asked = re.escape(f"Error processing create topic request CreatableTopic(name='{topic}'")
    return rf"(?s){asked}.*{NOT_ALL}"


def check_more_partitions(cluster: Cluster, evidence: Evidence, topic: Topic) -> None:
    """kafka-topics refuses to add partitions to a topic and says why, as it does for a new topic.

    :raises PromiseBroken: it refuses, and neither its output nor a broker's log says why
    """
    since, count = now(), 2 * len(topic)
    arguments = ("--alter", "--topic", topic.name, "--partitions", str(count))
    said = refusal(lambda: kafka_topics(cluster, *arguments))
    evidence.tried("more partitions by kafka-topics")
    evidence.deviates(NO_RACK_IS_A_RACK, "kafka-topics --alter", ["it added partitions"] if said is None else [])
    if said is None:
        [assignment] = assignments(cluster, cluster.await_topics({topic.name: count})).values()
        added = {index: ids for index, ids in assignment.items() if index >= len(topic)}
        evidence.holds("kafka-topics --alter", [] if racks_distinct(cluster, added) else [f"not by racks: {added}"])
    unexplained = [said] if said is not None and NOT_ALL not in said else []
    if unexplained:
        await_until(
            lambda: any(broker.log.first(PARTITIONS_REFUSED, since=since) for broker in cluster.brokers),
            timeout_s=timeouts.LOG_DIR_FAILURE_S,
            what=f"a broker to log {NOT_ALL!r}, since kafka-topics gives only: {said}",
            failure=PromiseBroken,
        )
    evidence.deviates(TOOL_REFUSES_WITHOUT_REASON, "kafka-topics --alter", unexplained)


def create_topic(name: str) -> tuple[str, ...]:
    """The arguments of kafka-topics for a new topic of 12 partitions with two replicas each."""
    return ("--create", "--topic", name, "--partitions", "12", "--replication-factor", "2")


def kafka_topics(cluster: Cluster, *arguments: str) -> None:
    """Run kafka-topics.

    :raises ToolFailed: the tool refuses
    """
    connect = connection(cluster)
    with tool_output(cluster.distribution, Tool.TOPICS, *connect, *arguments, timeout_s=timeouts.BOOT_S):
        pass


def connection(cluster: Cluster) -> tuple[str, ...]:
    """How kafka-topics reaches the cluster: by ZooKeeper where it can, since then the tool itself places replicas.

    Otherwise the brokers place them. On 2.8 the tool then can neither show their reason nor make them ignore racks.
    """
    if isinstance(cluster.quorum, ZooKeeperQuorum) and cluster.distribution.version.creates_topics_by_zookeeper:
        return "--zookeeper", cluster.quorum.connect
    return cluster.bootstrap.of_tool(Tool.TOPICS)


def refusal(ask: Callable[[], object]) -> str | None:
    """The error of a refused request or tool; None if it succeeds."""
    try:
        ask()
    except (Refused, ToolFailed) as error:
        return str(error)
    return None


def racks_distinct(cluster: Cluster, assignment: Assignment) -> bool:
    """Whether no two replicas of a partition share a rack; brokers without a rack count as one more rack."""
    racks = {id: rack or "none" for id, rack in racks_of(cluster.brokers).items()}
    return not list(promises.over_racks(racks, assignment))
