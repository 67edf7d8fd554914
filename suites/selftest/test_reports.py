"""The data of the report's pages, from small run folders; a damaged folder gives one clear line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from harness.errors import EXIT_NOTHING_RAN, EXIT_VALID, HarnessError, UsageError
from harness.host.probes import LEAST_NODE
from reports import pages
from reports.allure import write_result
from reports.command import read, report
from reports.folder import Damaged, read_folder
from reports.index import make_index
from reports.lanes import Lane
from reports.rows import read_runs_dir
from reports.timeline import Timeline, make_timeline
from suites.selftest.processes import HANG_S, JBOD
from suites.selftest.run_folders import (
    COSTS,
    LOST,
    RUN_ID,
    START,
    change_produced,
    event,
    write_run_folder,
    write_torn_run_folder,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run_folder(tmp_path)


def drawn(lane: Lane) -> list[tuple[float, float, str]]:
    return [(span.start, span.end, span.look) for span in lane.spans]


def lanes_of(timeline: Timeline, group: str) -> dict[str, Lane]:
    return {lane.name: lane for name, of in timeline.groups if name.startswith(group) for lane in of}


# --- a case's page --------------------------------------------------------------------------------------------------


def test_the_states_of_a_run_over_time(folder: Path) -> None:
    timeline = make_timeline(read_folder(folder))
    assert timeline.end == 9.5
    assert drawn(lanes_of(timeline, "brokers")["broker-2"]) == [
        (0.01, 0.5, "starting"),
        (0.5, 7.0, "up"),
        (7.0, 7.2, "stopping"),
        (7.2, 7.3, "down"),
        (7.3, 8.0, "starting"),
        (8.0, 9.5, "up"),
    ]
    assert drawn(lanes_of(timeline, "log dirs")["broker 2 log-dir-1"]) == [
        (0.01, 2.0, "good"),
        (2.0, 2.25, "hurt"),
        (2.25, 7.2, "offline"),
        (7.2, 7.3, "down"),
        (7.3, 9.5, "good"),
    ]
    assert drawn(lanes_of(timeline, "partitions")["orders-0"]) == [
        (0.6, 2.4, "leader b2"),
        (2.4, 2.5, "leaderless offline-replicas"),
        (2.5, 8.2, "leader b1 shrunk offline-replicas"),
        (8.2, 9.5, "leader b1"),
    ]
    counted = lanes_of(timeline, "MBeans")["broker-2 log dirs"]
    assert [(span.start, span.text) for span in counted.spans] == [(0.7, "0"), (2.4, "1")]
    assert {lane.name for _, of in timeline.groups for lane in of if lane.quiet} == {
        "broker-1",
        "broker 1 log-dir-1",
        "broker 1 log-dir-2",
        "broker 2 log-dir-2",
    }


def test_what_clients_saw(folder: Path) -> None:
    clients = make_timeline(read_folder(folder)).clients
    [silence] = clients.silences
    assert silence.no_ack == [(2.21, 4.21)]
    assert silence.no_read == [(2.22, 4.22)]
    lines = {line.name: line.values for line in (*clients.throughput, *clients.latency)}
    assert sum(v or 0 for v in lines["acked"]) * clients.bin_s == pytest.approx(31)
    assert sum(v or 0 for v in lines["read, c0"]) * clients.bin_s == pytest.approx(31)
    assert {v for v in lines["ack, longest"] if v is not None} == {10.0}
    assert {v for v in lines["read, longest"] if v is not None} == {20.0}


def test_clients_that_got_no_ack_at_all(folder: Path) -> None:
    change_produced(folder, lambda row: {"outcome": "failed"})
    clients = make_timeline(read_folder(folder)).clients
    lines = {line.name: line.values for line in clients.throughput}
    assert set(lines["acked"]) == {None}
    assert sum(v or 0 for v in lines["failed"]) * clients.bin_s == pytest.approx(31)
    assert clients.silences[0].no_ack == [(1.0, 6.0)]


def test_what_was_sent_before_the_first_ack_is_drawn(folder: Path) -> None:
    """The first records often have the longest latencies, since the cluster is still starting."""
    change_produced(folder, lambda row: {"sent_at": row["sent_at"] - timedelta(seconds=0.8)} if row["seq"] == 0 else {})
    clients = make_timeline(read_folder(folder)).clients
    [longest] = [line.values for line in clients.latency if line.name == "ack, longest"]
    assert longest[0] == 810.0
    assert clients.middles[0] == pytest.approx(0.25)


def test_a_partition_that_was_sent_to_and_gave_nothing_has_its_lanes(folder: Path) -> None:
    change_produced(folder, lambda row: {"partition": 1, "outcome": "failed"} if row["seq"] == 0 else {})
    silences = {each.partition: each for each in make_timeline(read_folder(folder)).clients.silences}
    assert (silences[1].no_ack, silences[1].no_read) == ([(1.0, 6.0)], [(1.0, 6.0)])


def test_an_anomaly_stands_where_its_record_was_sent_and_has_its_story(folder: Path) -> None:
    timeline = make_timeline(read_folder(folder))
    [anomaly] = timeline.anomalies
    assert (anomaly.at, anomaly.kind, anomaly.stories) == (5.9, "lost", [0])
    assert timeline.stories[0].seq == LOST


def test_a_torn_transaction_stands_where_its_first_record_was_sent_and_has_the_stories_of_its_records(
    tmp_path: Path,
) -> None:
    timeline = make_timeline(read_folder(write_torn_run_folder(tmp_path)))
    told = [(each.at, each.kind, each.stories, each.says) for each in timeline.anomalies]
    assert told == [(1.4, "partial_transaction", [0, 1], "transaction p0-t1")]
    assert [story.seq for story in timeline.stories] == [4, 6]


@pytest.mark.parametrize(("count", "says"), [(1, "all"), (1234, "the first 1 of 1,234")])
def test_it_is_shown_how_many_anomalies_are_left_out(tmp_path: Path, count: int, says: str) -> None:
    folder = write_torn_run_folder(tmp_path, count=count)
    CliRunner().invoke(report, [str(folder), "--no-allure"], catch_exceptions=False)
    page = (folder / "report" / "cases" / f"{RUN_ID}.html").read_text()
    assert f'<td>partial_transaction</td><td class="n">{count:,}</td><td>{says}</td>' in page


@pytest.mark.parametrize(
    ("error", "kind"), [("PromiseBroken", "a promise is broken"), ("NodeDied", "NodeDied")], ids=["promise", "other"]
)
def test_what_ended_the_scenario_stands_where_it_did(folder: Path, error: str, kind: str) -> None:
    with (folder / "events.jsonl").open("a") as journal:
        journal.write(json.dumps(event(6.5, "trouble", error=error, says="nobody leads orders-0")) + "\n")
    timeline = make_timeline(read_folder(folder))
    assert [(each.at, each.by, each.kind) for each in timeline.anomalies] == [
        (6.5, "the scenario", kind),
        (5.9, "the judge", "lost"),
    ]
    assert timeline.anomalies[0].says == "nobody leads orders-0"
    assert "trouble" not in " ".join(mark.says for mark in timeline.marks)


@pytest.mark.parametrize(
    "ended", [{"kind": "broker.ended", "broker": 1}, {"kind": "node.ended_by_itself", "node": "broker-1"}]
)
def test_a_broker_that_ended_by_itself_is_down_with_its_log_dirs(folder: Path, ended: dict[str, Any]) -> None:
    with (folder / "events.jsonl").open("a") as journal:
        journal.write(json.dumps(event(9.0, **ended, exit_code=1)) + "\n")
    timeline = make_timeline(read_folder(folder))
    assert drawn(lanes_of(timeline, "brokers")["broker-1"])[-1] == (9.0, 9.5, "down")
    assert drawn(lanes_of(timeline, "log dirs")["broker 1 log-dir-2"]) == [(0.01, 9.0, "good"), (9.0, 9.5, "down")]


def test_a_cordoned_log_dir_is_drawn_as_such(folder: Path) -> None:
    """It is drawn from when the cordon is in force until other log dirs are cordoned; other log dirs do not change."""
    with (folder / "events.jsonl").open("a") as journal:
        for at, cordoned in ((8.0, ["broker-1-log-dir-2 of broker 1"]), (9.0, [])):
            journal.write(json.dumps(event(at, "cordon.in_force", broker=1, log_dirs=cordoned)) + "\n")
    lanes = lanes_of(make_timeline(read_folder(folder)), "log dirs")
    assert drawn(lanes["broker 1 log-dir-2"]) == [(0.01, 8.0, "good"), (8.0, 9.0, "cordoned"), (9.0, 9.5, "good")]
    assert drawn(lanes["broker 1 log-dir-1"]) == [(0.01, 9.5, "good")]
    assert (lanes["broker 1 log-dir-2"].quiet, lanes["broker 1 log-dir-1"].quiet) == (False, True)


def test_a_fault_is_shaded_until_it_was_undone_and_says_what_it_cost(folder: Path) -> None:
    [(span, costs)] = make_timeline(read_folder(folder)).faults
    assert costs is not None
    assert (span.start, span.end, costs.produce_gap_s) == (2.0, 7.0, 2.0)


def test_of_a_log_the_lines_that_matter(folder: Path) -> None:
    said = [(m.at, m.look, m.says) for m in make_timeline(read_folder(folder)).marks if m.who == "broker-2"]
    assert said == [
        (2.25, "warn", "Stopping serving logs in dir broker-2-log-dir-1"),
        (2.26, "error", "Error while writing 7 (×2 within a second)"),
    ]


def test_a_page_is_one_file_that_loads_nothing(folder: Path, tmp_path: Path) -> None:
    CliRunner().invoke(report, [str(folder), "--out", str(tmp_path / "out"), "--no-allure"])
    page = (tmp_path / "out" / "cases" / f"{RUN_ID}.html").read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", page)
    assert page.count("</script>") == page.count("<script")  # text in a story cannot end the page's script element
    data = re.search(r'id="timeline-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["stories"][0]["timeline"][0]["says"].endswith("</script>")


def test_what_is_vendored_is_what_is_pinned() -> None:
    assets = Path(pages.__file__).parent / "assets"
    wanted = json.loads((assets / "package.json").read_text())["dependencies"]
    locked = json.loads((assets / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert f"uPlot (v{wanted['uplot']})" in (assets / "uPlot.iife.min.js").read_text()[:100]
    assert not [name for name, package in locked.items() if "resolved" in package]  # no registry is named


# --- the index ------------------------------------------------------------------------------------------------------


def with_verdict(runs_dir: Path, verdict: str, name: str, case: str = "kip-112/a[zk]", **more: object) -> None:
    outcome = {"verdict": verdict, "reason": "" if verdict == "valid" else f"because {name}"}
    write_run_folder(runs_dir, name, case=case, outcome=outcome, started_at=f"2026-01-01T00:00:0{name}+00:00", **more)


@pytest.mark.parametrize(
    ("verdicts", "verdict", "headline"),
    [
        ("valid", "valid", "Every guarantee held in 1 case"),
        ("valid unknown", "unknown", "Nothing was shown in 1 case of 2"),
        ("unknown error", "error", "The harness or its environment failed in 1 case of 2"),
        ("error invalid valid", "invalid", "Kafka broke a guarantee in 1 case of 3"),
    ],
)
def test_the_worst_verdict_is_the_answer(tmp_path: Path, verdicts: str, verdict: str, headline: str) -> None:
    for number, word in enumerate(verdicts.split()):
        with_verdict(tmp_path, word, str(number), case=f"kip-112/{word}[zk]")
    answer = make_index(read_runs_dir(tmp_path)).answer
    assert (answer.verdict, answer.headline) == (verdict, headline)


def test_nothing_that_ran_is_no_pass(tmp_path: Path) -> None:
    assert make_index(read_runs_dir(tmp_path)).answer.verdict == "unknown"


def test_the_newest_run_of_a_case_counts_and_wavering_is_no_pass(tmp_path: Path) -> None:
    with_verdict(tmp_path, "invalid", "1")
    with_verdict(tmp_path, "valid", "2")
    index = make_index(read_runs_dir(tmp_path))
    assert (index.totals["valid"], index.totals["invalid"], len(index.wavering)) == (1, 0, 1)
    assert index.answer.verdict == "unknown"


def test_what_each_reader_went_without_is_reported(tmp_path: Path) -> None:
    """The gap of a stream is shown apart from the pair's gaps."""
    folder = write_run_folder(tmp_path, faults=[COSTS | {"reader_gaps_s": {"s0": 4.5, "g0": 0.25}}])
    CliRunner().invoke(report, [str(folder), "--no-allure"], catch_exceptions=False)
    [page] = [each.read_text() for each in (folder / "report" / "cases").iterdir()]
    assert "s0 without a record: 4.50" in page
    assert "g0 without a record: 0.25" in page


