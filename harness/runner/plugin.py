"""The pytest plugin: options, fixtures, and the verdict of each scenario.

A scenario is a test with the marker ``scenario``, which :func:`suites.scenario.scenario` sets. It runs once for each
metadata mode that the chosen build supports, each time with a run folder of its own. Its verdict is ``valid``,
``invalid``, ``unknown``, ``error`` or ``skipped``. The exit code of the run follows from all verdicts
(:mod:`harness.errors`). Tests without the marker are ordinary tests. ``jbod run`` calls pytest with this plugin; plain
pytest behaves the same.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.cluster import Cluster, boot
from harness.cluster.fast_starts import prepare_fast_starts
from harness.cluster.nodes.backends import backend_kind
from harness.errors import EXIT_HARNESS, BuildLacks, HarnessError, JbodError, UsageError
from harness.host import undo
from harness.host.cache import cache_dir
from harness.host.malloc import give_back, keep_no_pages
from harness.kafka.distribution import jolokia_agent, spark_kafka_jars
from harness.kafka.tools_jvm import end_tools
from harness.kafka.versions import Mode
from harness.measure.errors_logged import errors_logged
from harness.measure.fault_costs import FaultCosts, measure_faults
from harness.runner import run_options
from harness.runner.case import Case, CaseResult, Outcome, check_runs_dir, rerun_command
from harness.runner.case_outcome import CaseLog, conclude, deviations_of
from harness.runner.case_workload import CaseWorkload
from harness.runner.run import RUN, Run, run_of
from harness.runner.scenario import DeclaredCase, case_of, scenario_of
from harness.runner.scheduling import together
from harness.runner.standing_cluster import how_to_reach
from harness.spark.session import SparkHandle, end_spark
from harness.workload.warm_up import warm_up

_CASE = pytest.StashKey[Case]()
_CASE_LOG = pytest.StashKey[CaseLog]()


# --- options --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of ``jbod run``."""
    group = parser.getgroup("jbod", "Kafka on JBOD under faults")
    for option in run_options.RUN:
        group.addoption(option.name, metavar=option.metavar, help=option.help, **option.parsing)
    group.addoption("--select", action="append", default=[], metavar="SELECTOR", help="A KIP, scenario or case id.")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything is collected."""
    config.addinivalue_line("markers", "scenario(declared): a scenario with a verdict; see suites/scenario.py")
    config.addinivalue_line("markers", "cluster: needs real brokers, though it is no scenario")
    try:
        run = config.stash[RUN] = Run(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    except JbodError as error:
        pytest.exit(str(error), returncode=error.exit_code)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(run.results)
    keep_no_pages()


def distributes(config: pytest.Config) -> bool:
    """Return whether cases run in pytest-xdist workers, so that this process only distributes them."""
    return bool(config.getoption("numprocesses", None))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the seed and the build's version to a worker. xdist itself passes the controller's command line."""
    run = run_of(node.config)
    node.workerinput.update(seed=run.seed, kafka=run.build.kafka)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report which version ``--kafka latest`` is."""
    return run_of(config).found


# --- collection -----------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # so that the mode comes first in the ids
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each scenario with the metadata modes that it declares."""
    if (scenario := scenario_of(metafunc.definition)) is not None:
        metafunc.parametrize("mode", scenario.modes, ids=str)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Report in one line that the options do not fit a suite, or that a file cannot be imported.

    Without selectors, as in plain pytest, pytest itself reports an import error and shows where it is.
    """
    report: Any = yield
    error = report.call.excinfo.value if report.failed and report.call.excinfo else None
    if isinstance(error, JbodError):
        pytest.exit(str(error), returncode=error.exit_code)
    if isinstance(error, Exception) and run_of(collector.config).selection:
        cause = error.__cause__ or error
        message = f"{type(cause).__name__}: {cause}".partition("\n")[0]
        pytest.exit(f"{collector.path} cannot be imported: {message}; `pytest` with it shows where", EXIT_HARNESS)
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the selected cases, in the modes that this run covers. An unknown selector is a usage error."""
    run = run_of(config)
    cases = {item: case for item in items if (case := case_of(item)) is not None}

    def covered(item: pytest.Item) -> bool:
        return item not in cases or cases[item].mode in run.builds.modes()

    keep = [item for item in items if covered(item)]
    if run.selection:
        names = {item: case.names() for item, case in cases.items()}
        try:
            keep = run.selection.among([*names], names.__getitem__, covered)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        if run.stop_at is not None:
            # Time may run out, so cases run in the order of the selectors, and modes take turns. Cases that share a
            # cluster still run together.
            turns = {mode: itertools.count() for mode in Mode}
            order = {item: (run.selection.place(names[item]), next(turns[cases[item].mode])) for item in keep}
            keep.sort(key=order.__getitem__)
    if not config.option.collectonly:  # a listing keeps the order of the suites
        specs = [(item, run.shared_spec(cases.get(item))) for item in keep]
        keep = together(specs, lambda item: item in cases and cases[item].pollutes_cluster())
    config.hook.pytest_deselected(items=[item for item in items if item not in keep])
    items[:] = keep


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first scenario, clean up after interrupted runs, check the runs folder, and fetch builds."""
    run = run_of(session.config)
    cases = [case for item in session.items if (case := case_of(item)) is not None]
    modes = {case.mode for case in cases if not run.unfit_build(case)}
    if distributes(session.config):
        modes = set(run.builds.modes())  # only the workers know which of them are needed
    if not modes or session.config.option.collectonly:
        return
    try:
        undo.clean(run.say)
        check_runs_dir(run.runs_dir)
        backend_kind(run.backend).check()
        for mode in sorted(modes):
            prepare_fast_starts(run.builds.of(mode, run.say), mode, run.backend, run.say)
        spark_kafka_jars(cache_dir(), say=run.say)
        jolokia_agent(cache_dir(), say=run.say)
    except JbodError as error:
        pytest.exit(str(error), returncode=error.exit_code)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a case, with the reason, if this build or machine cannot run it or if ``--stop-after`` has passed."""
    run, declared = run_of(item.config), case_of(item)
    if declared is None:
        return
    if unfit := run.unfit_build(declared):
        pytest.skip(unfit)
    if missing := run.lacking(declared):
        pytest.skip("; ".join(map(str, missing)))
    if run.is_over():
        pytest.skip(f"not begun within the {item.config.getoption('--stop-after'):.0f} s of --stop-after")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Note the cluster of the next case before this case's cluster is torn down, so that it may be reused."""
    run, following = run_of(item.config), case_of(nextitem) if nextitem is not None else None
    will_run = following is not None and not run.unfit_build(following) and not run.lacking(following)
    run.standing.wanted = run.shared_spec(following) if will_run else None


