"""The pytest plugin: options, fixtures, and what makes a test a scenario with a verdict.

A scenario is a test with the marker ``scenario`` (:func:`suites.scenario.scenario` sets it). It is run once for each
metadata mode that the chosen build has, in a run folder of its own, and comes out as ``valid``, ``invalid``,
``unknown``, ``error`` or ``skipped``; the exit code of the whole follows from these (:mod:`harness.errors`). Tests
without the marker are ordinary tests. ``jbod run`` is a thin layer over this: plain pytest does the same.
"""

from __future__ import annotations

import functools
import json
import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import undo
from harness.builds import BuildOptions, Builds
from harness.cache import cache_dir
from harness.case import Case, CaseId, CaseResult, check_runs_dir, command_line, rerun_command
from harness.cluster import Cluster, boot, prepare_fast_starts
from harness.distribution import spark_kafka_jars
from harness.errors import (
    EXIT_HARNESS,
    EXIT_INCONCLUSIVE,
    EXIT_INVALID,
    EXIT_NOTHING_RAN,
    EXIT_VALID,
    HarnessError,
    JbodError,
    UsageError,
    worst,
)
from harness.host import Ability, abilities
from harness.measure import measure_faults
from harness.outcomes import Happenings, conclude
from harness.pipeline.session import SparkHandle, check_master, end_spark, start_in_background, sweep_scratch
from harness.pipeline.warm import warm_up
from harness.select import Selection, names_of
from harness.spec import ClusterSpec
from harness.versions import Mode
from harness.whole import write_whole
from harness.workload import CaseWorkload

BACKENDS = ("process",)
VERDICT_CODES = {
    "valid": EXIT_VALID,
    "invalid": EXIT_INVALID,
    "unknown": EXIT_INCONCLUSIVE,
    "error": EXIT_HARNESS,
}

_RUN = pytest.StashKey["Run"]()
_CASE = pytest.StashKey[Case]()
_SEEN = pytest.StashKey[Happenings]()


class Run:
    """What all cases of one pytest session share."""

    def __init__(self, config: pytest.Config) -> None:
        get = config.getoption
        check_master(get("--spark-master"))
        self.builds = Builds.choose(
            BuildOptions(
                kafka=get("--kafka"),
                kafka_home=get("--kafka-home"),
                kafka_tarball=get("--kafka-tarball"),
                mode=get("--mode"),
            )
        )
        self.spark_master: str | None = get("--spark-master")
        self.runs_dir = Path(get("--runs-dir"))
        self.keep_cluster: str = get("--keep-cluster")
        self.json_file = Path(get("--json")) if get("--json") else None
        if self.json_file and not self.json_file.absolute().parent.is_dir():
            raise UsageError(f"--json {self.json_file}: there is no folder {self.json_file.absolute().parent}")
        if get("--backend") not in BACKENDS:
            raise UsageError(f"--backend {get('--backend')}: not built yet; there is: {', '.join(BACKENDS)}")
        self.seed: int = random.SystemRandom().randrange(2**31) if get("--seed") is None else get("--seed")
        self.selection = Selection(get("--select"))
        self.results: list[CaseResult] = []
        self.running: Case | None = None
        self.workload: CaseWorkload | None = None
        self.other_codes: list[int] = []
        self.say: Callable[[str], None] = lambda _line: None


def run_of(config: pytest.Config) -> Run:
    """The session's :class:`Run`."""
    return config.stash[_RUN]


# --- options --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """The same names as ``jbod run`` has."""
    group = parser.getgroup("jbod", "Kafka on JBOD under faults")
    group.addoption("--kafka", metavar="VERSION", help="a Kafka release from Maven")
    group.addoption("--kafka-home", metavar="DIR", help="an unpacked Kafka build: bin/ libs/ config/")
    group.addoption("--kafka-tarball", metavar="FILE", help="a Kafka tarball, such as a release candidate")
    group.addoption("--mode", metavar="zk|kraft", help="only this metadata mode")
    group.addoption("--backend", default="process", metavar="process|docker", help="what brokers run in")
    group.addoption("--seed", type=_seed, metavar="N", help="seed of everything that is left to chance")
    group.addoption("--spark-master", metavar="URL", help="a Spark master other than a local one")
    group.addoption("--runs-dir", default="reports/runs", metavar="DIR", help="where run folders go")
    group.addoption(
        "--keep-cluster", default="never", choices=["never", "on-failure", "always"], help="leave the cluster standing"
    )
    group.addoption("--json", metavar="FILE", help="write the results as JSON")
    group.addoption("--select", action="append", default=[], metavar="SELECTOR", help="a KIP, scenario or case id")


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise pytest.UsageError(f"--seed {text}: not a whole number") from None


