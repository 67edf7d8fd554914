"""Eligible leader replicas are read from kafka-topics, and two sources must agree on them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import Admin
from harness.kafka.metadata import EligibleReplicas
from harness.kafka.tool_answers import DescribedPartition, read_topics
from suites import eligible_replicas
from suites.eligible_replicas import check_eligible
from suites.selftest.fakes import fake, fake_broker, fake_cluster

PRINTED = "\tTopic: t\tPartition: 0\tLeader: none\tReplicas: 3,1,2\tIsr: \tElr: {elr}\tLastKnownElr: 3\n"


@pytest.mark.parametrize(("elr", "read"), [("", ()), ("N/A", ()), ("3", (3,)), ("3,2", (3, 2))])
def test_kafka_topics_prints_them(elr: str, read: tuple[int, ...]) -> None:
    assert read_topics([PRINTED.format(elr=elr)])["t", 0].eligible == read


def test_releases_before_3_8_print_none() -> None:
    assert read_topics(["\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\n"])["t", 0].eligible == ()


@pytest.mark.parametrize(
    ("by_request", "by_tool", "agree"), [({2, 3}, (3, 2), True), ({2, 3}, (3,), False), ({3}, (3,), False)]
)
def test_both_sources_must_show_them(
    monkeypatch: pytest.MonkeyPatch, by_request: Collection[int], by_tool: tuple[int, ...], agree: bool
) -> None:
    monkeypatch.setattr("harness.timeouts.LOG_DIR_FAILURE_S", 0.01)
    shown = DescribedPartition(leader=None, replicas=(3, 1, 2), isr=(), eligible=by_tool)
    monkeypatch.setattr(eligible_replicas, "describe_topics", lambda *_: {("t", 0): shown})
    answer = EligibleReplicas(leader=None, isr=frozenset(), eligible=frozenset(by_request))
    via = fake_broker(1, admin=fake(Admin, describe_eligible=lambda *_: answer), bootstrap="h:1")

    def check() -> None:
        eligible = (fake_broker(2), fake_broker(3))
        check_eligible(Partition(fake_cluster(), "t", 0), leader=None, isr=(), eligible=eligible, via=via)

    if agree:
        check()
    else:
        with pytest.raises(PromiseBroken, match="eligible leader replicas"):
            check()
