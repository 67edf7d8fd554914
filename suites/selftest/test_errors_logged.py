"""Errors in nodes' logs that no fault explains are grouped, counted and kept."""

from __future__ import annotations

from pathlib import Path

from harness.events import FaultInjecting
from harness.journal import now
from harness.measure.errors_logged import KEPT, errors_logged

LOG = """\
[2026-01-01 00:00:01,000] INFO fine (a.B)
[2026-01-01 00:00:02,000] ERROR Error while flushing log for t-0 in dir /d/1 (a.B)
[2026-01-01 00:00:03,000] ERROR [Thread-1]: Error due to (a.B)
java.lang.NullPointerException: no t-7
\tat a.B
[2026-01-01 00:00:04,000] ERROR [Thread-22]: Error due to (a.B)
java.lang.NullPointerException: no t-8
[2026-01-01 00:00:05,000] FATAL the end of /d/2 with GX8Am3SYSTa5cUjzmBmZWg (a.B)
"""


def test_errors_that_no_fault_explains_are_kept(tmp_path: Path) -> None:
    """Errors that differ only in names and numbers are one group; rare groups come first; INFO lines do not count."""
    for node in ("1", "2"):
        (tmp_path / "brokers" / node).mkdir(parents=True)
    (tmp_path / "brokers" / "1" / "broker.log").write_text(LOG)
    (tmp_path / "brokers" / "2" / "broker.log").write_text(LOG.replace("GX8Am3SYSTa5cUjzmBmZWg", "A" * 22))
    fault = FaultInjecting(at=now(), fault="eio", target="d", broker=1, explains=("Error while (flushing|reading)",))
    fatal, died = errors_logged([fault], tmp_path)
    assert (fatal.count, fatal.nodes, fatal.at) == (2, ["1", "2"], "2026-01-01T00:00:05+00:00")
    assert (died.count, died.line) == (
        4,
        "[Thread-1]: Error due to (a.B) | java.lang.NullPointerException: no t-7",
    )
    assert [group.count for group in errors_logged([], tmp_path)] == [2, 2, 4]


def test_what_is_logged_all_the_time_gives_way(tmp_path: Path) -> None:
    (tmp_path / "brokers" / "1").mkdir(parents=True)
    kinds = "abcdefghijklmnopqrstuvwxyz"
    lines = [f"[2026-01-01 00:00:01,000] ERROR {kind}\n" * (1 + index) for index, kind in enumerate(kinds)]
    (tmp_path / "brokers" / "1" / "broker.log").write_text("".join(lines))
    assert [group.line for group in errors_logged([], tmp_path)] == list(kinds[:KEPT])