def test_the_report_of_one_case_is_not_that_of_all(tmp_path: Path) -> None:
    """The report of one case is in the case's folder; a folder that is named twice counts once."""
    with_verdict(tmp_path, "invalid", "1")
    with_verdict(tmp_path, "invalid", "2")
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    page = (tmp_path / "report" / "index.html").read_text()
    CliRunner().invoke(report, [str(tmp_path / "1"), "--no-allure"], catch_exceptions=False)
    assert (tmp_path / "report" / "index.html").read_text() == page
    assert (tmp_path / "1" / "report" / "index.html").is_file()
    assert [row.run_id for row in read([tmp_path, tmp_path / "1"]).rows] == ["1", "2"]


def test_what_was_never_reached_does_not_hide_what_is_wrong(tmp_path: Path) -> None:
    """On the page of a first night, such cases are counted and folded; the failures stay in sight."""
    with_verdict(tmp_path, "invalid", "1")
    nodes = [f"suites/a.py::test_a[{number}]" for number in range(40)]
    content = {"started_at": "2026-01-01T00:00:00+00:00", "scenarios": [], "not_reached": nodes}
    (tmp_path / "results-20260101T000000-aaaaaa.json").write_text(json.dumps(content))
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    page = (tmp_path / "report" / "index.html").read_text()
    shown, folded = page.split("<details>")[:2]
    assert "34 more notes" in folded
    assert shown.count("never began") == 6
    assert page.count("never began") == 40


