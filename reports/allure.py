"""The report of Allure 3, in one file that can be mailed, made from the run folders.

The results are written from the run folders and not taken from allure-pytest, because pytest only knows passed and
failed. A run folder has one of five verdicts, phases, faults and their costs, deviations, and the command to run the
case again. It has them even if the run was killed.

Allure 3 runs on Node.js. ``assets/package-lock.json`` pins it, and npm installs it once into jbod's cache. If that
fails, the error says why, and the other pages are made all the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import EnvironmentLacks
from harness.host.abilities import ability
from harness.host.atomic_write import write_atomically
from harness.host.cache import cache_dir, publish
from harness.runner.deviation import NotedDeviation, State
from reports import lanes
from reports.costs import COSTS
from reports.folder import RunFolder
from reports.index import make_index
from reports.rows import Row, RunsRead, newest

_HERE = Path(__file__).parent / "assets"
_TIMEOUT_S = 300
_LOG_TAIL = 256 * 1024
_HISTORY_LIMIT = 20  # reports; each adds 150 KB to the file for 200 cases
_NOT_INSTALLED = "npm could not install Allure (npm config set registry URL, if there is one that can be reached)"
ALLURE = "allure.html"
HISTORY = "allure-history.jsonl"

# Allure's page reports each opening to its makers, without an option against it. A mailed file must work offline.
_CALLS_HOME = re.compile(
    r'<script async src="https://www\.googletagmanager\.com[^>]*></script>\s*<script>.*?</script>', re.DOTALL
)

_STATUS = {"valid": "passed", "invalid": "failed", "unknown": "unknown", "error": "broken", "skipped": "skipped"}

# A case is in the first category that fits. One that deviated and then was cut short is no known deviation.
_CATEGORIES = [
    {"name": "Kafka broke a promise", "matchers": {"statuses": ["failed"]}},
    {"name": "Known deviation", "matchers": {"statuses": ["passed"], "labels": {"tag": "^deviates$"}}},
    {"name": "Undeclared deviation", "matchers": {"statuses": ["passed"], "labels": {"tag": "^undeclared$"}}},
    {"name": "Mended deviation", "matchers": {"statuses": ["passed"], "labels": {"tag": "^mended$"}}},
    {"name": "Inconclusive", "matchers": {"statuses": ["unknown"]}},
    {"name": "Harness or environment", "matchers": {"statuses": ["broken"]}},
    {"name": "Did not run", "matchers": {"statuses": ["skipped"]}},
]

_TAGS: Mapping[State, str] = {"seen": "deviates", "undeclared": "undeclared", "mended": "mended"}

# The others of Allure's charts go by severity, layer, feature, story or environment, which are not used here.
_CHARTS = [
    {"type": "currentStatus", "title": "How the cases came out"},
    {"type": "statusDynamics", "title": "How they came out, from report to report"},
    {"type": "statusTransitions", "title": "What came out differently, from report to report"},
    {"type": "durations", "groupBy": "none", "title": "How long they took"},
    {"type": "durationDynamics", "title": "How long they took, from report to report"},
]


def write_allure(run: RunsRead, out: Path, say: Callable[[str], None]) -> Path:
    """Write ``out``/allure.html. The runs folder keeps the history of earlier reports.

    :param say: called before steps that take long
    :raises EnvironmentLacks: Node.js is missing or too old, npm cannot install Allure, or Allure fails
    """
    program = _program(say)
    work = out / ".allure"
    shutil.rmtree(work, ignore_errors=True)
    results = work / "results"
    results.mkdir(parents=True)
    for newest_run, runs in newest(run.rows):
        for row in runs:
            # Allure shows the last result of a case, so a later skip would hide a broken guarantee.
            if row is newest_run or row.verdict != "skipped":
                write_result(results, row, run.folders.get(row.run_id or ""))
    (results / "environment.properties").write_text(_environment(run))
    history, known = run.runs_dir / HISTORY, work / HISTORY
    known.write_text("".join(_earlier(run, history)))
    options = {
        "singleFile": True,
        "groupBy": ["parentSuite", "suite"],
        "charts": _CHARTS,
        "sections": ["charts"],
        "defaultSortBy": "status,asc",  # the page scrolls to the first case; now it is the worst
    }
    config = {
        # Allure's percentage leaves out inconclusive cases: it may be 100 % where nothing was shown.
        "name": f"jbod: {make_index(run).answer.headline}",
        "output": str(work / "report"),
        "historyPath": str(known),
        "historyLimit": _HISTORY_LIMIT,
        "categories": _CATEGORIES,
        "plugins": {"awesome": {"options": options}},
    }
    (work / "allurerc.json").write_text(json.dumps(config))
    _call([*program, "generate", "--config", str(work / "allurerc.json"), str(results)], work, "Allure failed")
    made = sorted((work / "report").rglob("index.html"), key=lambda path: -path.stat().st_size)
    if not made:
        raise EnvironmentLacks(f"Allure wrote no report; its input is in {work}")
    page = made[0].read_text(encoding="utf-8")
    write_atomically(out / ALLURE, _CALLS_HOME.sub("", page))
    write_atomically(history, known.read_text(encoding="utf-8"))
    shutil.rmtree(work, ignore_errors=True)
    return out / ALLURE


def _earlier(run: RunsRead, history: Path) -> list[str]:
    """The lines of earlier reports. Without new runs, this report replaces the last one."""
    if not history.exists():
        return []
    lines = history.read_text(encoding="utf-8").splitlines(keepends=True)
    known = datetime.fromtimestamp(history.stat().st_mtime, UTC)
    news = any(datetime.fromisoformat(row.began) > known for row in run.rows if row.began)
    return lines if news else lines[:-1]


def _program(say: Callable[[str], None]) -> list[str]:
    able, node, npm = ability("node"), shutil.which("node"), shutil.which("npm")
    if not able.present or node is None:
        raise EnvironmentLacks(f"no Allure report: {able}")
    if npm is None:
        raise EnvironmentLacks(f"no Allure report: npm: not on the PATH ({able.fix})")
    lock = (_HERE / "package-lock.json").read_bytes()

    def install(folder: Path) -> None:
        say("installing Allure with npm, once")
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(_HERE / name, folder / name)
        _call([npm, "ci", "--json", "--no-audit", "--no-fund", "--ignore-scripts"], folder, _NOT_INSTALLED)

    target = cache_dir() / f"allure-{hashlib.sha256(lock).hexdigest()[:12]}"
    entry = publish(target, install) / "node_modules" / "allure" / "cli.js"
    return [node, str(entry)]


def _call(argv: list[str], cwd: Path, failure: str) -> None:
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentLacks(f"no Allure report: {failure}: {error}") from error
    if done.returncode:
        raise EnvironmentLacks(f"no Allure report: {failure} (exit code {done.returncode}): {_complaint(done)[:300]}")


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The error message of a program, in one line. npm's last line only names its log, so it prints JSON."""
    try:
        output = str(json.loads(done.stdout)["error"]["summary"])
    except (ValueError, KeyError, TypeError):
        output = done.stderr.strip() or done.stdout.strip()
    return (output.splitlines() or ["no output"])[-1]