def _declared(item: pytest.Item) -> DeclaredCase:
    """Return the case of a test that is known to be a scenario."""
    declared = case_of(item)
    assert declared is not None
    return declared


# --- fixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mode() -> Mode:
    """The metadata mode of this case; the plugin sets it for each scenario."""
    raise UsageError("the fixture 'mode' belongs to scenarios: mark the test with @scenario")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkHandle]:
    """The Spark session of the run, which starts in the background."""
    run = run_of(request.config)
    yield SparkHandle(run.spark_master, jars=spark_kafka_jars(cache_dir(), say=run.say), then=warm_up)
    end_spark()
    end_tools()


@pytest.fixture
def case(request: pytest.FixtureRequest, mode: Mode) -> Case:
    """The running case. ``pytest_runtest_makereport`` ends it, because its verdict includes the teardown."""
    run = run_of(request.config)
    case = Case.begin(_declared(request.node).identity(run.seed), run.runs_dir, [Path(run.argv[0]).name, *run.argv[1:]])
    request.node.stash[_CASE] = run.running = case
    return case


@pytest.fixture
def cluster(request: pytest.FixtureRequest, case: Case, mode: Mode, spark: SparkHandle) -> Iterator[Cluster]:
    """A healthy cluster of the scenario's spec. Spark starts at the same time."""
    run = run_of(request.config)
    spec = run.spec(_declared(request.node))
    distribution = run.builds.of(mode)
    case.record_cluster(spec, distribution)
    cluster = run.standing.take(spec, case) or boot(
        spec,
        distribution,
        run_id=case.run_dir.name,
        record_dir=case.run_dir,
        journal=case.journal,
        outlives_harness=run.keep_cluster != "never",
    )
    if run.pause:
        run.pause.how_to_reach = partial(how_to_reach, cluster)
        case.journal.listener = run.pause
    yield cluster
    case.journal.listener = None
    case.enter("teardown")
    cluster.journal_unexpected_ends()
    verdict, _ = _concluded(request.node)
    failed = request.node.stash[_CASE_LOG].came_to_an_end and verdict not in ("valid", "skipped")
    if run.keep_cluster == "always" or (run.keep_cluster == "on-failure" and failed):
        cluster.keep()
        case.kept = how_to_reach(cluster)
        return
    handed_on = False
    try:
        handed_on = verdict == "valid" and run.standing.leave(cluster, case)
    finally:
        if not handed_on:
            cluster.stop()