def test_another_leader_that_never_came_is_distinguished_from_one_that_was_not_needed(tmp_path: Path) -> None:
    for name, lost, says in (("a", 2, "<td>never</td>"), ("b", 0, "<td>–</td>")):
        costs = COSTS | {"other_leader_s": None, "no_other_leader": lost}
        write_run_folder(tmp_path, name, case=f"kip-112/{name}[zk]", faults=[costs])
        CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
        page = (tmp_path / "report" / "cases" / f"{name}.html").read_text().replace(' class="n"', "")
        assert says in page


def test_what_a_fault_costs_is_shown_for_each_role(tmp_path: Path) -> None:
    """The costs of a follower's log dir and of a leader's are shown apart."""
    for name, role in enumerate(("leader", "leader", "follower", None)):
        costs = COSTS | {"role": role, "produce_gap_s": float(name)}
        write_run_folder(tmp_path, str(name), case=f"kip-112/{name}[zk]", faults=[costs])
    told = [(cell.role, cell.times, cell.costs["produce_gap_s"]) for cell in make_index(read_runs_dir(tmp_path)).cells]
    assert told == [("follower", 1, (2.0, 2.0)), ("leader", 2, (0.5, 1.0)), ("–", 1, (3.0, 3.0))]


def test_a_median_of_fewer_times_says_so(tmp_path: Path) -> None:
    """No pair ran in two of three cases, and in one of these a partition never had another leader."""
    for name in range(3):
        costs = COSTS | {"role": "leader", "produce_gap_s": None if name else 1.0}
        costs |= {"other_leader_s": None, "no_other_leader": 1} if name == 2 else {"no_other_leader": 0}
        write_run_folder(tmp_path, str(name), case=f"kip-112/{name}[zk]", faults=[costs])
    [cell] = make_index(read_runs_dir(tmp_path)).cells
    assert [cell.of(cost) for cost in ("noticed_s", "produce_gap_s", "other_leader_s")] == [
        "",
        "1 of 3",
        "2 of 3, never: 1",
    ]
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "1.00<small> (1 of 3)</small>" in page
    assert "0.50<small> (2 of 3, never: 1)</small>" in page
    assert "| 0.50 (2 of 3, never: 1) |" in (tmp_path / "report" / "summary.md").read_text()