# --- results --------------------------------------------------------------------------------------------------------


def write_result(results: Path, row: Row, folder: RunFolder | None) -> None:
    """Write Allure's result of one run of a case, with its attachments."""
    name = hashlib.sha256((row.run_id or f"{row.id} {row.kafka} {row.began}").encode()).hexdigest()[:32]
    began = int(datetime.fromisoformat(row.began).timestamp() * 1000) if row.began else 0
    result = {
        "uuid": name,
        "historyId": hashlib.sha256(f"{row.id} {row.kafka} {row.backend}".encode()).hexdigest(),
        "testCaseId": row.id,
        "fullName": row.id,
        "name": row.id,
        "status": _STATUS[row.standing],
        "statusDetails": {"message": _message(row), "known": bool(row.deviations_in("seen"))},
        "stage": "finished",
        "start": began,
        "stop": began + int(row.duration_s * 1000),
        "description": _description(row),
        "labels": [
            {"name": "parentSuite", "value": f"KIP-{row.kip}"},
            {"name": "suite", "value": row.plan or row.scenario},
            {"name": "subSuite", "value": row.scenario},
            {"name": "tag", "value": row.mode},
            {"name": "tag", "value": f"Kafka {row.kafka}"},
            *({"name": "tag", "value": tag} for state, tag in _TAGS.items() if row.deviations_in(state)),
        ],
        "parameters": [
            {"name": "metadata mode", "value": row.mode},
            {"name": "Kafka", "value": row.kafka},
            {"name": "backend", "value": row.backend},
            *([{"name": "seed", "value": str(row.seed), "excluded": True}] if row.seed is not None else []),
            # Excluded from the identity of the test, because the broker that a fault hits is random.
            *({"name": "fault", "value": f"{f.name} on {f.target}", "excluded": True} for f in row.faults),
        ],
        "links": list(_links(row)),
        "steps": list(_steps(folder, began, _STATUS[row.standing])) if folder else [],
        "attachments": list(_attachments(results, name, row, folder)) if folder else [],
    }
    (results / f"{name}-result.json").write_text(json.dumps(result))


