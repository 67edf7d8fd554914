"""Shows how replicas of new topics, new partitions and generated reassignments are placed (KIP-36, "Proposed Changes").

In ZooKeeper mode every assignment must be the oracle's (:mod:`suites.kip_36.oracle`). KRaft's placer has its own
promises; where it differs from the KIP, a deviation is declared (:mod:`suites.deviations`). Hundreds of topics share
one cluster, whose racks change by restarts: a cluster for each layout would take an hour.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import generate
from harness.cluster.topic import Topic
from harness.kafka.admin import NewTopic
from harness.kafka.versions import Mode
from suites.checks import check_refused
from suites.deviations import ADDED_ELSEWHERE, GENERATED_IN_STRIPES, LEADERS_OVER_RACKS, RACKS_PASSED_OVER
from suites.kip_36 import promises
from suites.kip_36.evidence import Evidence, check_generated, check_kip, check_striped
from suites.kip_36.layouts import assignments, by_topic, change_racks, create, shapes, start
from suites.kip_36.oracle import Assignment, Origin, assign
from suites.scenario import scenario

KIPS = ("rack1", "rack3", "rack3", "rack2", "rack2", "rack1")
"""The KIP's example; its broker ids are one less."""
# From each layout to the next, as few brokers as possible change their rack, since that takes a restart.
UNEVEN = ("rack1", "rack3", "rack3", "rack2", "rack2", "rack3")
ONE = ("rack3",) * 6
GROWING = ("rack3", "rack4", "rack3", "rack4", "rack5", "rack5")
EACH_ITS_OWN = ("rack3", "rack4", "rack6", "rack7", "rack5", "rack8")
PASSED_OVER = ((12, 1),) * 12
"""Shapes for which KRaft skips a rack two times in three, if each broker has its own rack."""
DEVIATIONS = (LEADERS_OVER_RACKS, RACKS_PASSED_OVER, GENERATED_IN_STRIPES, ADDED_ELSEWHERE)
ROUNDS = 10
"""Rounds of partitions, in each of which every broker is a preferred leader once."""
MINIMUM = {"topics": 90, "proposals": 170, "topics with more partitions": 12, "topics of many rounds": 2}


@scenario(
    "kip-36/placement",
    kip=36,
    plan="Proposed Changes: properties and algorithm of the rack aware assignment",
    judged=False,
    brokers=6,
    racks=KIPS,
    deviations=DEVIATIONS,
)
def test_placement(cluster: Cluster) -> None:
    """On many layouts of racks, new topics, partitions and proposals are spread as the KIP says."""
    evidence, brokers = Evidence(cluster, DEVIATIONS), cluster.brokers
    kips = try_shapes(cluster, evidence, "kips")
    propose(cluster, evidence, kips, brokers)
    add_partitions(cluster, evidence)
    for name, racks in (("uneven", UNEVEN), ("one", ONE)):
        reset_with_racks(cluster, racks)
        propose(cluster, evidence, try_shapes(cluster, evidence, name), brokers)
    check_followers_vary(cluster, evidence, "rounds-in-one-rack")
    reset_with_racks(cluster, GROWING, only=4)
    check_one_more_replica_refused(cluster)
    old = try_shapes(cluster, evidence, "four")
    for broker in brokers[4:]:  # the first is a new rack too
        start(cluster, broker)
        old += try_shapes(cluster, evidence, f"and-{broker.id}")
    propose(cluster, evidence, old, brokers)
    reset_with_racks(cluster, EACH_ITS_OWN)
    propose(cluster, evidence, try_shapes(cluster, evidence, "own", PASSED_OVER), brokers)
    check_followers_vary(cluster, evidence, "rounds-over-racks")
    evidence.conclude(MINIMUM)


def reset_with_racks(cluster: Cluster, racks: Sequence[str], *, only: int | None = None) -> None:
    """Delete all topics, and change to these racks and so many brokers."""
    cluster.delete_topics(*cluster.topics.values())
    change_racks(cluster, racks, only=only)


def check_followers_vary(cluster: Cluster, evidence: Evidence, name: str) -> None:
    """A topic of many rounds of partitions: each broker's partitions have several next replicas.

    KRaft shuffles the brokers of a rack, and the racks. By chance, all ten next replicas of one of the six brokers are
    the same once in 300,000 runs.
    """
    for what, assignment in assignments(cluster, create(cluster, name, [(ROUNDS * len(ONE), 2)])).items():
        evidence.tried("topics of many rounds")
        evidence.holds(what, promises.followers_vary(assignment))


