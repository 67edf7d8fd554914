"""The pytest plugin: connects pytest's hooks and fixtures to the runner.

A scenario is a test with the marker ``scenario``, which :func:`suites.scenario.scenario` sets. It runs once for each
metadata mode that the chosen build supports, each time with a run folder of its own. Its verdict is ``valid``,
``invalid``, ``unknown``, ``error`` or ``skipped``. The exit code of the run follows from all verdicts
(:mod:`harness.errors`). Tests without the marker are ordinary tests. ``jbod run`` calls pytest with this plugin; plain
pytest behaves the same.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from harness.cluster.cluster import Cluster
from harness.errors import EXIT_HARNESS, JbodError, UsageError
from harness.host import undo
from harness.host.cache import cache_dir
from harness.host.malloc import give_back, keep_no_pages
from harness.kafka.distribution import Distribution, spark_kafka_jars
from harness.kafka.tools_jvm import end_tools
from harness.kafka.versions import Mode
from harness.runner import run_options
from harness.runner.case import Case
from harness.runner.case_cluster import cluster_of
from harness.runner.case_workload import CaseWorkload
from harness.runner.collecting import chosen
from harness.runner.open_case import OpenCase, forget_case, open_case
from harness.runner.run import RUN, Run, run_of
from harness.runner.scenario import case_of, scenario_of
from harness.spark.session import SparkHandle, end_spark
from harness.workload.warm_up import warm_up

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Report in one line on standard error that a run cannot begin. pytest itself would lose the exit code."""
    try:
        return (yield)
    except pytest.UsageError as error:
        reason = error.__cause__
        if not isinstance(reason, JbodError) or hasattr(config, "workerinput"):  # the controller reports a worker's
            raise
        print(f"jbod: {reason}", file=sys.stderr)
        return reason.exit_code


# --- options --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of ``jbod run``."""
    group = parser.getgroup("jbod", "Kafka on JBOD under faults")
    for option in run_options.RUN:
        metavar = {} if option.is_flag else {"metavar": option.metavar}
        group.addoption(option.name, help=option.help, **metavar, **option.parsing)
    group.addoption("--select", action="append", default=[], metavar="SELECTOR", help="A KIP, scenario or case id.")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything is collected."""
    config.addinivalue_line("markers", "scenario(declared): a scenario with a verdict; see suites/scenario.py")
    try:
        run = config.stash[RUN] = Run(config)
    except JbodError as error:
        raise pytest.UsageError(str(error)) from error
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(run.results)
    keep_no_pages()


def distributes(config: pytest.Config) -> bool:
    """Return whether cases run in pytest-xdist workers, so that this process only distributes them."""
    return bool(config.getoption("numprocesses", None))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Pass what a worker needs of this process. xdist itself passes the command line."""
    run = run_of(node.config)
    node.workerinput.update(seed=run.seed, kafka=run.build.kafka, spark=run.spark_address and str(run.spark_address))


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
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report in one line that the options do not fit a suite, or that a file cannot be imported.

    Without selectors, as in plain pytest, pytest itself reports an import error and shows where it is.
    """
    report = yield
    error = report.call.excinfo.value if report.failed and report.call.excinfo else None
    if isinstance(error, JbodError):
        pytest.exit(str(error), returncode=error.exit_code)
    if isinstance(error, Exception) and run_of(collector.config).selection:
        cause = error.__cause__ or error
        message = f"{type(cause).__name__}: {cause}".partition("\n")[0]
        pytest.exit(f"{collector.path} cannot be imported: {message}; `pytest FILE` shows where", EXIT_HARNESS)
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the selected cases, in the modes that this run covers. An unknown selector is a usage error."""
    try:
        keep = chosen(items, run_of(config), listing=config.option.collectonly)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    config.hook.pytest_deselected(items=[item for item in items if item not in keep])
    items[:] = keep


