"""The ledger of a runs folder shows trends: cases that waver, and cases that became slower."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from reports.command import report
from reports.trends import make_trends
from suites.selftest.run_folders import nights, write_run_folder


def test_what_fails_now_and_then_is_named_the_worst_first() -> None:
    entries = [
        *nights("holds", "valid valid valid"),
        *nights("wavers", "valid invalid valid valid"),
        *nights("fails", "invalid invalid"),
        *nights("once", "invalid"),
        *nights("schedules/random[kraft-0]", "valid invalid"),
        *nights("wavers", "valid valid", backend="docker"),
    ]
    trends = make_trends(entries)
    told = [(each.id, each.backend, each.valid, each.runs, each.wavers) for each in trends.telling]
    assert told == [("fails", "process", 0, 2, False), ("wavers", "process", 3, 4, True)]
    assert trends.steady == 2
    assert trends.telling[1].latest[1] == ("2026-01-02", "invalid")


def test_a_control_that_came_out_as_it_must_holds() -> None:
    entries = [*nights("control/x[zk-lost]", "invalid invalid"), *nights("control/y[zk-lost]", "invalid valid")]
    trends = make_trends(entries)
    assert [(each.id, each.valid, each.latest[1][1]) for each in trends.telling] == [("control/y[zk-lost]", 1, "error")]
    assert (trends.steady, trends.days[1][1]) == (1, {"valid": 1, "error": 1})


def test_what_takes_longer_than_it_did_is_named() -> None:
    slower = nights("slower", "valid " * 8, 10, 11, 9, 10, 10, 20, 22, 21)
    steady = nights("steady", "valid " * 8, 10, 11, 9, 10, 10, 11, 12, 10)
    [found] = make_trends([*slower, *steady]).telling
    assert (found.id, found.took_s, found.is_slower) == ("slower", (20.5, 10.0), True)


def test_each_day_has_its_verdicts() -> None:
    entries = [*nights("a", "valid valid"), *nights("b", "valid invalid")]
    days = make_trends(sorted(entries, key=lambda entry: entry.at)).days
    assert days == [("2026-01-01", {"valid": 2}), ("2026-01-02", {"valid": 1, "invalid": 1})]
    assert make_trends([]).days == []


def test_the_page_shows_them(tmp_path: Path) -> None:
    """The page reads the ledger beside the run folders; without a ledger it has no such table."""
    write_run_folder(tmp_path)

    def page() -> str:
        done = CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
        assert done.exit_code == 0
        return (tmp_path / "report" / "index.html").read_text()

    assert "From run to run" not in page()
    entries = [*nights("wavers", "valid invalid valid"), *nights("holds", "valid valid")]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(entry.to_json()) + "\n" for entry in entries))
    told = page()
    assert "1 case ran more than once and held each time" in told
    assert '<span class="invalid" title="2026-01-02: invalid">✕</span>' in told
    assert "<td>wavers <b" in told
    assert "<td>2 of 3</td>".replace("<td>", '<td class="n">') in told