def check_one_more_replica_refused(cluster: Cluster) -> None:
    """A topic with one replica more than brokers is refused: those that were removed do not count."""
    topic = NewTopic(name="one-too-many", replicas=len(cluster.live_brokers()) + 1)
    check_refused(functools.partial(cluster.request_topics, topic), "INVALID_REPLICATION_FACTOR", "")


def racks_of(brokers: Sequence[Broker]) -> dict[int, str]:
    """The rack of each broker, by broker id; every broker has one here."""
    return {broker.id: broker.node.spec.properties["broker.rack"] for broker in brokers}


def try_shapes(cluster: Cluster, evidence: Evidence, name: str, more: Sequence[tuple[int, int]] = ()) -> list[Topic]:
    """Create topics of many shapes on the live brokers, and check each assignment."""
    racks = racks_of(cluster.live_brokers())
    topics = create(cluster, name, [*shapes(len(racks)), *more])
    check = check_kip if cluster.spec.mode is Mode.ZK else check_striped
    for topic, (what, assignment) in zip(topics, assignments(cluster, topics).items(), strict=True):
        evidence.tried("topics")
        replicas = int(what.rpartition("x")[2])
        evidence.holds(what, promises.well_formed(racks, assignment, len(topic), replicas))
        check(evidence, racks, what, assignment)
    return topics


def propose(cluster: Cluster, evidence: Evidence, topics: Sequence[Topic], brokers: Sequence[Broker]) -> None:
    """Check what ``--generate`` proposes for these topics, on all of these brokers and on all but the last."""

    def proposed(onto: Sequence[Broker]) -> dict[str, Assignment]:
        fit = [topic for topic in topics if int(topic.name.rpartition("x")[2]) <= len(onto)]
        return by_topic(generate(cluster, fit, onto)[1])

    choices = (brokers, brokers[:-1])
    with ThreadPoolExecutor(len(choices)) as side_by_side:
        answers = list(side_by_side.map(proposed, choices))
    for onto, answer in zip(choices, answers, strict=True):
        racks = racks_of(onto)
        unanswered = {topic.name for topic in topics if int(topic.name.rpartition("x")[2]) <= len(onto)} - set(answer)
        evidence.holds("--generate", [f"it proposes nothing for {sorted(unanswered)}"] if unanswered else [])
        for what, assignment in answer.items():
            evidence.tried("proposals")
            topic, replicas = cluster.topics[what], int(what.rpartition("x")[2])
            evidence.holds(f"--generate {what}", promises.well_formed(racks, assignment, len(topic), replicas))
            check_generated(evidence, racks, f"--generate {what} on {sorted(racks)}", assignment)


def add_partitions(cluster: Cluster, evidence: Evidence) -> None:
    """Topics of four partitions get eight more, which are placed as those of a new topic.

    In ZooKeeper mode they begin at the broker of partition 0, by its position among all ids
    (``AdminZkClient.createNewPartitionsAssignment``).
    """
    racks = racks_of(cluster.brokers)
    check = check_kip if cluster.spec.mode is Mode.ZK else check_striped
    topics = create(cluster, "more", [(4, 1)] * 6 + [(4, 3)] * 6)
    first = assignments(cluster, topics)
    for what, whole in assignments(cluster, cluster.create_partitions({topic.name: 12 for topic in topics})).items():
        evidence.tried("topics with more partitions")
        check(evidence, racks, f"{what}, of which the first 4", first[what])
        replicas, added = len(whole[0]), {index: ids for index, ids in whole.items() if index >= 4}
        evidence.holds(what, promises.well_formed(racks, whole, 12, replicas))
        evidence.holds(what, promises.over_racks(racks, added))
        evidence.holds(
            what, [f"{first[what]} became {whole}"] if first[what] != {i: whole[i] for i in range(4)} else []
        )
        if cluster.spec.mode is Mode.ZK:
            place = sorted(racks).index(whole[0][0])
            should = assign(racks, 8, replicas, Origin(start=place, shift=place), first=4)
            evidence.holds(what, [f"{added} were added instead of {dict(should)}"] if added != should else [])
        else:
            check_striped(evidence, racks, f"{what}, of which the last 8", {i - 4: ids for i, ids in added.items()})
        evidence.deviates(ADDED_ELSEWHERE, what, promises.even_leaders(racks, whole))