@pytest.fixture
def workload(
    request: pytest.FixtureRequest, case: Case, cluster: Cluster, spark: SparkHandle
) -> Iterator[CaseWorkload]:
    """The PySpark pair of this case."""
    workload = CaseWorkload(case, cluster, spark, _declared(request.node).scenario.floors)
    run_of(request.config).workload = workload
    yield workload
    workload.close()


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Record the errors of each phase. After the teardown, end the case with one verdict."""
    report: pytest.TestReport = yield
    run = run_of(item.config)
    case_log = item.stash.setdefault(_CASE_LOG, CaseLog())
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, JbodError):
        report.longrepr = f"{type(error).__name__}: {error}"
    if scenario_of(item) is None:
        return report
    if isinstance(report.longrepr, str) and report.failed:
        report.longrepr += f"\nagain: {_again(item, run)}"
    if isinstance(error, pytest.skip.Exception | BuildLacks):
        case_log.skipped = str(error)
        if report.failed:  # BuildLacks: report the case as skipped
            report.outcome, report.longrepr = "skipped", (str(item.path), item.reportinfo()[1] or 0, str(error))
    elif error is not None or report.failed:
        trouble = error or HarnessError(str(report.longrepr))  # a strict xfail that passed has no error
        case_log.troubles.append(trouble)
        if (case := item.stash.get(_CASE, None)) is not None:
            case.journal.write("trouble", error=type(trouble).__name__, says=str(trouble)[:2000])
    case_log.called = case_log.called or (report.when == "call" and error is None)
    if report.when == "teardown":
        result = _result(item, run, case_log)
        report.user_properties += [("verdict", result.verdict), ("again", result.rerun)]  # for JUnit
        if result.kept:
            report.sections.append(("cluster kept at teardown", "\n".join(result.kept)))
        # xdist sends extra attributes of a report to the controller, but only of plain types such as text.
        report.case_result = json.dumps(result.to_json())  # type: ignore[attr-defined]
        # pytest keeps all items until the end, and the journal of a case takes some megabytes.
        run.running = run.workload = None
        del item.stash[_CASE_LOG]
        if _CASE in item.stash:
            del item.stash[_CASE]
        if result.verdict not in ("valid", "skipped") and not case_log.troubles:
            report.outcome, report.longrepr = "failed", f"{result.reason}\nagain: {result.rerun}"
    return report


def pytest_runtest_logfinish() -> None:
    """Return free memory to the operating system after each test."""
    give_back()


def _result(item: pytest.Item, run: Run, case_log: CaseLog) -> CaseResult:
    declared, case = _declared(item), item.stash.get(_CASE, None)
    faults: list[FaultCosts] = []
    if case is not None:
        try:
            faults = measure_faults(case.journal.events, case.run_dir)
        except Exception as error:
            case.journal.write("measure.failed", error=repr(error))
            case_log.troubles.append(HarnessError(f"the faults' cost could not be measured: {error!r}"))
    verdict, reason = _concluded(item)
    deviations = deviations_of(case, run.expected(declared)) if case and verdict == "valid" else []
    if case is not None:
        try:
            case.end(verdict, reason, faults, deviations, errors_logged(case.journal.events, case.run_dir))
        except OSError as error:
            case.journal.close()
            why = f"cannot write or read the run folder {case.run_dir}: {error}; see --runs-dir"
            reason = f"{why}; besides: {verdict} {reason}".rstrip()
            verdict, deviations = "error", []
    return CaseResult(
        case=case.id if case else declared.identity(run.seed),
        kafka=str(run.version(declared)),
        backend=run.backend,
        verdict=verdict,
        reason=reason,
        duration_s=case.duration_s() if case else 0.0,
        run_dir=case.run_dir if case else None,
        phases_s=case.phases_s() if case else {},
        faults=faults,
        rerun=_again(item, run),
        deviations=deviations,
        measured=case.measured if case else {},
        kept=case.kept if case else (),
        served=case.extra.get("served", ()) if case else (),
        sha256=str(case.extra.get("kafka", {}).get("sha256", "")) if case else "",
    )


def _concluded(item: pytest.Item) -> tuple[Outcome, str]:
    """Return the verdict of the case so far, and the reason."""
    run, declared = run_of(item.config), _declared(item)
    return conclude(
        item.stash[_CASE_LOG],
        item.stash.get(_CASE, None),
        must_be_judged=declared.scenario.judged,
        test_file=item.path,
        deviations=run.expected(declared),
    )


def _again(item: pytest.Item, run: Run) -> str:
    """Return the command that runs the case again."""
    if (case := item.stash.get(_CASE, None)) is not None:
        return rerun_command(case.run_dir)
    return shlex.join(["jbod", "run", _declared(item).identity(run.seed).selector, *run.again])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the shared cluster, and undo what workers that were killed during a case left."""
    if RUN in session.config.stash:
        run_of(session.config).standing.stop()
        if distributes(session.config):
            undo.clean(run_of(session.config).say)
