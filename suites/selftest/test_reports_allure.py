"""Allure's own program makes a report in one file, which a browser shows without a network."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.host.abilities import ability
from harness.waiting import await_until
from reports.allure import ALLURE, HISTORY
from reports.command import report
from suites.selftest.browser import LACKING, Browser, browser
from suites.selftest.run_folders import RUN_ID, START, at, write_run_folder

pytestmark = pytest.mark.skipif(
    not (ability("node").present and shutil.which("npm")), reason=f"{ability('node')}, and npm"
)

DISCARD = 9  # no program listens at this port
PLAN = "2) Log directory failure on leader during runtime"
DEVIATION = {"kip": 1066, "says": "no replica there", "does": "puts one there", "issue": "KAFKA-20832", "builds": ""}
MENDED, UNDECLARED = (DEVIATION | {"state": state} for state in ("mended", "undeclared"))
HOST = {"cores": 2, "kernel": "6.1"}
CASES: Mapping[str, Mapping[str, Any]] = {
    "kip-112/broken[kraft]": {"kip": 112, "verdict": "invalid", "issue": "KAFKA-15490", "host": HOST},
    "kip-112/held[kraft]": {"kip": 112, "verdict": "valid", "plan": "1) at startup"},
    "kip-112/fell-over[kraft]": {"kip": 112, "verdict": "error"},
    "kip-112/killed[kraft]": {"kip": 112, "verdict": None},
    "kip-1066/deviates[kraft]": {"kip": 1066, "verdict": "valid", "plan": "cordoned", "deviations": [DEVIATION]},
    "kip-1066/newer[kraft]": {"kip": 1066, "verdict": "valid", "plan": "cordoned", "deviations": [MENDED]},
    "kip-1066/apart[kraft]": {"kip": 1066, "verdict": "valid", "plan": "cordoned", "deviations": [UNDECLARED]},
    "kip-1066/cut-short[kraft]": {"kip": 1066, "verdict": "unknown", "plan": "cordoned", "deviations": [DEVIATION]},
    "kip-1066/unknown[kraft]": {"kip": 1066, "verdict": "unknown", "plan": "cordoned"},
}
SKIPPED = "kip-113/needs-root[kraft]"


class AllurePage:
    """Allure's report of a night, as one file."""

    def __init__(self, html: str) -> None:
        self.html = html

    @cached_property
    def data(self) -> Mapping[str, bytes]:
        """The files inside it, by the names that they would have on a server."""
        return {name: base64.b64decode(text) for name, text in re.findall(r'\bd\("([^"]+)","([^"]*)"\)', self.html)}

    def widget(self, name: str) -> Any:
        """A file that all pages share, parsed."""
        return json.loads(self.data[f"widgets/{name}.json"])

    def result(self, case: str) -> Mapping[str, Any]:
        """The newest run of a case."""
        results = [json.loads(content) for name, content in self.data.items() if name.startswith("data/test-results/")]
        return max((each for each in results if each["name"] == case), key=lambda each: int(each["start"]))


def lay_down(runs_dir: Path, day: str, changes: Mapping[str, str]) -> None:
    """Write a night's run folders.

    :param changes: verdicts of cases that differ from the usual ones
    """
    for number, (case, facts) in enumerate(CASES.items()):
        verdict = changes.get(case, facts["verdict"])
        reason = "" if verdict == "valid" else f"because of {case}"
        outcome = {"verdict": verdict, "reason": reason} if verdict else None
        facts = {key: value for key, value in facts.items() if key != "verdict"}
        name = RUN_ID if case == "kip-112/broken[kraft]" else str(number)
        folder = write_run_folder(runs_dir, f"{day}-{name}", case=case, outcome=outcome, **facts)
        for path in folder.glob("*.json*"):
            path.write_text(path.read_text().replace(f"{START:%Y-%m-%d}", day))