# --- a run ----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Prepare the machine before the first scenario. A run without a scenario that fits its build needs nothing."""
    run = run_of(session.config)
    cases = run.distributed or [case for item in session.items if (case := case_of(item)) is not None]
    fitting = [case for case in cases if not run.unfit_build(case)]
    modes, judges = {case.mode for case in fitting}, any(case.scenario.judged for case in fitting)
    if distributes(session.config) and run.distributed is None:
        modes, judges = set(run.builds.modes()), True  # only the workers know what is needed
    if not modes or session.config.option.collectonly:
        return
    try:
        run.prepare(
            modes,
            judges=judges,
            holds={case.mode for case in fitting if run.spec(case).holds},
            upgrades={case.mode for case in fitting if case.scenario.upgrades},
        )
    except JbodError as error:
        pytest.exit(str(error), returncode=error.exit_code)
    if judges:
        run.share_spark()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a case, with the reason, if this build or machine cannot run it or if ``--stop-after`` has passed."""
    run, declared = run_of(item.config), case_of(item)
    if declared is None:
        return
    if why := run.why_not(declared):
        pytest.skip(why)
    if run.is_over():
        pytest.skip(f"not begun within the {item.config.getoption('--stop-after'):.0f} s of --stop-after")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each phase ended. After the teardown, end the case with one verdict."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, JbodError):
        report.longrepr = f"{type(error).__name__}: {error}"
    if (case := open_case(item)) is not None:
        case.note(report, error)
        if report.when == "teardown":
            case.end(report)
            forget_case(item)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Note the cluster of the next case before this case's cluster is torn down, so that it may be reused."""
    run, following = run_of(item.config), case_of(nextitem) if nextitem is not None else None
    will_run = following is not None and run.why_not(following) is None
    run.clusters.wanted = run.shared_spec(following) if will_run else None


def pytest_runtest_logfinish() -> None:
    """Return free memory to the operating system after each test."""
    give_back()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the shared cluster and the JVMs of tools, and undo what workers that were killed during a case left."""
    if RUN in session.config.stash:
        run_of(session.config).clusters.stop()
        end_tools()
        if distributes(session.config):
            end_spark()
            undo.clean(run_of(session.config).say)


# --- fixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mode() -> Mode:
    """The metadata mode of this case; the plugin sets it for each scenario."""
    raise UsageError("the fixture 'mode' belongs to scenarios: mark the test with @scenario")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkHandle]:
    """The Spark session of the run, which starts in the background."""
    run = run_of(request.config)
    jars = spark_kafka_jars(cache_dir(), say=run.say)
    yield SparkHandle(run.spark_master, jars=jars, then=warm_up, first=run.shared_session)
    end_spark()


@pytest.fixture
def case(request: pytest.FixtureRequest, mode: Mode) -> Case:
    """The running case."""
    return _open_case(request).begin()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, case: Case) -> Iterator[Cluster]:
    """A healthy cluster of the scenario's spec. Spark starts at the same time if the case needs it."""
    of = _open_case(request)
    if of.declared.scenario.judged:
        request.getfixturevalue("spark")
    with cluster_of(of, case) as cluster:
        yield cluster


@pytest.fixture
def build_under_test(request: pytest.FixtureRequest, cluster: Cluster) -> Distribution:
    """The run's build; the cluster of a scenario that upgrades starts on an earlier one."""
    of = _open_case(request)
    return of.run.build_under_test(of.declared)


@pytest.fixture
def workload(
    request: pytest.FixtureRequest, case: Case, cluster: Cluster, spark: SparkHandle
) -> Iterator[CaseWorkload]:
    """The PySpark pair of this case."""
    of = _open_case(request)
    of.run.workload = workload = CaseWorkload(case, cluster, spark, of.declared.scenario.floors)
    yield workload
    workload.close()


def _open_case(request: pytest.FixtureRequest) -> OpenCase:
    """Return the open case of a test that has the fixture ``mode``, and so is a scenario."""
    case = open_case(request.node)
    assert case is not None
    return case