def test_backends_stand_side_by_side_and_where_they_differ_first(tmp_path: Path) -> None:
    with_verdict(tmp_path, "valid", "1", case="kip-112/a[zk]")
    with_verdict(tmp_path, "valid", "2", case="kip-112/a[zk]", backend="docker", seed=2)
    with_verdict(tmp_path, "valid", "3", case="kip-112/b[zk]")
    with_verdict(tmp_path, "unknown", "4", case="kip-112/b[zk]", backend="docker")
    with_verdict(tmp_path, "valid", "5", case="kip-112/c[zk]")  # in one mode only
    index = make_index(read_runs_dir(tmp_path))
    told = [
        (each.id, each.differs, each.seeds, each.cost("docker", "first_ack_s")) for each in index.backend_comparisons
    ]
    assert index.backends == ["process", "docker"]
    assert told == [("kip-112/b[zk]", True, 1, 2.2), ("kip-112/a[zk]", False, 2, 2.2)]
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "2 cases were selected in several backends; 1 came out differently" in page
    # As prominent as a failure: in the answer, above the tables, and on a pull request's page.
    assert index.answer.says.endswith("1 came out differently from backend to backend")
    assert index.answer.verdict == "unknown"
    differs = "valid in process, unknown in docker, with the same seed"
    assert page.index(differs) < page.index("<table")
    assert differs in (tmp_path / "report" / "summary.md").read_text()
    assert page.index("kip-112/b[zk]</td>") < page.index("kip-112/a[zk]</td>")


@pytest.mark.parametrize(
    ("ran", "compared", "differs"),
    [
        ("p1 d1 p2 d2", "p2 d2", False),
        ("p1 p2 d1", "p1 d1", False),  # the newest runs have different seeds
        ("p2 p1 p1! d1 d2", "p1! d1", True),  # the newest runs of the same seed; those of seed 2 are older
        ("p1 d2!", "p1 d2!", True),  # no seeds are equal
    ],
)
def test_runs_of_equal_seed_are_compared(tmp_path: Path, ran: str, compared: str, differs: bool) -> None:
    """The newest runs of the same seed are compared; ``p1!`` is an invalid run as processes with seed 1."""
    names = {"p": "process", "d": "docker"}
    for number, each in enumerate(ran.split(), 1):
        verdict = "unknown" if each.endswith("!") else "valid"
        with_verdict(tmp_path, verdict, str(number), backend=names[each[0]], seed=int(each[1]))
    [beside] = make_index(read_runs_dir(tmp_path)).backend_comparisons
    told = [f"{name[0]}{row.seed}{'' if row.verdict == 'valid' else '!'}" for name, row in beside.runs.items()]
    assert (sorted(told), beside.differs) == (sorted(compared.split()), differs)


def test_runs_that_differ_with_different_seeds_alone_are_reported_and_no_more(tmp_path: Path) -> None:
    """The seed may decide which deviations show, so such a difference is no finding."""
    for name, backend in (("1", "process"), ("2", "docker")):
        with_verdict(tmp_path, "valid", name, backend=backend, seed=int(name))
    with (tmp_path / "2" / "events.jsonl").open("a") as journal:
        journal.write(json.dumps(event(5.0, "deviation.seen", kip=113, does="a is so")) + "\n")
    answer = make_index(read_runs_dir(tmp_path)).answer
    assert (answer.verdict, answer.headline) == ("valid", "Every guarantee held in 2 cases")
    assert answer.says.endswith("1 came out differently from backend to backend")


@pytest.mark.parametrize(
    ("seen", "differs", "alone"),
    [
        (("a b", "b a"), False, ""),
        (("a b", "a"), True, "; in process alone: b is so"),
        (("", "a"), True, "; in docker alone: a is so"),
        (("a now-and-then", "a"), False, ""),
    ],
)
def test_backends_that_show_other_deviations_differ_whatever_their_verdicts(
    tmp_path: Path, seen: tuple[str, str], differs: bool, alone: str
) -> None:
    """The deviations that were seen are compared, except those that do not show in every run."""
    declared = [{"kip": 113, "says": "s", "does": "a is so", "issue": "i", "builds": ""}]
    for name, backend, does in zip("12", ("process", "docker"), seen, strict=True):
        with_verdict(tmp_path, "valid", name, backend=backend, deviations=declared)
        with (tmp_path / name / "events.jsonl").open("a") as journal:
            for each in does.split():
                noted = {"kip": 113, "does": f"{each} is so", "always": each != "now-and-then"}
                journal.write(json.dumps(event(5.0, "deviation.seen", **noted)) + "\n")
    index = make_index(read_runs_dir(tmp_path))
    [beside] = index.backend_comparisons
    no_pass = ("unknown", "1 case came out differently from backend to backend with the same seed")
    assert (index.answer.verdict, index.answer.headline) == (
        no_pass if differs else ("valid", "Every guarantee held in 2 cases")
    )
    assert (beside.differs, beside.says) == (differs, f"valid in process, valid in docker, with the same seed{alone}")
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    page = (tmp_path / "report" / "index.html").read_text()
    table = page[page.index('id="backends"') :]
    told = [len(each.split()) for each in seen if each]
    assert re.findall(r"(\d) deviations?</small>", table) == [str(count) for count in told]
    assert ("1 came out differently from backend to backend" in page) is differs
    assert (alone in (tmp_path / "report" / "summary.md").read_text()) is (differs or not alone)