def make(runs_dir: Path, out: Path) -> AllurePage:
    """Run ``jbod report``; skip the test if npm cannot fetch Allure."""
    done = CliRunner().invoke(report, [str(runs_dir), "--out", str(out)], catch_exceptions=False)
    if "npm could not install" in done.stderr:
        pytest.skip(done.stderr)
    assert done.exit_code == 0
    return AllurePage((out / ALLURE).read_text())


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folders of one night."""
    runs_dir = tmp_path_factory.mktemp("allure") / "runs"
    lay_down(runs_dir, "2026-01-01", {})
    facts = {"kip": 113, "plan": "moved", "mode": "kraft", "kafka": "4.3.1", "backend": "process", "run_dir": None}
    skipped = facts | {"id": SKIPPED, "verdict": "skipped", "reason": "no root", "rerun": "pytest x"}
    content = {"started_at": START.isoformat(), "scenarios": [skipped]}
    (runs_dir / "results-20260101T000000-aaaaaa.json").write_text(json.dumps(content))
    return runs_dir


@pytest.fixture(scope="module")
def page(runs_dir: Path) -> AllurePage:
    """The report of that night, made twice."""
    make(runs_dir, runs_dir / "report")
    return make(runs_dir, runs_dir / "report")


@pytest.fixture(scope="module")
def second(runs_dir: Path, page: AllurePage) -> AllurePage:
    """The report of that night and the next one, in which two cases have other verdicts."""
    earlier = at(3600).timestamp()
    os.utime(runs_dir / HISTORY, (earlier, earlier))  # the first report seems to be made between the nights
    lay_down(runs_dir, "2026-01-02", {"kip-112/broken[kraft]": "valid", "kip-112/held[kraft]": "invalid"})
    return make(runs_dir, runs_dir / "second")


# --- the file -------------------------------------------------------------------------------------------------------


def test_it_is_one_file_that_loads_nothing(runs_dir: Path, page: AllurePage) -> None:
    assert sorted(path.name for path in (runs_dir / "report").iterdir()) == [
        ALLURE,
        "cases",
        "index.html",
        "summary.md",
    ]
    loaded = re.findall(
        r"""<(?:script|link|img|iframe|object|embed)\s[^>]*?\s(?:src|href|data)=["']?(.{5})""", page.html
    )
    assert loaded
    assert {*loaded} == {"data:"}
    assert not re.findall(r"""(?:@import\s+|url\()["']?(?:https?:)?//""", page.html)
    assert "KAFKA-15490" not in page.html  # the text is only in the encoded data, which the other tests read


def test_suites_are_kips_and_plan_items(page: AllurePage) -> None:
    tree = page.widget("tree")
    kips = [tree["groupsById"][each] for each in tree["root"]["groups"]]
    told = {
        (kip["name"], plan["name"]): {tree["leavesById"][leaf]["name"] for leaf in plan["leaves"]}
        for kip in kips
        for plan in (tree["groupsById"][each] for each in kip["groups"])
    }
    assert told == {
        ("KIP-112", "1) at startup"): {"kip-112/held[kraft]"},
        ("KIP-112", PLAN): {"kip-112/broken[kraft]", "kip-112/fell-over[kraft]", "kip-112/killed[kraft]"},
        ("KIP-113", "moved"): {SKIPPED},
        ("KIP-1066", "cordoned"): {case for case in CASES if case.startswith("kip-1066/")},
    }


def test_each_case_is_in_its_category(page: AllurePage) -> None:
    nodes = page.widget("categories")["nodes"]

    def below(node: Mapping[str, Any]) -> set[str]:
        children = node.get("childrenIds", ())
        return set().union(*(below(nodes[each]) for each in children)) if children else {node["name"]}

    assert {node["name"]: below(node) for node in nodes.values() if node["type"] == "category"} == {
        "Kafka broke a promise": {"kip-112/broken[kraft]"},
        "Known deviation": {"kip-1066/deviates[kraft]"},
        "Undeclared deviation": {"kip-1066/apart[kraft]"},
        "Mended deviation": {"kip-1066/newer[kraft]"},
        "Inconclusive": {"kip-1066/cut-short[kraft]", "kip-1066/unknown[kraft]"},
        "Harness or environment": {"kip-112/fell-over[kraft]", "kip-112/killed[kraft]"},
        "Did not run": {SKIPPED},
    }
    grouped_by = {node["name"] for node in nodes.values() if node["type"] == "message"}
    says = "KIP-1066 says “no replica there”"
    assert {
        f"{says}, this build: puts one there",
        f"{says}, and this build keeps the promise; earlier builds: puts one there",
    } <= (grouped_by)


def test_the_answer_and_the_environment_are_on_top(page: AllurePage) -> None:
    """jbod's answer is shown, since Allure's percentage ignores inconclusive cases."""
    assert "<title> jbod: Kafka broke a guarantee in 1 case of 9 </title>" in page.html
    told = {each["name"]: each["values"] for each in page.widget("allure_environment")}
    assert told == {"Kafka": ["4.3.1 kraft"], "backend": ["process"], "host.cores": ["2"], "host.kernel": ["6.1"]}


