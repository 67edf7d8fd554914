"""A known deviation must show as declared: a kept promise and any third answer fail. The answers are made up."""

from __future__ import annotations

import pytest

from harness.errors import PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.versions import KafkaVersion
from harness.runner.deviation import Deviation
from suites import deviations
from suites.checks import check_promised_or_known, check_refused
from suites.deviations import REASSIGNMENT_ACCEPTED
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import fake_cluster
from suites.selftest.journal_lines import lines_of

DEVIATES, MENDED = KafkaVersion.parse("4.3.1"), KafkaVersion.parse("4.4.0")
OF_KIP_1066 = [each for each in vars(deviations).values() if getattr(each, "kip", None) == 1066]


@pytest.mark.parametrize(
    ("version", "seen", "says"),
    [
        (DEVIATES, "done", None),
        (DEVIATES, "INELIGIBLE_REPLICA", "no longer deviates: it is carried out, into a cordoned log dir"),
        (DEVIATES, "INVALID_REQUEST", "seen: INVALID_REQUEST, instead of done"),
        (MENDED, "INELIGIBLE_REPLICA", None),
        (MENDED, "done", "is INELIGIBLE_REPLICA; seen: done, instead of INELIGIBLE_REPLICA"),
    ],
)
def test_only_what_is_known_of_the_build_is_quiet(version: KafkaVersion, seen: str, says: str | None) -> None:
    cluster = fake_cluster(str(version))
    with breaks_promise(says):
        check_promised_or_known(REASSIGNMENT_ACCEPTED, cluster, seen, promised="INELIGIBLE_REPLICA", known="done")
    noted = [event["seen"] for event in lines_of(cluster.journal, "deviation.seen")]
    assert noted == (["done"] if (version, says) == (DEVIATES, None) else [])


@pytest.mark.parametrize("deviation", OF_KIP_1066, ids=lambda deviation: deviation.actual[:40])
def test_each_deviation_of_kip_1066_is_of_the_build_that_it_was_seen_on(deviation: Deviation) -> None:
    assert DEVIATES in deviation.builds or MENDED in deviation.builds
    assert KafkaVersion.parse("4.2.0") not in deviation.builds


def refuse() -> None:
    raise Refused("create topic t", "INVALID_REPLICATION_FACTOR", "only 2 broker(s) are registered")


@pytest.mark.parametrize(
    ("error", "saying", "says"),
    [
        ("INVALID_REPLICATION_FACTOR", r"only \d+ broker", None),
        ("INVALID_REQUEST", r"only \d+ broker", "INVALID_REPLICATION_FACTOR .*, instead of INVALID_REQUEST"),
        ("INVALID_REPLICATION_FACTOR", "cordoned", "instead of INVALID_REPLICATION_FACTOR with /cordoned/"),
    ],
)
def test_a_refusal_has_its_error_and_its_message(error: str, saying: str, says: str | None) -> None:
    with breaks_promise(says):
        check_refused(refuse, error, saying)


def test_what_is_done_is_not_refused() -> None:
    with pytest.raises(PromiseBroken, match="the request succeeded, where INVALID_REQUEST is promised"):
        check_refused(lambda: None, "INVALID_REQUEST", "")
