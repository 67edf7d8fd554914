"""The input and output of kafka-reassign-partitions, and who is asked for reassignments."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cluster.broker import Broker
from harness.cluster.reassign import Placement, unfinished
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from suites.selftest.fakes import fake, fake_broker, fake_cluster, log_dir_at, partition_of

ORDERS = Placement(partition=partition_of("orders"), on=(log_dir_at(Path("/b1/d2"), fake_broker(1)), fake_broker(2)))

# As Kafka 3.9.2 and 4.3.1 print them.
HEAD = "Status of partition reassignment:"
TAIL = ["Clearing broker-level throttles on brokers 1,2,3", "Clearing topic-level throttles on topic orders"]
REASSIGNED = "Reassignment of partition orders-0 is completed."
MOVED = "Reassignment of replica orders-0-1 completed successfully."


def test_a_placement_is_written_as_the_tool_reads_it() -> None:
    assert ORDERS.to_json() == {
        "topic": "orders",
        "partition": 0,
        "replicas": [1, 2],
        "log_dirs": ["/b1/d2", "any"],
    }


@pytest.mark.parametrize("line", [REASSIGNED, "Reassignment of partition orders-0 is complete."])  # as 2.7.0 has it
def test_done_is_done(line: str) -> None:
    assert unfinished([HEAD, line, MOVED, *TAIL], [ORDERS]) == []


@pytest.mark.parametrize(
    "line",
    [
        "Reassignment of replica orders-0-1 is still in progress.",
        "Partition orders-0 on broker 1 is not being moved from log dir /b1/d1 to /b1/d2.",
        "Partition orders-0 on broker 1 is being moved to log dir /b1/d3 instead of /b1/d2.",
        "Partition orders-0 is not found in any live log dir on broker 1. "
        "There is likely an offline log directory on the broker.",
    ],
)
def test_a_replica_that_is_not_there_is_named(line: str) -> None:
    assert unfinished([HEAD, REASSIGNED, line, *TAIL], [ORDERS]) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "Reassignment of partition orders-0 is still in progress.",
        "There is no active reassignment of partition orders-0, but replica set is 2,1 rather than 1,2.",
    ],
)
def test_a_partition_that_is_not_there_is_named(line: str) -> None:
    assert unfinished([HEAD, line, MOVED, *TAIL], [ORDERS]) == [line]


def test_a_tool_that_prints_too_few_lines_has_not_shown_that_all_is_done() -> None:
    """A missing status line counts as unfinished."""
    assert unfinished([HEAD, REASSIGNED], [ORDERS]) == ["1 status lines instead of 2", REASSIGNED]


@pytest.mark.parametrize(("error", "raised"), [("NOT_CONTROLLER", NoAnswer), ("CLUSTER_AUTHORIZATION_FAILED", Refused)])
def test_a_broker_that_is_the_controller_no_more_gives_no_answer(error: str, raised: type[Exception]) -> None:
    """ZooKeeper mode: whoever waits for reassignments asks again, as for any broker that does not answer."""

    def refuse() -> None:
        raise Refused("the reassignments", error)

    asked = fake(Broker, admin=fake(Admin, describe_reassignments=refuse))
    with pytest.raises(raised):
        fake_cluster(_controller_or_any=lambda: asked).reassignments()
