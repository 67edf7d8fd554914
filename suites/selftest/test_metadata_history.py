"""Tests that each rule for a metadata log finds a record that breaks it, and that Kafka's own log has none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.kafka.metadata_records import MetadataRecord, read_records
from harness.measure.metadata_history import irregular

ANSWER = Path(__file__).parent / "answers" / "kafka-dump-log.txt"
Batch = Sequence[MetadataRecord] | MetadataRecord
DIRS = {1: ["1a", "1b"], 2: ["2a", "2b"], 3: ["3a", "3b"]}


def log(*batches: Batch) -> list[MetadataRecord]:
    """The records of a metadata log, numbered; each argument is a batch."""
    found: list[MetadataRecord] = []
    for each in batches:
        batch = [each] if isinstance(each, MetadataRecord) else each
        first = len(found)
        found += [
            MetadataRecord(offset=first + i, batch=first, kind=r.kind, version=0, data=r.data)
            for i, r in enumerate(batch)
        ]
    return found


def record(kind: str, **data: Any) -> MetadataRecord:
    return MetadataRecord(offset=0, batch=0, kind=kind, version=0, data=data)


def registered(broker: int, epoch: int, **more: Any) -> MetadataRecord:
    data = {"brokerId": broker, "brokerEpoch": epoch, "fenced": True, "logDirs": DIRS.get(broker, []), **more}
    return record("REGISTER_BROKER_RECORD", **data)


def changed(broker: int, **more: Any) -> MetadataRecord:
    return record("BROKER_REGISTRATION_CHANGE_RECORD", **{"brokerId": broker, "brokerEpoch": broker, **more})


def partition(**more: Any) -> MetadataRecord:
    data = {"topicId": "t", "partitionId": 0, "replicas": [1, 2], "isr": [1, 2], "leader": 1, "leaderEpoch": 0}
    return record("PARTITION_RECORD", **{**data, "directories": ["1a", "2a"], **more})


def change(**more: Any) -> MetadataRecord:
    return record("PARTITION_CHANGE_RECORD", topicId="t", partitionId=0, **more)


TOPIC = record("TOPIC_RECORD", topicId="t", name="orders")
BROKERS = [each for broker in DIRS for each in (registered(broker, broker), changed(broker, fenced=-1))]
BEGUN: tuple[Batch, ...] = (*BROKERS, [TOPIC, partition()])
SHRUNK = [changed(2, fenced=1), change(isr=[1])]
OFFLINE = [change(isr=[2], leader=2), changed(1, logDirs=["1b"])]
GROWN = change(replicas=[1, 2, 3], addingReplicas=[3], removingReplicas=[1], directories=["1a", "2a", "3a"])
REPLACED = change(
    replicas=[2, 3],
    isr=[2, 3],
    leader=2,
    addingReplicas=[],
    removingReplicas=[],
    directories=["2a", "3a"],
)
JOINED = change(replicas=[2, 3], isr=[2, 3], leader=3, addingReplicas=[], removingReplicas=[], directories=["2a", "3a"])
ALONE = partition(replicas=[1], isr=[1], directories=["1a"])
FIRST_LEADS = change(leader=1)
UNCLEAN = change(isr=[2], leader=2, leaderRecoveryState=1)
CLEARED = [record("CLEAR_ELR_RECORD", topicName="orders"), change(isr=[1, 2])]
BEGIN, END = record("BEGIN_TRANSACTION_RECORD", name="any"), record("END_TRANSACTION_RECORD")
MIGRATION = record("BEGIN_TRANSACTION_RECORD", name="ZK Migration")
TOPIC_2 = record("TOPIC_RECORD", topicId="u", name="refunds")
MIGRATING, LOST = "A" * 22, "A" * 20 + "Ag"


def test_a_log_of_kafka_has_nothing_irregular() -> None:
    records = list(read_records(ANSWER.read_text().splitlines()))
    assert {each.kind for each in records} >= {"PARTITION_RECORD", "PARTITION_CHANGE_RECORD", "REGISTER_BROKER_RECORD"}
    assert irregular(records) == []


@pytest.mark.parametrize(
    "batches",
    [
        BEGUN,
        (*BEGUN, SHRUNK, changed(2, fenced=-1), change(isr=[1, 2])),
        (*BEGUN, SHRUNK, changed(2, fenced=1)),  # fenced again, by a controller that has just begun
        (*BEGUN, OFFLINE),
        (*BEGUN, [changed(2, inControlledShutdown=1), change(isr=[1]), change(isr=[1])]),
        (*BEGUN, [change(isr=[1]), change(isr=[1, 2])]),  # two requests of the leader
        (*BEGUN, SHRUNK, [changed(1, fenced=1), change(leader=-1)], [changed(1, fenced=-1), change(leader=1)]),
        (*BEGUN, change(replicas=[1, 2, 3], addingReplicas=[3], directories=["1a", "2a", "3a"])),
        (*BEGUN, [change(replicas=[1], isr=[1], directories=["1a"], leader=1)]),  # the same leader, a new epoch
        (*BEGUN, changed(1, cordonedLogDirs=[]), changed(1, cordonedLogDirs=["1b"])),
        (*BEGUN, changed(1, inControlledShutdown=1)),  # it leads until another can
        (registered(1, 1), registered(1, 9)),
        (registered(1, 1, incarnationId="i"), registered(1, 1, incarnationId="i")),
        (*BEGUN, record("PRODUCER_IDS_RECORD", brokerId=1, brokerEpoch=1, nextProducerId=1000)),
        (*BEGUN, [change(directories=["gone", "2a"], isr=[2], leader=2)]),  # assigned to a log dir that has failed
        (*BEGUN, change(directories=[LOST, "2a"], isr=[2], leader=2)),
        (*BROKERS, [TOPIC, partition(directories=[])], change(directories=[MIGRATING, "2b"])),
        (*BEGUN, [changed(2, fenced=1), change(isr=[1], eligibleLeaderReplicas=[2])], changed(2, fenced=-1), CLEARED),
        (*BEGUN, GROWN, REPLACED),
        (*BEGUN, GROWN, JOINED),  # the last replica joins the ISR, which ends the reassignment, and leads
        (*BEGUN, GROWN, [change(replicas=[1, 2], isr=[1], leader=1, addingReplicas=[], directories=["1a", "2a"])]),
        (
            *BEGUN,
            OFFLINE,
            registered(1, 9),
            [changed(1, brokerEpoch=9, fenced=-1), change(isr=[1, 2])],
            change(leader=1),
        ),
        (*BEGUN, SHRUNK, [changed(1, fenced=1), change(leader=-1)], [changed(2, fenced=-1), UNCLEAN]),
        (*BROKERS, [MIGRATION, TOPIC, partition(isr=[1, 9], replicas=[1, 9], leader=9)], [END]),
        (*BEGUN, BEGIN, TOPIC_2, record("ABORT_TRANSACTION_RECORD"), TOPIC_2),
        (
            registered(1, 1, logDirs=[]),
            changed(1, fenced=-1),
            [TOPIC, partition(replicas=[1], isr=[1], directories=["1a"])],
        ),
    ],
)
def test_what_a_controller_may_do_is_regular(batches: Sequence[Batch]) -> None:
    assert irregular(log(*batches)) == []


@pytest.mark.parametrize(
    ("batches", "what"),
    [
        ((*BEGUN, TOPIC), "a topic that there is already"),
        ((record("REMOVE_TOPIC_RECORD", topicId="t"),), "the end of a topic that there is not"),
        ((record("UNREGISTER_BROKER_RECORD", brokerId=4),), "the end of a registration that there is not"),
        (
            (registered(1, 5, incarnationId="i"), registered(1, 5, incarnationId="j")),
            "whose epoch is not above the last one, 5",
        ),
        ((*BROKERS, registered(4, 9, logDirs=["1b"])), r"with log dirs of broker 1, ['1b']"),
        ((changed(4, fenced=1),), "which is not registered"),
        ((*BEGUN, changed(1, brokerEpoch=0, inControlledShutdown=1)), "with an epoch other than 1"),
        ((*BEGUN, changed(1)), "of broker 1 that changes nothing"),
        ((*BEGUN, changed(1, cordonedLogDirs=["1b"]), changed(1, cordonedLogDirs=["1b"])), "that changes nothing"),
        ((*BEGUN, changed(1, logDirs=["1a", "1b"])), "that changes nothing"),
        ((*BEGUN, changed(1, logDirs=["1a", "1b", "1c"])), "brings log dirs back, ['1c']"),
        ((*BEGUN, partition()), "a new partition orders-0 that there is already"),
        (([partition()],), "a partition of a topic that there is not"),
        ((*BROKERS, changed(2, fenced=1), [TOPIC, partition()]), "broker 2 in the ISR, which is fenced"),
        (
            (*BROKERS, changed(2, inControlledShutdown=1), [TOPIC, partition()]),
            "broker 2 in the ISR, which is shutting down",
        ),
        ((change(isr=[1]),), "a change of a partition that there is not"),
        ((*BEGUN, change(isr=[1, 2])), "a change of orders-0 that changes nothing"),
        ((*BEGUN, SHRUNK, change(isr=[1, 2])), "takes broker 2 into the ISR, which is fenced"),
        ((*BEGUN, change(replicas=[1], isr=[1], directories=["1a"])), "does not raise the leader epoch"),
        ((*BEGUN, [changed(2, inControlledShutdown=1), change(leader=2)]), "elects broker 2, which is shutting down"),
        ((*BEGUN, change(isr=[1, 3])), "with a broker in the ISR that has no replica"),
        ((*BEGUN, change(removingReplicas=[3])), "with a broker being removed that has no replica"),
        ((*BEGUN, change(isr=[2])), "with a leader that is not in the ISR"),
        ((*BEGUN, change(isr=[], leader=-1)), "that empties the ISR"),
        ((*BEGUN, change(eligibleLeaderReplicas=[2])), "both in the ISR and out of it"),
        ((*BEGUN, change(directories=["1a"])), "with 1 log dirs for 2 replicas"),
        ((*BEGUN, changed(2, fenced=1)), "broker 2 in the ISR of orders-0, though it is fenced"),
        ((*BEGUN, changed(1, fenced=1)), "broker 1 as leader of orders-0, though it is fenced"),
        ((*BEGUN, changed(1, logDirs=["1b"])), "broker 1 as leader of orders-0, though its log dir 1a is not online"),
        ((*BEGUN, OFFLINE, change(isr=[1, 2])), "broker 1 in the ISR of orders-0, though its log dir 1a is not"),
        ((*BEGUN, change(leader=-1)), "orders-0 without a leader, though broker 1 could lead"),
        (
            (*BEGUN, *[record("PRODUCER_IDS_RECORD", brokerId=1, brokerEpoch=1, nextProducerId=1000)] * 2),
            "producer ids up to 1000 where 1000 from 1000 on are next",
        ),
        ((registered(1, 1, fenced=False),), "a new process of broker 1 that is not fenced"),
        ((*BEGUN, record("TOPIC_RECORD", topicId="u", name="orders")), "a topic that there is already"),
        ((*BROKERS, [TOPIC, partition(leaderEpoch=1)]), "whose epochs do not begin with 0"),
        ((*BROKERS, [TOPIC, partition(replicas=[1, 1], isr=[1])]), "with two replicas on a broker"),
        ((*BEGUN, change(replicas=[1, 2, 2], directories=["1a", "2a", "2a"])), "with two replicas on a broker"),
        ((*BROKERS, [TOPIC, partition(replicas=[1, 9])]), "on broker 9, which is not registered"),
        ((*BROKERS, [TOPIC, partition(isr=[1])]), "a new partition orders-0 without broker 2 in the ISR"),
        ((*BROKERS, [TOPIC, partition(leader=2)]), "whose leader is not the first of the ISR"),
        ((*BEGUN, [changed(1, fenced=1), SHRUNK[1]]), "broker 1 as leader of orders-0, though it is fenced"),
        ((*BEGUN, change(isr=[1]), change(isr=[2], leader=2)), "elects broker 2 from outside the ISR"),
        ((*BEGUN, GROWN, change(isr=[3], leader=3)), "elects broker 3 from outside the ISR"),
        ((*BEGUN, change(directories=["1b", "2b"])), "assigns replicas of several brokers, [1, 2], to other log dirs"),
        ((*BEGUN, change(directories=["3a", "2a"])), "on broker 1 in a log dir of broker 3"),
        (
            (*BEGUN, change(directories=["1a", LOST])),
            f"broker 2 in the ISR of orders-0, though its log dir {LOST}",
        ),
        ((*BEGUN, GROWN, change(replicas=[2, 3], isr=[2], leader=2)), "before all others are in the ISR"),
        ((*BEGUN, GROWN, change(replicas=[1, 3], isr=[1, 3], leader=1)), "removes replicas, [2], that were to stay"),
        ((*BEGUN, change(addingReplicas=[2], removingReplicas=[2])), "both added and removed"),
        ((*BEGUN, [change(isr=[1, 2], leaderRecoveryState=1), change(isr=[1])], change(isr=[1, 2])), "has recovered"),
        ((*BEGUN, change(leader=2)), "broker 2 as leader of orders-0, though broker 1 led and could go on"),
        (
            (*BEGUN, record("UNREGISTER_BROKER_RECORD", brokerId=1)),
            "leader of orders-0, though it is not registered",
        ),
        ((*BEGUN, BEGIN, TOPIC_2, END, TOPIC_2), "a topic that there is already"),
        (
            (*BEGUN, record("PRODUCER_IDS_RECORD", brokerId=1, brokerEpoch=1, nextProducerId=500)),
            "producer ids up to 500 where 1000 from 0 on are next",
        ),
        (
            (*BEGUN, record("PRODUCER_IDS_RECORD", brokerId=1, brokerEpoch=0, nextProducerId=1000)),
            "producer ids for broker 1 with an epoch other than 1",
        ),
    ],
)
def test_each_rule_finds_what_breaks_it(batches: Sequence[Batch], what: str) -> None:
    found = irregular(log(*batches))
    assert [each for each in found if what in str(each)], [str(each) for each in found]


def test_a_contradiction_is_reported_once_and_only_the_records_of_the_case_count() -> None:
    records = log(*BEGUN, changed(1, fenced=1), changed(3, inControlledShutdown=1))
    [found] = [each for each in irregular(records) if "as leader of orders-0" in each.what]
    assert found.offset == len(records) - 2
    assert irregular(records, since=len(records) - 1) == []


def test_a_snapshot_gives_the_state_and_is_not_judged() -> None:
    names = ("Dumping /a/00000000000000000009-0000000001.checkpoint", "Dumping /a/00000000000000000009.log")
    snapshot = [TOPIC, registered(1, 5, fenced=False), partition(isr=[1, 2])]
    lines = [
        names[0],
        *(f"| offset: {i} payload: {json.dumps(_content(each))}" for i, each in enumerate(snapshot)),
        names[1],
        "baseOffset: 9 lastOffset: 9",
        f"| offset: 9 CreateTime: 1 payload: {json.dumps(_content(change(isr=[2])))}",
    ]
    [found] = irregular(read_records(lines))
    assert (found.offset, found.what) == (9, "orders-0 with a leader that is not in the ISR")


def _content(record: MetadataRecord) -> dict[str, Any]:
    return {"type": record.kind, "version": record.version, "data": record.data}