def test_what_a_case_says_of_deviations_is_on_its_page_and_on_the_index(tmp_path: Path) -> None:
    """Run folders of an older jbod have no states: all their deviations were seen."""

    def told(issue: str, **state: str) -> dict[str, Any]:
        return {"kip": 113, "says": "it stops", "does": f"goes on ({issue})", "issue": issue, "builds": ">=3"} | state

    of = {"1": [told("OLD-1")], "2": [told("NEW-1", state="mended")]}
    of |= {name: [told("APART-1", state="undeclared")] for name in "3456"}
    for name, deviations in of.items():
        with_verdict(tmp_path, "valid", name, case=f"kip-113/{name}[zk]", deviations=deviations)
    noted = make_index(read_runs_dir(tmp_path)).deviations
    found = [(each.deviation.state, each.deviation.issue, len(each.rows)) for each in noted]
    assert found == [("mended", "NEW-1", 1), ("seen", "OLD-1", 1), ("undeclared", "APART-1", 4)]
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    page = (tmp_path / "report" / "index.html").read_text()
    table = page[page.index('id="deviations">') : page.index("<h2>Suites</h2>")]
    assert re.findall(r"<td[^>]*>(seen|mended|undeclared)</td>", table) == ["mended", "seen", "undeclared"]
    assert "4 cases</span>" in table
    cases = page[page.index('id="table"') :]
    assert re.findall(r">(kip-113/\d)\[zk\]</a> <b class=\"\w+\">([\w, ]+)</b>", cases) == [
        ("kip-113/1", "deviates"),
        ("kip-113/2", "mended"),
        *((f"kip-113/{name}", "deviates, undeclared") for name in "3456"),
    ]
    says = {"1": "this build: goes on (OLD-1)", "2": "keeps the promise", "3": "Undeclared deviation"}
    for name, phrase in says.items():
        assert phrase in (tmp_path / "report" / "cases" / f"{name}.html").read_text()


def test_a_case_that_one_backend_lacks_stands_beside_its_run_in_the_other(tmp_path: Path) -> None:
    with_verdict(tmp_path, "valid", "1", case="network/a[zk]", backend="docker")
    entry = {"kip": 112, "plan": "", "mode": "zk", "kafka": "4.3.1", "backend": "process", "run_dir": None}
    skipped = entry | {"id": "network/a[zk]", "verdict": "skipped", "reason": "no networks", "rerun": "pytest x"}
    content = {"started_at": "2026-01-01T00:00:00+00:00", "scenarios": [skipped]}
    (tmp_path / "results-20260101T000000-aaaaaa.json").write_text(json.dumps(content))
    index = make_index(read_runs_dir(tmp_path))
    told = [
        ({name: row.verdict for name, row in each.runs.items()}, each.differs, each.seeds)
        for each in index.backend_comparisons
    ]
    assert told == [({"docker": "valid", "process": "skipped"}, False, 1)]
    assert index.not_run == [("no networks", ["network/a[zk]"])]
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    assert '<span title="no networks">skipped</span>' in (tmp_path / "report" / "index.html").read_text()


def test_a_run_with_other_settings_is_a_case_of_its_own(tmp_path: Path) -> None:
    """So its verdict does not stand for the ordinary case."""
    case = "kip-112/leader-at-runtime[kraft-chmod_000]"
    with_verdict(tmp_path, "valid", "1", case=case)
    with_verdict(tmp_path, "invalid", "2", case=case, profile="production", settings={"num.io.threads": "2"})
    rows = read_runs_dir(tmp_path).rows
    assert {row.id: row.verdict for row in rows} == {
        case: "valid",
        f"{case} --profile=production --set=num.io.threads=2": "invalid",
    }


def test_each_random_schedule_is_a_case_of_its_own(tmp_path: Path) -> None:
    """Schedules are numbered in each run, so a later valid one does not replace one that failed."""
    steps = [{"do": "fail_log_dir", "role": "leader", "pick": 0, "fault": "eio"}, {"do": "quiet", "fault": None}]
    for name, verdict, seed in (("1", "invalid", 5), ("2", "valid", 6)):
        schedule = {"seed": seed, "steps": steps, "overrides": {}}
        with_verdict(tmp_path, verdict, name, case="schedules/random[zk-0]", mode="zk", schedule=schedule)
    (tmp_path / "1" / "smallest.json").write_text(json.dumps({"seed": 5, "steps": steps[1:]}))
    index = make_index(read_runs_dir(tmp_path))
    assert (index.totals["invalid"], index.totals["valid"], index.wavering) == (1, 1, [])
    assert index.wrong[0].id.startswith("schedules/random[zk, seed 5, ")
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    page = (tmp_path / "report" / "cases" / "1.html").read_text()
    assert "<li>fail_log_dir leader 0 eio</li>" in page
    smallest = tmp_path / "1" / "smallest.json"
    assert f"jbod run schedules --kafka=4.3.1 --mode=zk --backend=process --schedule={smallest}" in page


