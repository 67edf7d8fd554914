"""Answers of brokers to reads and DescribeLogDirs are compared with what KIPs allow. The answers are made up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.cluster.topic import Partition
from harness.crowding import EASY, Crowding
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from suites.kip_112.test_access import read_meets_error
from suites.kip_113.test_requests import LEAST_LOOKS, SWAPS, TWICE_AT_MOST, check_one_at_a_time
from suites.selftest.fakes import deviation_kinds, fake, fake_broker, fake_cluster, log_dir_at


def refuse(error: str) -> Callable[[str, int, int], bytes]:
    """Return a broker's answer to any read."""

    def answer(topic: str, index: int, offset: int) -> bytes:
        raise Refused(f"fetch {topic}-{index} from {offset}", error)

    return answer


@pytest.mark.parametrize(
    ("answer", "raises", "says"),
    [
        (refuse("KAFKA_STORAGE_ERROR"), None, ""),
        (refuse("UNKNOWN_TOPIC_OR_PARTITION"), None, ""),
        (refuse("OFFSET_OUT_OF_RANGE"), PromiseBroken, "OFFSET_OUT_OF_RANGE.*, instead of KAFKA_STORAGE_ERROR or UNK"),
        (refuse("UNKNOWN_SERVER_ERROR"), PromiseBroken, "instead of KAFKA_STORAGE_ERROR"),
        (lambda *_: b"records", Inconclusive, "with 7 bytes, in spite of the fault"),
    ],
    ids=["storage", "the KIP's", "offset", "server", "records"],
)
def test_a_read_from_a_failed_log_dir_gets_a_storage_error(
    answer: Callable[[str, int, int], bytes], raises: type[Exception] | None, says: str
) -> None:
    leader = fake_broker(admin=fake(Admin, fetch=answer))
    partition = fake(Partition, topic="idle", index=0, leader=lambda: leader)
    with nullcontext() if raises is None else pytest.raises(raises, match=says):
        read_meets_error(partition, offset=100)


ENOUGH = SWAPS * LEAST_LOOKS
FEW, MANY = ENOUGH // 100, round(2 * TWICE_AT_MOST * ENOUGH)
QUIET, CROWDED = Crowding(), Crowding(per_core=2 * EASY)


@pytest.mark.parametrize(
    ("once", "twice", "never", "crowding", "raises", "says"),
    [
        (ENOUGH, FEW, 0, QUIET, None, ""),
        (ENOUGH, FEW, 0, CROWDED, None, ""),
        (ENOUGH, MANY, 0, QUIET, PromiseBroken, "should be in one log dir during a swap"),
        (ENOUGH, MANY, 0, CROWDED, Inconclusive, "on a crowded machine .4.0 threads per core.*at most 20% expected"),
        (ENOUGH, 0, 1, CROWDED, PromiseBroken, "should be in one log dir during a swap"),  # no swap takes it away
        (ENOUGH, MANY, 1, CROWDED, PromiseBroken, "should be in one log dir during a swap"),
        (ENOUGH - 1, 0, 0, CROWDED, Inconclusive, "at least 240 wanted; 4.0 threads per core"),
    ],
)
def test_a_crowded_machine_may_show_swaps_too_often_or_too_seldom(
    once: int, twice: int, never: int, crowding: Crowding, raises: type[Exception] | None, says: str
) -> None:
    log_dirs = (log_dir_at(Path("/d1")), log_dir_at(Path("/d2")))
    both = tuple(sorted(str(log_dir.path) for log_dir in log_dirs))
    seen = {(both[0],): once, both: twice, (): never}
    cluster = fake_cluster("4.4.0")
    with nullcontext() if raises is None else pytest.raises(raises, match=says):
        check_one_at_a_time(cluster, log_dirs, {shown: count for shown, count in seen.items() if count}, crowding)
    assert deviation_kinds(cluster) == ([] if raises else ["deviation.seen"])