def pytest_configure(config: pytest.Config) -> None:
    """Check the options against each other before anything is collected."""
    config.addinivalue_line(
        "markers", "scenario(id, kip, plan, spec): a scenario with a verdict; see suites/scenario.py"
    )
    config.addinivalue_line("markers", "cluster: needs real brokers, though it is no scenario")
    try:
        config.stash[_RUN] = Run(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    except JbodError as error:
        pytest.exit(str(error), returncode=error.exit_code)


# --- collection -----------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # so that the mode comes first in the ids
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A scenario is there once for each mode that makes sense for it; which of them run is decided below."""
    marker = metafunc.definition.get_closest_marker("scenario")
    if marker is not None:
        metafunc.parametrize("mode", marker.kwargs["modes"], ids=str)


def case_id(item: pytest.Item) -> str:
    """The id of a scenario's case, such as ``kip-112/leader-at-runtime[kraft-chmod_000]``."""
    marker = item.get_closest_marker("scenario")
    assert marker is not None
    name = item.name
    return str(marker.kwargs["id"]) + (name[name.index("[") :] if "[" in name else "")


def mode_of(item: pytest.Item) -> Mode:
    """The metadata mode of a scenario's case."""
    assert isinstance(item, pytest.Function)
    mode = item.callspec.params["mode"]
    assert isinstance(mode, Mode)
    return mode


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what the selectors name (an unknown one is a usage error) in the modes that this run covers."""
    run = run_of(config)

    def covered(item: pytest.Item) -> bool:
        return not item.get_closest_marker("scenario") or mode_of(item) in run.builds.modes()

    keep = [item for item in items if covered(item)]
    if run.selection:
        scenarios = [item for item in items if item.get_closest_marker("scenario")]
        try:
            keep = run.selection.among(scenarios, lambda item: names_of(case_id(item), item.nodeid), covered)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
    config.hook.pytest_deselected(items=[item for item in items if item not in keep])
    items[:] = keep


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first scenario: clean up after interrupted runs, fetch builds, see that runs can be stored."""
    items = [item for item in session.items if item.get_closest_marker("scenario")]
    if not items or session.config.option.collectonly:
        return
    run = run_of(session.config)
    try:
        undo.clean(run.say)
        sweep_scratch()
        check_runs_dir(run.runs_dir)
        for mode in sorted({mode_of(item) for item in items}):
            prepare_fast_starts(run.builds.of(mode, run.say), mode, run.say)
        spark_kafka_jars(cache_dir(), say=run.say)
    except JbodError as error:
        pytest.exit(str(error), returncode=error.exit_code)


def lacking(item: pytest.Item) -> list[Ability]:
    """What this machine lacks for a case: what everything, the scenario, and the faults among its parameters need."""
    assert isinstance(item, pytest.Function)
    marker = item.get_closest_marker("scenario")
    needs = set(marker.kwargs["needs"] if marker else ()) | {
        name for value in item.callspec.params.values() for name in getattr(value, "needs", ())
    }
    return [each for each in abilities() if (each.required or each.name in needs) and not each.present]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A case that this machine can't run is skipped, with the reason and what would fix it, and counted."""
    if item.get_closest_marker("scenario") and (missing := lacking(item)):
        pytest.skip("; ".join(f"{each.name}: {each.found} ({each.fix})" for each in missing))


# --- fixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mode() -> Mode:
    """The metadata mode of this case; set for each scenario by the plugin."""
    raise UsageError("the fixture 'mode' belongs to scenarios: mark the test with @scenario")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkHandle]:
    """The run's one Spark session, starting in the background."""
    run = run_of(request.config)
    yield start_in_background(run.spark_master, jars=spark_kafka_jars(cache_dir(), say=run.say), then=warm_up)
    end_spark()


@pytest.fixture
def case(request: pytest.FixtureRequest, mode: Mode) -> Case:
    """The running case: its folder and journal. Ended in ``pytest_runtest_makereport``, when all is known."""
    run = run_of(request.config)
    marker = request.node.get_closest_marker("scenario")
    id = CaseId(
        id=case_id(request.node),
        kip=marker.kwargs["kip"],
        plan=marker.kwargs["plan"],
        mode=str(mode),
        seed=run.seed,
        nodeid=request.node.nodeid,
    )
    case = Case.begin(id, run.runs_dir, command_line())
    request.node.stash[_CASE] = run.running = case
    return case


@pytest.fixture
def cluster(request: pytest.FixtureRequest, case: Case, mode: Mode, spark: SparkHandle) -> Iterator[Cluster]:
    """A healthy cluster of the scenario's spec; Spark starts meanwhile."""
    run = run_of(request.config)
    marker = request.node.get_closest_marker("scenario")
    wanted = [getattr(value, "cluster", {}) for value in request.node.callspec.params.values()]
    spec = ClusterSpec(mode=mode, **functools.reduce(operator.or_, wanted, marker.kwargs["spec"]))
    distribution = run.builds.of(mode)
    case.record_cluster(spec, distribution)
    cluster = boot(
        spec,
        distribution,
        run_id=case.run_dir.name,
        record_dir=case.run_dir,
        journal=case.journal,
        outlives=run.keep_cluster != "never",
    )
    yield cluster
    case.enter("teardown")
    failed = bool(request.node.stash[_SEEN].troubles)
    if run.keep_cluster == "always" or (run.keep_cluster == "on-failure" and failed):
        cluster.keep()
        run.say(f"kept: {cluster.bootstrap}, data in {cluster.undo_log.dir}; jbod cluster down {case.run_dir.name}")
    else:
        cluster.stop()