def test_what_did_not_run_is_reported_with_its_reason(tmp_path: Path) -> None:
    with_verdict(tmp_path, "valid", "1")
    entry = {"kip": 112, "plan": "", "mode": "zk", "kafka": "3.9.2", "backend": "process", "run_dir": None}
    skipped = entry | {"id": "kip-112/b[zk]", "verdict": "skipped", "reason": "no root", "rerun": "pytest x"}
    content = {"started_at": "2026-01-01T00:00:00+00:00", "scenarios": [skipped], "not_reached": ["suites/x.py::c"]}
    (tmp_path / "results-20260101T000000-aaaaaa.json").write_text(json.dumps(content))
    index = make_index(read_runs_dir(tmp_path))
    assert index.not_run == [("no root", ["kip-112/b[zk]"])]
    assert index.notes == ("suites/x.py::c was selected and never began",)
    assert index.answer.verdict == "unknown"  # a case that never ran is no pass


_THREE = """
import pytest
from harness.kafka.versions import Mode
from suites.scenario import scenario

@scenario("x/one", kip=112, plan="p", modes=(Mode.KRAFT,), judged=False)
def test_one(mode): pytest.skip("no reason")

@scenario("x/two", kip=112, plan="p", modes=(Mode.KRAFT,), judged=False)
def test_two(mode): assert False, "for good reason"

@scenario("x/three", kip=112, plan="p", modes=(Mode.KRAFT,), judged=False)
def test_three(mode): pass
"""


