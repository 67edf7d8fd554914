"""The pytest plugin: options, fixtures, and what makes a test a scenario with a verdict.

A scenario is a test with the marker ``scenario`` (:func:`suites.scenario.scenario` sets it). It is run once for each
metadata mode that the chosen build has, in a run folder of its own, and comes out as ``valid``, ``invalid``,
``unknown``, ``error`` or ``skipped``; the exit code of the whole follows from these (:mod:`harness.errors`). Tests
without the marker are ordinary tests. ``jbod run`` is a thin layer over this: plain pytest does the same.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.case import Case, CaseId, CaseResult, Outcome, check_json_file, check_runs_dir, rerun_command
from harness.cluster import Cluster, boot
from harness.deviation import Deviation
from harness.errors import HarnessError, JbodError, UsageError
from harness.fast_starts import prepare_fast_starts
from harness.handing_on import Standing
from harness.machine import undo
from harness.machine.cache import cache_dir
from harness.machine.host import Ability, abilities
from harness.nodes.backends import backend_kind
from harness.pipeline.session import SparkHandle, check_master, end_spark, start_in_background
from harness.pipeline.warm import warm_up
from harness.releases.builds import BuildOptions, Builds
from harness.releases.distribution import jolokia_agent, spark_kafka_jars
from harness.releases.versions import Mode
from harness.runs.errors_logged import errors_logged
from harness.runs.measure import measure_faults
from harness.runs.outcomes import Happenings, conclude
from harness.runs.pausing import MOMENTS, Pause
from harness.runs.results import Results
from harness.runs.select import Selection, names_of
from harness.runs.subrun import arguments_of
from harness.runs.turns import together
from harness.spec import ClusterSpec
from harness.workload import CaseWorkload

_RUN = pytest.StashKey["Run"]()
_CASE = pytest.StashKey[Case]()
_SEEN = pytest.StashKey[Happenings]()


class Run:
    """What all cases of one pytest session share."""

    def __init__(self, config: pytest.Config) -> None:
        get = config.getoption
        told: dict[str, Any] = getattr(config, "workerinput", {})
        check_master(get("--spark-master"))
        build = BuildOptions(
            kafka=get("--kafka"),
            kafka_home=get("--kafka-home"),
            kafka_tarball=get("--kafka-tarball"),
            mode=get("--mode"),
        )
        self.builds = Builds.choose(build)
        self.spark_master: str | None = get("--spark-master")
        self.runs_dir = Path(get("--runs-dir"))
        self.keep_cluster: str = get("--keep-cluster")
        self.json_file = Path(get("--json")) if get("--json") else None
        check_json_file(self.json_file)
        self.backend: str = get("--backend")
        self.lacks = backend_kind(self.backend).lacks
        seed: int | None = told.get("seed", get("--seed"))
        self.seed = random.SystemRandom().randrange(2**31) if seed is None else seed
        self.again = arguments_of({**vars(build), "backend": self.backend, "seed": self.seed})
        self.argv: list[str] = told.get("mainargv", sys.argv)
        self.selection = Selection(get("--select"))
        self.stop_at = None if (seconds := get("--stop-after")) is None else time.monotonic() + seconds
        self.pause = Pause(moment) if (moment := get("--pause-at")) else None
        argv = [Path(self.argv[0]).name, *self.argv[1:]]
        self.results = Results(self.seed, self.json_file, self.runs_dir, argv, lambda line: self.say(line))
        self.shared_clusters: bool = get("--clusters") == "shared"
        self.standing = Standing(lambda line: self.say(line))
        self.running: Case | None = None
        self.workload: CaseWorkload | None = None
        self.say: Callable[[str], None] = lambda _line: None

    def is_over(self) -> bool:
        """No case may begin any more."""
        return self.stop_at is not None and time.monotonic() > self.stop_at


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
    group.addoption("--clusters", default="shared", choices=["shared", "own"], help="serve several cases, or one each")
    group.addoption("--json", metavar="FILE", help="write the results as JSON")
    group.addoption("--pause-at", choices=[*MOMENTS], help="wait there for Enter, to look")
    group.addoption("--stop-after", type=float, metavar="SECONDS", help="begin no case later than that")
    group.addoption("--schedules", type=int, default=1, metavar="N", help="how many random schedules a mode")
    group.addoption("--schedule", action="append", default=[], metavar="FILE", help="play this instead")
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
        run = config.stash[_RUN] = Run(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    except JbodError as error:
        pytest.exit(str(error), returncode=error.exit_code)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(run.results)


def distributes(config: pytest.Config) -> bool:
    """Whether cases run in workers, and this process only hands them out (pytest-xdist)."""
    return bool(config.getoption("numprocesses", None))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What a worker can't find out for itself; the controller's command line is brought by xdist."""
    node.workerinput["seed"] = run_of(node.config).seed