def test_a_case_has_its_steps_parameters_faults_logs_and_links(runs_dir: Path, page: AllurePage) -> None:
    told = page.result("kip-112/broken[kraft]")
    assert (told["status"], told["error"]["message"]) == ("failed", "because of kip-112/broken[kraft]")
    steps = [each for each in told["steps"] if each["type"] == "step"]
    assert [(step["name"], step["status"]) for step in steps] == [
        ("boot", "passed"),
        ("load", "passed"),
        ("fault", "failed"),
    ]
    [fault] = steps[-1]["steps"]
    assert (fault["name"], "Permission denied" in fault["message"]) == (
        "chmod_000 on broker-2-log-dir-1 of broker 2",
        True,
    )
    assert {each["name"]: each["value"] for each in told["parameters"]} == {
        "metadata mode": "kraft",
        "Kafka": "4.3.1",
        "backend": "process",
        "seed": "1",
        "fault": "chmod_000 on broker-2-log-dir-1 of broker 2",
    }
    assert "no ack 2.0 s" in told["descriptionHtml"]
    assert {each["name"]: each["url"].partition("/KIP-112")[0] for each in told["links"]} == {
        "KIP-112": "https://cwiki.apache.org/confluence/display/KAFKA",
        "KAFKA-15490": "https://issues.apache.org/jira/browse/KAFKA-15490",
    }
    [deviates] = [each for each in page.result("kip-1066/deviates[kraft]")["links"] if each["type"] == "issue"]
    assert deviates["name"] == "KAFKA-20832"
    # Attachments are in the file, byte for byte.
    folder = runs_dir / f"2026-01-01-{RUN_ID}"
    links = [each["link"] for each in told["attachments"]]
    assert {each["name"]: page.data[f"data/attachments/{each['id']}{each['ext']}"] for each in links} == {
        name: (folder / name).read_bytes()
        for name in ("run.json", "verdict.json", "explained.json", "events.jsonl", "brokers/2/broker.log")
    }


def test_the_second_night_knows_the_first(runs_dir: Path, page: AllurePage, second: AllurePage) -> None:
    def dynamics(of: AllurePage) -> list[Mapping[str, int]]:
        charts = of.widget("charts")["general"].values()
        [points] = [chart["data"] for chart in charts if chart["type"] == "statusDynamics"]
        return [point["statistic"] for point in points]

    night = {"total": 10, "failed": 1, "broken": 2, "passed": 4, "skipped": 1, "unknown": 2}
    assert dynamics(page) == [night]  # a second report of the same night adds no night
    assert page.result("kip-112/held[kraft]")["history"] == []
    assert dynamics(second) == [night, night]  # one case broke, and another was mended
    for case, then, now in (("held", "passed", "failed"), ("broken", "failed", "passed")):
        told = second.result(f"kip-112/{case}[kraft]")
        assert ([each["status"] for each in told["history"]], told["status"]) == ([then], now)
    stored = [json.loads(line)["testResults"].values() for line in (runs_dir / HISTORY).read_text().splitlines()]
    held = [[case["status"] for case in cases if case["name"] == "kip-112/held[kraft]"] for cases in stored]
    assert held == [["passed"], ["failed"]]


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    if LACKING:
        pytest.skip(LACKING)
    with browser() as window:
        window.cut_off()
        yield window


def test_without_a_network_it_shows_its_cases_and_asks_for_nothing(
    window: Browser, runs_dir: Path, page: AllurePage
) -> None:
    window.resize(1200, 900)
    window.asked_for()  # the page itself
    window.open(runs_dir / "report" / ALLURE)
    shown(window, "Kafka broke a guarantee in 1 case of", "KIP-1066", PLAN, "kip-112/broken[kraft]", "4.3.1 kraft")
    first = window.run("return document.querySelector('[data-testid=tree-leaf]').textContent")
    assert "kip-112/broken[kraft]" in first  # the worst case, beside the answer
    window.run("location.hash = 'categories'")
    shown(window, "Kafka broke a promise", "Known deviation", "Inconclusive", "Harness or environment")
    window.run(f"location.hash = '{page.result('kip-112/broken[kraft]')['id']}'")
    shown(window, "because of kip-112/broken[kraft]", "chmod_000 on broker-2-log-dir-1", "KAFKA-15490", "broker.log")
    window.run("location.hash = 'charts'")
    shown(window, "How they came out, from report to report")
    assert {address.partition(":")[0] for address in window.asked_for()} == {"file", "data"}
    assert window.complaints() == []


def shown(window: Browser, *texts: str) -> None:
    """Wait until Allure's script has drawn the page, which is after it has loaded."""
    await_until(
        lambda: str(window.run("return document.body.innerText")),
        until=lambda text: all(each in text for each in texts),
        timeout_s=60,
        what=f"{texts} on the page",
    )


# --- failures -------------------------------------------------------------------------------------------------------


def test_without_a_registry_the_lack_is_named_and_the_pages_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run_folder(tmp_path)
    monkeypatch.setenv("JBOD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{DISCARD}/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    done = CliRunner().invoke(report, [str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    [_, line] = done.stderr.splitlines()
    assert line.startswith("jbod: no Allure report: npm could not install Allure (npm config set registry URL, ")
    assert "ECONNREFUSED" in line
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["cases", "index.html", "summary.md"]
    assert "ECONNREFUSED" in (tmp_path / "report" / "index.html").read_text()