@pytest.mark.cluster
def test_a_real_run_leaves_word_of_what_left_no_folder(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(_THREE)
    xml = tmp_path / "junit.xml"
    argv = [sys.executable, "-m", "pytest", "-x", str(tmp_path), "--runs-dir", str(tmp_path / "runs")]
    argv += ["--seed=7", f"--junitxml={xml}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    run = read_runs_dir(tmp_path / "runs")
    assert [(row.id, row.verdict, row.reason) for row in run.rows] == [
        ("x/one[kraft]", "skipped", "no reason"),
        ("x/two[kraft]", "invalid", "for good reason\nassert False"),
    ]
    [note] = run.notes
    assert note.endswith("test_three.py::test_three[kraft] was selected and never began")
    again = f"jbod run '{tmp_path / 'test_three.py'}::x/two[kraft]' --backend=process --seed=7"
    assert run.rows[1].rerun == again
    told = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in ElementTree.parse(xml).iter("testcase")
    }
    assert told["test_two[kraft]"] == {"verdict": "invalid", "again": again}
    assert told["test_one[kraft]"]["verdict"] == "skipped"


def test_what_never_got_its_turn_and_has_run_since_is_no_news(tmp_path: Path) -> None:
    """A qualification that was interrupted and resumed is complete."""
    folder = write_run_folder(tmp_path)
    node = json.loads((folder / "run.json").read_text())["nodeid"]

    def notes(session_began: datetime) -> tuple[str, ...]:
        content = {"started_at": session_began.isoformat(), "scenarios": [], "not_reached": [node]}
        (tmp_path / "results-20260101T000000-aaaaaa.json").write_text(json.dumps(content))
        return read_runs_dir(tmp_path).notes

    assert notes(START - timedelta(hours=1)) == ()
    assert notes(START + timedelta(hours=1)) == (f"{node} was selected and never began",)


def test_what_ran_once_does_not_hide_that_it_did_not_run_now(tmp_path: Path) -> None:
    """The case ran last week, as root; today it was skipped. Runs on another build or in containers do not count."""
    folder = write_run_folder(tmp_path)
    run = json.loads((folder / "run.json").read_text())
    write_run_folder(tmp_path, "other", kafka={**run["kafka"], "version": "3.5.1"}, nodeid="suites/x.py::test_c[kraft]")
    entry = {"id": run["case"], "kip": 112, "plan": "", "mode": "kraft", "backend": "process", "kafka": "4.3.1"}
    later = {"started_at": (START + timedelta(hours=1)).isoformat(), "backend": "process", "kafka": {"kraft": "4.3.1"}}
    for name in ("1", "2"):  # a folder for each night
        content = {"scenarios": [entry | {"verdict": "skipped", "reason": "no root"}], **later}
        (tmp_path / f"results-{name}.json").write_text(json.dumps(content))
    early = {**later, "started_at": (START - timedelta(hours=1)).isoformat()}
    content = {"scenarios": [], "not_reached": ["suites/x.py::test_c[kraft]"], **early}
    (tmp_path / "results-3.json").write_text(json.dumps(content))
    told = read_runs_dir(tmp_path)
    assert [row.verdict for row in told.rows if row.kafka == "4.3.1"] == ["invalid", "skipped"]
    assert told.notes == ("suites/x.py::test_c[kraft] was selected and never began",)
    index = make_index(told)
    assert index.not_run == [("no root", [run["case"]])]
    assert (index.totals["invalid"], index.totals["skipped"], index.wavering) == (2, 0, [])  # still broken
    assert index.answer.says.endswith("1 of them did not run the last time")


@pytest.mark.parametrize(
    ("case", "verdict", "counts_as"),
    [
        ("control/x[zk-lost]", "invalid", "valid"),
        ("control/x[zk-lost]", "valid", "error"),
        ("control/x[zk-green]", "valid", "valid"),
        ("control/x[zk-green]", "invalid", "error"),
        ("control/x[zk-lost]", "unknown", "unknown"),
        ("kip-112/x[zk-lost]", "invalid", "invalid"),
        ("kip-112/x[zk-green]", "valid", "valid"),
    ],
)
@pytest.mark.parametrize("plan", ["control: lost", "what is lost must be found"])
def test_a_control_must_be_red(tmp_path: Path, case: str, verdict: str, counts_as: str, plan: str) -> None:
    """A control is known by its id, whatever its plan says."""
    with_verdict(tmp_path, verdict, "1", case=case, plan=plan)
    assert make_index(read_runs_dir(tmp_path)).answer.verdict == counts_as


def test_what_a_scenario_measured_is_on_its_page_and_on_that_of_all(tmp_path: Path) -> None:
    with_verdict(tmp_path, "valid", "1", measured={"move alone, to cp": 0.151})
    CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    for page in ("index.html", "cases/1.html"):
        text = (tmp_path / "report" / page).read_text()
        assert "move alone, to cp" in text
        assert "0.151" in text


def test_a_case_that_never_ended_is_an_error(tmp_path: Path) -> None:
    write_run_folder(tmp_path, "1", outcome=None)
    index = make_index(read_runs_dir(tmp_path))
    assert index.answer.verdict == "error"
    assert "never ended" in index.wrong[0].reason


def test_every_failure_has_its_own_command(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(report, [str(tmp_path), "--no-allure"])
    assert done.exit_code == 0
    assert f"jbod repro {folder}" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    "what", ["verdict.json", "history/consumed/c0-000000.parquet", "brokers/2/broker.log", "a part that has gone"]
)
def test_a_page_is_made_again_only_if_its_folder_changed(folder: Path, tmp_path: Path, what: str) -> None:
    def made() -> int:
        CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
        return (tmp_path / "report" / "cases" / f"{RUN_ID}.html").stat().st_ino

    first = made()
    assert made() == first
    if (folder / what).exists():
        (folder / what).touch()
    else:
        (folder / "history/produced/p0-000000.parquet").unlink()
    assert made() != first


# --- damaged folders ------------------------------------------------------------------------------------------------


def damage(folder: Path, what: str) -> None:
    path = {"part": "history/produced/p0-000000.parquet"}.get(what, what)
    content = (folder / path).read_bytes()
    (folder / path).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("what", ["events.jsonl", "verdict.json", "explained.json", "part"])
def test_what_is_damaged_is_reported_and_the_page_is_made(folder: Path, what: str) -> None:
    damage(folder, what)
    [note] = make_timeline(read_folder(folder)).notes
    assert what.split(".")[0] in note or "p0-000000.parquet" in note
    assert "\n" not in note


def missing(folder: Path) -> Iterable[Path]:
    yield from (folder / "history").rglob("*.parquet")
    yield from (folder / name for name in ("events.jsonl", "verdict.json", "explained.json"))
    yield from folder.rglob("brokers/*/*")


def test_a_page_is_made_of_a_folder_that_has_run_json_alone(folder: Path) -> None:
    for path in missing(folder):
        path.unlink()
    timeline = make_timeline(read_folder(folder))
    assert timeline.notes == ("events.jsonl can't be read: No such file or directory",)
    assert (timeline.faults, timeline.marks, timeline.end) == ([], [], 0.0)


@pytest.mark.parametrize("content", ["", "[]", '{"case": "x"}', '{"case":"x","kip":1,"mode":"zk","started_at":"?"}'])
def test_a_folder_that_does_not_say_what_ran_is_one_line(folder: Path, tmp_path: Path, content: str) -> None:
    (folder / "run.json").write_text(content)
    with pytest.raises(Damaged) as raised:
        read_folder(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)
    assert read_runs_dir(tmp_path).notes == (str(raised.value),)
    done = CliRunner().invoke(report, [str(folder), "--no-allure"])
    assert isinstance(done.exception, HarnessError)


def test_a_folder_with_a_journal_and_no_run_json_is_one_line(folder: Path, tmp_path: Path) -> None:
    other = write_run_folder(tmp_path, "2", case="kip-112/other[zk]", outcome={"verdict": "valid", "reason": ""})
    (folder / "run.json").unlink()
    run = read_runs_dir(tmp_path)
    assert [*run.folders] == [other.name]
    [note] = run.notes
    assert note.startswith(f"{folder} is damaged: ")
    assert make_index(run).answer.verdict == "unknown"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("events.jsonl", '{"kind": "fault.injecting", "at": "2026-01-01T00:00:01+00:00"}\n'),
        ("verdict.json", '{"anomalies": [3]}'),
        ("explained.json", '{"stories": [3]}'),
    ],
)
def test_one_damaged_folder_does_not_hide_others(folder: Path, tmp_path: Path, name: str, content: str) -> None:
    write_run_folder(tmp_path, "2", case="kip-112/other[zk]", outcome={"verdict": "valid", "reason": ""})
    (folder / name).write_text(content)
    done = CliRunner().invoke(report, [str(tmp_path), "--no-allure"], catch_exceptions=False)
    assert done.exit_code == 0
    [line] = done.stderr.splitlines()
    assert line.startswith(f"jbod: {folder} is damaged: no page can be made of it")
    assert [page.name for page in (tmp_path / "report" / "cases").iterdir()] == ["2.html"]
    assert "Kafka broke a guarantee in 1 case of 2" in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("results-1.json", '{"scenarios": [{}]}', "results-1.json is damaged: Object missing required field `id`"),
        ("results-1.json", '{"scenarios": 3}', "results-1.json is damaged: Expected `array`, got `int`"),
        ("results-1.json", '{"scenarios": ["x"]}', "results-1.json is damaged: Expected `object`, got `str`"),
        (
            "2/run.json",
            '{"case":"x","kip":1,"mode":"zk","seed":1,"started_at":"2026-01-01"}',
            "2026-01-01 has no time zone",
        ),
        (
            "2/run.json",
            '{"case":"x","kip":1,"mode":"zk","seed":1,"started_at":"2026-01-01T00:00:00Z","kafka":"4"}',
            "2 is damaged",
        ),
    ],
)
def test_what_is_no_result_is_named_and_hides_no_other(
    folder: Path, tmp_path: Path, name: str, content: str, says: str
) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / name).write_text(content)
    run = read_runs_dir(tmp_path)
    assert [row.run_id for row in run.rows] == [folder.name]
    [note] = run.notes
    assert says in note