# --- collection -----------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # so that the mode comes first in the ids
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A scenario is there once for each mode that makes sense for it; which of them run is decided below."""
    marker = metafunc.definition.get_closest_marker("scenario")
    if marker is not None:
        metafunc.parametrize("mode", marker.kwargs["modes"], ids=str)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """What a suite finds wrong with the options while it is collected is said in one line, as everywhere."""
    report: Any = yield
    error = report.call.excinfo.value if report.failed and report.call.excinfo else None
    if isinstance(error, JbodError):
        pytest.exit(str(error), returncode=error.exit_code)
    return report


def case_id(item: pytest.Item) -> str:
    """The id of a scenario's case, such as ``kip-112/leader-at-runtime[kraft-chmod_000]``."""
    marker = item.get_closest_marker("scenario")
    assert marker is not None
    name = item.name
    return str(marker.kwargs["id"]) + (name[name.index("[") :] if "[" in name else "")


def _identity(item: pytest.Item, run: Run) -> CaseId:
    marker = item.get_closest_marker("scenario")
    assert marker is not None
    return CaseId(
        id=case_id(item),
        kip=marker.kwargs["kip"],
        plan=marker.kwargs["plan"],
        issue=marker.kwargs["issue"],
        mode=str(mode_of(item)),
        seed=run.seed,
        nodeid=item.nodeid,
    )


def mode_of(item: pytest.Item) -> Mode:
    """The metadata mode of a scenario's case."""
    assert isinstance(item, pytest.Function)
    mode = item.callspec.params["mode"]
    assert isinstance(mode, Mode)
    return mode


def spec_of(item: pytest.Item) -> ClusterSpec:
    """The cluster that a scenario's case is given: the scenario's, with what the faults among its parameters need."""
    assert isinstance(item, pytest.Function)
    marker, mode = item.get_closest_marker("scenario"), mode_of(item)
    assert marker is not None
    wanted = [getattr(value, "cluster", {}) for value in item.callspec.params.values()]
    settings = functools.reduce(operator.or_, wanted, marker.kwargs["spec"][mode])
    return ClusterSpec(mode=mode, backend=run_of(item.config).backend, **settings)


def shared_spec_of(item: pytest.Item) -> ClusterSpec | None:
    """The cluster that a case wants and may have from others before it; None where it must have its own."""
    marker = item.get_closest_marker("scenario")
    if marker is None or marker.kwargs["fresh"] or not run_of(item.config).shared_clusters:
        return None
    return spec_of(item)