def _message(row: Row) -> str:
    """The text by which its category groups it: the deviations, if there are any, and else the reason."""
    for state in _TAGS if row.standing == "valid" else ():
        if deviations := row.deviations_in(state):
            return "; ".join(map(_deviates, deviations))
    return row.says


def _deviates(deviation: NotedDeviation) -> str:
    says = f"KIP-{deviation.kip} says “{deviation.promised}”"
    if deviation.state == "mended":
        return f"{says}, and this build keeps the promise; earlier builds: {deviation.actual}"
    return f"{says}, this build: {deviation.actual}"


def _description(row: Row) -> str:
    lines = [f"**{row.verdict}**: {row.says}", "", f"To run it again: `{row.rerun}`"]
    if row.is_crowded:
        lines += ["", f"Its times were measured on a crowded machine: {row.crowding}"]
    for fault in row.faults:
        figures = {words: fault.figure(key) for key, (words, _) in COSTS.items()}
        costs = ", ".join(f"{words} {figure} s" for words, figure in figures.items() if figure is not None)
        lines += ["", f"{fault.name} on {fault.target}: {costs or 'not proven'}"]
    for each in row.deviations:
        lines += ["", f"Deviation, {each.state}: {_deviates(each)}"]
    return "\n".join(lines)


def _links(row: Row) -> Iterator[Mapping[str, str]]:
    if row.kip_link:
        yield {"name": f"KIP-{row.kip}", "url": row.kip_link, "type": "link"}
    named = " ".join(str(issue) for issue in (row.issue, *(each.issue for each in row.deviations)))
    for issue in dict.fromkeys(re.findall(r"KAFKA-\d+", named)):
        yield {"name": issue, "url": f"https://issues.apache.org/jira/browse/{issue}", "type": "issue"}


def _steps(folder: RunFolder, began: int, status: str) -> Iterator[Mapping[str, object]]:
    """The phases, each with the faults that began in it. The last one before the teardown has the case's status."""

    def step(span: lanes.Span, status: str) -> dict[str, object]:
        start, stop = (began + int(seconds * 1000) for seconds in (span.start, span.end))
        return {"name": span.text, "status": status, "stage": "finished", "start": start, "stop": stop}

    faults, phases = lanes.faults(folder), lanes.phases(folder).spans
    last = next((span for span in reversed(phases) if span.text != "teardown"), None)
    for phase in phases:
        inside = [
            step(fault, "broken" if "unproven" in fault.look else "passed") | {"statusDetails": {"message": fault.says}}
            for fault in faults
            if phase.start <= fault.start < phase.end
        ]
        yield step(phase, status if phase is last else "passed") | {"steps": inside}


def _attachments(results: Path, name: str, row: Row, folder: RunFolder) -> Iterator[Mapping[str, str]]:
    """run.json and verdict.json; if the case is not valid, also its journal, stories and the ends of its logs."""
    wanted = [folder.path / "run.json", folder.path / "verdict.json"]
    if row.verdict not in ("valid", "skipped"):
        wanted += [folder.path / "explained.json", folder.path / "events.jsonl"]
        wanted += sorted(folder.path.glob("brokers/*/broker.log"))
    for number, path in enumerate(path for path in wanted if path.exists()):
        source = f"{name}-{number}-attachment{'.json' if path.suffix == '.json' else '.txt'}"
        (results / source).write_bytes(path.read_bytes()[-_LOG_TAIL:])
        kind = "application/json" if path.suffix == ".json" else "text/plain"
        yield {"name": str(path.relative_to(folder.path)), "source": source, "type": kind}


def _environment(run: RunsRead) -> str:
    hosts = [folder.run.host for folder in run.folders.values()]
    facts = {"Kafka": {f"{row.kafka} {row.mode}" for row in run.rows}, "backend": {row.backend for row in run.rows}}
    for key in dict.fromkeys(key for host in hosts for key in host):
        facts[f"host {key}"] = {str(host[key]) for host in hosts if key in host}
    return "".join(f"{key.replace(' ', '.')}={', '.join(sorted(values))}\n" for key, values in facts.items())