def test_a_report_that_cannot_be_written_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(report, [str(folder), "--out", str(tmp_path / "file" / "x"), "--no-allure"])
    assert isinstance(done.exception, HarnessError)
    assert "see --out" in str(done.exception)


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        (None, "node: not on the PATH"),
        ("v18.20.4", "node: v18.20.4 ({node}) is older than 20.19, which Allure needs"),
        ("v20.18.3", "node: v20.18.3 ({node}) is older than 20.19, which Allure needs"),
        ("v20.19.0", "npm: not on the PATH"),
        ("v22.1.0", "npm: not on the PATH"),
    ],
)
def test_without_node_the_lack_is_named_and_the_pages_are_made(
    folder: Path, tmp_path: Path, version: str | None, lacks: str
) -> None:
    node = tmp_path / "bin" / "node"
    node.parent.mkdir()
    if version is not None:
        node.write_text(f"#!/bin/sh\necho {version}\n")
        node.chmod(0o755)
    out = tmp_path / "out"
    out.mkdir()
    (out / "allure.html").write_text("of an earlier report")
    argv = [str(JBOD), "report", str(folder), "--out", str(out)]
    environment = os.environ | {"PATH": str(tmp_path / "bin")}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == EXIT_VALID
    [line] = done.stderr.splitlines()
    says = f"no Allure report: {lacks.format(node=node)}"
    assert line.startswith(f"jbod: {says} (Node.js with npm by NodeSource's packages, ")
    assert says in (out / "index.html").read_text()
    made = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert made == {"index.html", "summary.md", f"cases/{RUN_ID}.html"}


def test_the_node_that_is_asked_for_is_what_the_packages_of_allure_want() -> None:
    """No package of Allure's needs a later version of Node, and some need at least this one."""

    def runs_on(engine: str, version: tuple[int, int]) -> bool:
        wanted = re.findall(r"(>=)?\s*\^?(\d+)(?:\.(\d+))?[\d.x]*", engine)
        return any(
            version >= (int(major), int(minor or 0)) and (later or version[0] == int(major))
            for later, major, minor in wanted
        )

    packages = json.loads((Path(pages.__file__).parent / "assets" / "package-lock.json").read_text())["packages"]
    engines = {each["engines"]["node"] for each in packages.values() if "node" in each.get("engines", {})}
    assert [each for each in engines if not runs_on(each, LEAST_NODE)] == []
    assert ">= 20.19.0" in engines
    assert not runs_on(">= 20.19.0", (LEAST_NODE[0], LEAST_NODE[1] - 1))


def test_what_allure_is_given(folder: Path, tmp_path: Path) -> None:
    run = read_runs_dir(tmp_path)
    write_result(tmp_path, run.rows[0], run.folders[RUN_ID])
    [path] = tmp_path.glob("*-result.json")
    result = json.loads(path.read_text())
    assert (result["status"], result["statusDetails"]["message"]) == ("failed", "1 acked record is in no drain")
    assert {label["name"]: label["value"] for label in result["labels"]}["parentSuite"] == "KIP-112"
    told = [(step["name"], step["status"], len(step["steps"])) for step in result["steps"]]
    assert told == [("boot", "passed", 0), ("load", "passed", 0), ("fault", "failed", 1)]
    assert {"name": "seed", "value": "1", "excluded": True} in result["parameters"]
    given = {each["name"] for each in result["attachments"]}
    assert given == {"run.json", "verdict.json", "explained.json", "events.jsonl", "brokers/2/broker.log"}
    assert all((tmp_path / each["source"]).exists() for each in result["attachments"])
    assert result["links"][0]["url"].startswith("https://cwiki.apache.org/")


def test_every_issue_that_is_named_is_linked(tmp_path: Path) -> None:
    named = ("KAFKA-17198, in KRaft KAFKA-14437", "none found", "KAFKA-17198")
    deviations = [{"issue": issue, "kip": 112, "says": "a", "does": "b"} for issue in named]
    write_run_folder(tmp_path, issue="KAFKA-1", deviations=deviations)
    run = read_runs_dir(tmp_path)
    write_result(tmp_path, run.rows[0], run.folders[RUN_ID])
    [path] = tmp_path.glob("*-result.json")
    links = [each for each in json.loads(path.read_text())["links"] if each["type"] == "issue"]
    assert [each["name"] for each in links] == ["KAFKA-1", "KAFKA-17198", "KAFKA-14437"]
    assert all(each["url"] == f"https://issues.apache.org/jira/browse/{each['name']}" for each in links)


def test_exit_codes(folder: Path, tmp_path: Path) -> None:
    def code(*arguments: object) -> object:
        command = [*map(str, arguments), "--out", str(tmp_path / "out"), "--no-allure"]
        done = CliRunner().invoke(report, command, standalone_mode=False)
        return done.return_value if done.exception is None else type(done.exception)

    (tmp_path / "empty").mkdir()
    assert code(tmp_path) == EXIT_VALID
    assert code(folder) == EXIT_VALID
    assert code(tmp_path / "empty") == EXIT_NOTHING_RAN
    assert code(tmp_path / "nowhere") is UsageError
