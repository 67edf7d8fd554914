"""A held move that ends over a restart is excused only where the broker's log shows that it had no throttle yet."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.broker_log import BrokerLog
from harness.kafka.versions import Mode
from suites.held_moves import check_ended_before_throttle
from suites.selftest.fakes import deviation_kinds, fake_broker, fake_cluster, fake_node, log_dir_at

STARTED = datetime(2026, 1, 1, 12, tzinfo=UTC)
SWAPPED = (
    "Attempting to replace current log Log(dir=/b3/d1/orders-0, topic=orders, partition=0) with "
    "Log(dir=/b3/d2/orders-0.6c1e-future, topic=orders, partition=0) for orders-0 (LogManager)"
)
OTHER_SWAPPED = SWAPPED.replace("orders-0", "orders-01")
CONFIGURED = (
    "[DynamicConfigPublisher broker id=3] Updating node 3 with new configuration : "
    "replica.alter.log.dirs.io.max.bytes.per.second -> 1 (kafka.server.metadata.DynamicConfigPublisher)"
)
OTHER_CONFIGURED = "[DynamicConfigPublisher broker id=3] Updating topic orders with new configuration : a -> 1 (Other)"
APPLIED = "[BrokerServer id=3] Finished waiting for the initial broker metadata update to be published (BrokerServer)"


def restarted(tmp_path: Path, *logged: str, before: tuple[str, ...] = (), mode: Mode = Mode.KRAFT) -> Cluster:
    """A cluster whose broker 3 was restarted and has logged these lines since, one a second."""
    lines = [f"[2026-01-01 11:59:0{n},000] INFO {line}\n" for n, line in enumerate(before)]
    lines += [f"[2026-01-01 12:00:0{n},000] INFO {line}\n" for n, line in enumerate(logged)]
    log = BrokerLog(tmp_path / "broker.log")
    log.path.write_text("".join(lines))
    node = fake_node("broker-3", log=log, check_alive=lambda: None)
    return fake_cluster(mode=mode, brokers=[fake_broker(3, log=log, node=node, started_at=STARTED)])


def to(cluster: Cluster) -> LogDir:
    return log_dir_at(Path("/b3/d2"), cluster.brokers[0])


@pytest.mark.parametrize(
    ("logged", "outcome"),
    [
        ((SWAPPED, CONFIGURED, APPLIED), nullcontext()),
        ((SWAPPED, OTHER_CONFIGURED, CONFIGURED, APPLIED), nullcontext()),
        (
            (OTHER_CONFIGURED, CONFIGURED, APPLIED, SWAPPED),
            pytest.raises(
                PromiseBroken, match=r"ended after broker 3 had its configuration: .*12:00:01.* -> 1.*12:00:03"
            ),
        ),
        (
            (CONFIGURED, SWAPPED, APPLIED),
            pytest.raises(Inconclusive, match="ended while broker 3 applied its configuration"),
        ),
        (
            (SWAPPED, CONFIGURED, APPLIED, SWAPPED),
            pytest.raises(PromiseBroken, match="ended after broker 3 had its configuration"),
        ),
        (
            (SWAPPED, OTHER_CONFIGURED, APPLIED),
            pytest.raises(PromiseBroken, match="broker 3 has started without its configuration"),
        ),
        (
            (SWAPPED, APPLIED, CONFIGURED),
            pytest.raises(PromiseBroken, match="broker 3 has started without its configuration"),
        ),
        ((OTHER_SWAPPED, CONFIGURED, APPLIED), pytest.raises(PromiseBroken, match="broker 3 logs no line")),
        ((SWAPPED, CONFIGURED), pytest.raises(Inconclusive, match="to log that it has applied the metadata")),
    ],
    ids=["before", "before", "after", "amid", "again after", "no config", "late config", "no end", "still starts"],
)
def test_a_held_move_may_end_only_before_its_broker_has_the_configuration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: tuple[str, ...],
    outcome: AbstractContextManager[object],
) -> None:
    """If the broker ignores the throttle for ever, the move ends after the configuration."""
    monkeypatch.setattr(timeouts, "REQUEST_S", 0.01)
    cluster = restarted(tmp_path, *logged)
    with outcome as raised:
        check_ended_before_throttle(cluster, "orders-0", to(cluster))
    assert deviation_kinds(cluster) == ([] if raised else ["deviation.seen"])


@pytest.mark.parametrize(("at_s", "error"), [(9, PromiseBroken), (12, Inconclusive)])
def test_a_move_may_end_with_the_fetch_that_a_throttle_allows(
    tmp_path: Path, at_s: int, error: type[PromiseBroken | Inconclusive]
) -> None:
    """It copied nearly all before the broker had its configuration. A throttle allows a fetch every twelve seconds."""
    cluster = restarted(tmp_path, CONFIGURED, APPLIED)
    with cluster.brokers[0].log.path.open("a") as log:
        log.write(f"[2026-01-01 12:00:{at_s:02},000] INFO {SWAPPED}\n")
    with pytest.raises(error, match=r"ended (after|when the throttle allowed one more fetch)"):
        check_ended_before_throttle(cluster, "orders-0", to(cluster))


def test_lines_of_an_earlier_start_show_nothing(tmp_path: Path) -> None:
    cluster = restarted(tmp_path, CONFIGURED, APPLIED, before=(SWAPPED, CONFIGURED, APPLIED))
    with pytest.raises(PromiseBroken, match="broker 3 logs no line /Attempting to replace"):
        check_ended_before_throttle(cluster, "orders-0", to(cluster))


def test_only_kraft_is_known_for_it(tmp_path: Path) -> None:
    cluster = restarted(tmp_path, SWAPPED, CONFIGURED, APPLIED, mode=Mode.ZK)
    with pytest.raises(PromiseBroken, match="ended before broker 3 had its configuration"):
        check_ended_before_throttle(cluster, "orders-0", to(cluster))