def spoils(item: pytest.Item) -> bool:
    """Whether a case shows what keeps its cluster from serving another, on some build in its mode."""
    marker = item.get_closest_marker("scenario")
    return marker is not None and any(
        each.lasts and each.always and mode_of(item) in each.modes for each in marker.kwargs["deviations"]
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what the selectors name (an unknown one is a usage error) in the modes that this run covers."""
    run = run_of(config)

    def covered(item: pytest.Item) -> bool:
        return not item.get_closest_marker("scenario") or mode_of(item) in run.builds.modes()

    keep = [item for item in items if covered(item)]
    if run.selection:
        names = {item: names_of(case_id(item), item.nodeid) for item in items if item.get_closest_marker("scenario")}
        try:
            keep = run.selection.among([*names], names.__getitem__, covered)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        if run.stop_at is not None:  # not each may get its turn: what was named first goes first, and modes take turns,
            # though then each brings along those that share its cluster
            turns = {mode: itertools.count() for mode in Mode}
            order = {item: (run.selection.place(names[item]), next(turns[mode_of(item)])) for item in keep}
            keep.sort(key=order.__getitem__)
    if not config.option.collectonly:  # lists are for people
        keep = together([(item, shared_spec_of(item)) for item in keep], spoils)
    config.hook.pytest_deselected(items=[item for item in items if item not in keep])
    items[:] = keep


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first scenario: clean up after interrupted runs, fetch builds, see that runs can be stored."""
    run = run_of(session.config)
    scenarios = [item for item in session.items if item.get_closest_marker("scenario")]
    modes = {mode_of(item) for item in scenarios if not unfit_build(item)}
    if distributes(session.config):
        modes = set(run.builds.modes())  # which of them will be wanted is for the workers to know
    if not modes or session.config.option.collectonly:
        return
    try:
        undo.clean(run.say)
        check_runs_dir(run.runs_dir)
        for mode in sorted(modes):
            prepare_fast_starts(run.builds.of(mode, run.say), mode, run.backend, run.say)
        spark_kafka_jars(cache_dir(), say=run.say)
        jolokia_agent(cache_dir(), say=run.say)
    except JbodError as error:
        pytest.exit(str(error), returncode=error.exit_code)


def unfit_build(item: pytest.Item) -> str | None:
    """Why this run's build can't run a case: it doesn't have what the case checks; None where it has."""
    marker = item.get_closest_marker("scenario")
    assert marker is not None
    version, builds = run_of(item.config).builds.version(mode_of(item)), marker.kwargs["builds"]
    return None if version in builds else f"KIP-{marker.kwargs['kip']} needs Kafka {builds}, and this is {version}"


def lacking(item: pytest.Item) -> list[Ability]:
    """What this machine lacks for a case: what everything, the scenario, and the faults among its parameters need."""
    assert isinstance(item, pytest.Function)
    marker = item.get_closest_marker("scenario")
    needs = set(marker.kwargs["needs"] if marker else ()) | {
        name for value in item.callspec.params.values() for name in getattr(value, "needs", ())
    }
    found = (*run_of(item.config).lacks, *abilities(needs))
    return [each for each in found if (each.required or each.name in needs) and not each.present]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A case that this build or machine can't run, or not in time, is skipped, with the reason, and counted."""
    if not item.get_closest_marker("scenario"):
        return
    if unfit := unfit_build(item):
        pytest.skip(unfit)
    if missing := lacking(item):
        pytest.skip("; ".join(map(str, missing)))
    if run_of(item.config).is_over():
        pytest.skip(f"not begun within the {item.config.getoption('--stop-after'):.0f} s of --stop-after")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What is torn down last, the cluster, may serve the next case."""
    shared = shared_spec_of(nextitem) if nextitem is not None else None
    will_run = nextitem is not None and shared is not None and not unfit_build(nextitem) and not lacking(nextitem)
    run_of(item.config).standing.wanted = shared if will_run else None


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
    case = Case.begin(_identity(request.node, run), run.runs_dir, [Path(run.argv[0]).name, *run.argv[1:]])
    request.node.stash[_CASE] = run.running = case
    return case


@pytest.fixture
def cluster(request: pytest.FixtureRequest, case: Case, mode: Mode, spark: SparkHandle) -> Iterator[Cluster]:
    """A healthy cluster of the scenario's spec; Spark starts meanwhile."""
    run = run_of(request.config)
    spec = spec_of(request.node)
    distribution = run.builds.of(mode)
    case.record_cluster(spec, distribution)
    cluster = run.standing.take(spec, case) or boot(
        spec,
        distribution,
        run_id=case.run_dir.name,
        record_dir=case.run_dir,
        journal=case.journal,
        outlives=run.keep_cluster != "never",
    )
    if run.pause:
        run.pause.cluster = cluster
        case.journal.listener = run.pause
    yield cluster
    case.journal.listener = None
    case.enter("teardown")
    cluster.note_ends()
    verdict, _ = _concluded(request.node)
    failed = run.keep_cluster == "on-failure" and verdict not in ("valid", "skipped")
    if run.keep_cluster == "always" or failed:
        cluster.keep()
        case.kept = cluster.how_to_reach()
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
        return report
    if isinstance(report.longrepr, str) and report.failed:
        report.longrepr += f"\nagain: {_again(item, run)}"
    if isinstance(error, pytest.skip.Exception):
        seen.skipped = str(error)
    elif error is not None or report.failed:
        trouble = error or HarnessError(str(report.longrepr))  # without an error, say, an xfail(strict) that passed
        seen.troubles.append(trouble)
        if (case := item.stash.get(_CASE, None)) is not None:
            case.journal.write("trouble", error=type(trouble).__name__, says=str(trouble)[:2000])
    seen.called = seen.called or (report.when == "call" and error is None)
    if report.when == "teardown":
        result = _result(item, run, seen)
        report.user_properties += [("verdict", result.verdict), ("again", result.rerun)]  # for JUnit
        if result.kept:
            report.sections.append(("cluster kept at teardown", "\n".join(result.kept)))
        # An extra, which xdist brings along; as text, since workers can send none but the plainest types.
        report.case_result = json.dumps(result.to_json())  # type: ignore[attr-defined]
        # pytest keeps its items to the end, and a case's journal is some megabytes.
        run.running = run.workload = None
        del item.stash[_SEEN]
        if _CASE in item.stash:
            del item.stash[_CASE]
        if result.verdict not in ("valid", "skipped") and not seen.troubles:
            report.outcome, report.longrepr = "failed", f"{result.reason}\nagain: {result.rerun}"
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
    verdict, reason = _concluded(item)
    deviations = [deviation.to_json() for deviation in _expected(item) if verdict == "valid"]
    if case is not None:
        try:
            case.end(verdict, reason, faults, deviations, errors_logged(case.journal.events, case.run_dir))
        except OSError as error:
            case.journal.close()
            why = f"the run folder {case.run_dir} can't be written or read: {error}; see --runs-dir"
            reason = f"{why}; besides: {verdict} {reason}".rstrip()
            verdict, deviations = "error", []
    return CaseResult(
        case=case.id if case else _identity(item, run),
        kafka=str(run.builds.version(mode)),
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


def _expected(item: pytest.Item) -> list[Deviation]:
    """What the scenario declares of what this build is known for."""
    marker, mode = item.get_closest_marker("scenario"), mode_of(item)
    assert marker is not None
    version = run_of(item.config).builds.version(mode)
    return [deviation for deviation in marker.kwargs["deviations"] if deviation.is_of(version, mode)]


def _concluded(item: pytest.Item) -> tuple[Outcome, str]:
    """What the case has come to by now, and why."""
    marker = item.get_closest_marker("scenario")
    assert marker is not None
    seen, case = item.stash[_SEEN], item.stash.get(_CASE, None)
    return conclude(seen, case, must_be_judged=marker.kwargs["judged"], test_file=item.path, deviations=_expected(item))


def _again(item: pytest.Item, run: Run) -> str:
    """The one command that runs the case again."""
    if (case := item.stash.get(_CASE, None)) is not None:
        return rerun_command(case.run_dir)
    return shlex.join(["jbod", "run", case_id(item), *run.again])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No cluster stands any more; workers that were ended in the middle of a case leave it to us to clean up."""
    if _RUN in session.config.stash:
        run_of(session.config).standing.stop()
        if distributes(session.config):
            undo.clean(run_of(session.config).say)
