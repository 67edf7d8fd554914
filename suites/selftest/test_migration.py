"""The parts of a migration, without Kafka: the properties of each role, and which metadata counts as kept."""

from __future__ import annotations

import pytest

from harness.cluster.migration import Role, changes_to
from harness.cluster.nodes.backends import BACKENDS
from harness.cluster.nodes.node import BOTH_QUORUMS
from harness.kafka.metadata_records import read_records
from harness.kafka.tool_answers import MIGRATING, read_directories
from suites.migration.metadata import compare_metadata
from suites.selftest.fakes import fake_broker

ENABLED = "zookeeper.metadata.migration.enable"
ZK = {"broker.id": "1", "zookeeper.connect": "h:1", "listeners": "PLAINTEXT://h:2"}
KRAFT = {
    "node.id": "1",
    "process.roles": "broker",
    "controller.quorum.voters": "100@h:3",
    "listeners": "PLAINTEXT://h:2",
    "metadata.log.dir": "/m",
}
BEFORE = {"the id of orders": "a", "the replicas of orders-0": [1, 2, 3], "its own configs": {}}


@pytest.mark.parametrize(
    ("role", "has", "lacks"),
    [
        (Role.ZK, {*ZK}, {"node.id", "process.roles", "controller.quorum.voters", "metadata.log.dir", ENABLED}),
        (Role.MIGRATING, {*ZK, "controller.quorum.voters", "metadata.log.dir", ENABLED}, {"node.id", "process.roles"}),
        (Role.KRAFT, {*KRAFT}, {"broker.id", "zookeeper.connect", ENABLED}),
    ],
)
def test_a_role_sets_its_properties_and_removes_the_others(role: Role, has: set[str], lacks: set[str]) -> None:
    changes = changes_to(role, ZK, KRAFT)
    assert {name for name, value in changes.items() if value is not None} == has
    assert {name for name, value in changes.items() if value is None} == lacks
    assert changes["listeners"] == "PLAINTEXT://h:2"


def test_metadata_is_kept_if_nothing_from_before_has_changed() -> None:
    assert [*compare_metadata(fake_broker(1), BEFORE, BEFORE | {"the id of later": "b"})] == []


@pytest.mark.parametrize("changed", [{"the id of orders": "b"}, {"its own configs": {"x": "1"}}])
def test_a_changed_value_is_named(changed: dict[str, object]) -> None:
    [found] = compare_metadata(fake_broker(1), BEFORE, BEFORE | changed)
    assert next(iter(changed)) in found


def test_a_missing_value_is_named() -> None:
    [found] = compare_metadata(fake_broker(1), BEFORE, {key: BEFORE[key] for key in list(BEFORE)[1:]})
    assert "the id of orders as None instead of a" in found


def test_containers_have_one_quorum() -> None:
    assert BOTH_QUORUMS in [each.name for each in BACKENDS["docker"].lacks]
    assert BOTH_QUORUMS not in [each.name for each in BACKENDS["process"].lacks]


def test_a_partition_from_zookeeper_has_no_log_dirs_until_they_are_reported() -> None:
    record = '| offset: 0 payload: {"type":"%s","version":1,"data":{%s}}'
    topic = record % ("TOPIC_RECORD", '"name":"orders","topicId":"t"')
    partition = record % ("PARTITION_RECORD", '"topicId":"t","partitionId":0,"replicas":[1,2]')
    reported = record % ("PARTITION_CHANGE_RECORD", f'"topicId":"t","partitionId":0,"directories":["{MIGRATING}","d"]')
    assert read_directories(read_records([topic, partition])).assigned == {("orders", 0): {1: MIGRATING, 2: MIGRATING}}
    assert read_directories(read_records([topic, partition, reported])).assigned == {
        ("orders", 0): {1: MIGRATING, 2: "d"}
    }