@pytest.fixture
def workload(
    request: pytest.FixtureRequest, case: Case, cluster: Cluster, spark: SparkHandle
) -> Iterator[CaseWorkload]:
    """The PySpark pair for this case."""
    floors = request.node.get_closest_marker("scenario").kwargs["floors"]
    workload = CaseWorkload(case, cluster, spark, floors)
    run_of(request.config).workload = workload
    yield workload
    workload.close()


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Note what each phase saw; when the case is torn down, end it with its one verdict."""
    report: pytest.TestReport = yield
    run = run_of(item.config)
    seen = item.stash.setdefault(_SEEN, Happenings())
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, JbodError):
        report.longrepr = f"{type(error).__name__}: {error}"
    if item.get_closest_marker("scenario") is None:
        if report.failed:
            run.other_codes.append(EXIT_INVALID)
        elif report.when == "call" and report.passed:
            run.other_codes.append(EXIT_VALID)
        return report
    if isinstance(error, pytest.skip.Exception):
        seen.skipped = str(error)
    elif error is not None:
        seen.troubles.append(error)
    elif report.failed:
        seen.troubles.append(HarnessError(str(report.longrepr)))  # say, an xfail(strict) that passed
    seen.called = seen.called or (report.when == "call" and error is None)
    if report.when == "teardown":
        result = _result(item, run, seen)
        run.results.append(result)
        run.running = run.workload = None
        if result.verdict not in ("valid", "skipped") and not seen.troubles:
            report.outcome, report.longrepr = "failed", result.reason
    return report


def _result(item: pytest.Item, run: Run, seen: Happenings) -> CaseResult:
    marker = item.get_closest_marker("scenario")
    assert marker is not None
    mode = mode_of(item)
    case = item.stash.get(_CASE, None)
    faults: list[dict[str, Any]] = []
    if case is not None:
        try:
            faults = measure_faults(case.journal.events, case.run_dir)
        except Exception as error:
            case.journal.write("measure.failed", error=repr(error))
            seen.troubles.append(HarnessError(f"the faults' cost could not be measured: {error!r}"))
    verdict, reason = conclude(seen, case, must_be_judged=marker.kwargs["judged"], test_file=item.path)
    if case is not None:
        case.end(verdict, reason, faults)
    return CaseResult(
        case=case.id
        if case
        else CaseId(
            id=case_id(item),
            kip=marker.kwargs["kip"],
            plan=marker.kwargs["plan"],
            mode=str(mode),
            seed=run.seed,
            nodeid=item.nodeid,
        ),
        kafka=str(run.builds.version(mode)),
        backend="process",
        verdict=verdict,
        reason=reason,
        duration_s=case.duration_s() if case else 0.0,
        run_dir=case.run_dir if case else None,
        phases_s=case.phases_s() if case else {},
        faults=faults,
        rerun=rerun_command(case.run_dir if case else None, item.nodeid),
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the JSON and turn all outcomes into one exit code."""
    if _RUN not in session.config.stash:
        return
    run = run_of(session.config)
    if not session.config.option.collectonly:
        session.exitstatus = _exit_code(session, run, int(exitstatus))
    if run.json_file:
        write_json(run, int(session.exitstatus))


def _exit_code(session: pytest.Session, run: Run, pytests: int) -> int:
    """One code for all: no case may go missing, and nothing that pytest calls failed may come out as a pass."""
    codes = [VERDICT_CODES[result.verdict] for result in run.results if result.verdict != "skipped"] + run.other_codes
    if pytests in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        return pytests
    if pytests == pytest.ExitCode.INTERRUPTED:
        # Ctrl-C, or a suite that can't be read: what was broken before stays broken.
        unreadable = session.testsfailed and not any(codes)
        return worst([*codes, EXIT_HARNESS if unreadable else EXIT_INCONCLUSIVE])
    wanted = sum(item.get_closest_marker("scenario") is not None for item in session.items)
    if session.testsfailed and not any(codes):
        codes.append(EXIT_HARNESS)
    if len(run.results) < wanted and not any(codes):
        codes.append(EXIT_HARNESS)
    return worst(codes)


def write_json(run: Run, exit_code: int) -> None:
    """The results as the contract has them, whole or not at all."""
    assert run.json_file is not None
    totals = {verdict: sum(r.verdict == verdict for r in run.results) for verdict in (*VERDICT_CODES, "skipped")}
    content = {
        "schema": 1,
        "exit_code": exit_code,
        "seed": run.seed,
        "scenarios": [result.to_json() for result in run.results],
        "totals": totals | {"deviations": sum(r.deviation is not None for r in run.results)},
    }
    write_whole(run.json_file, json.dumps(content, indent=2) + "\n")


__all__ = ["EXIT_NOTHING_RAN", "Run", "case_id", "run_of"]
