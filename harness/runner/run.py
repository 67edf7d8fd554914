"""The state that all cases of one ``jbod run`` share: options, builds, the shared cluster."""

from __future__ import annotations

import atexit
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import pytest

from harness.cluster.fast_starts import prepare_fast_starts
from harness.cluster.nodes.backends import SECURED_LISTENERS, backend_kind
from harness.cluster.profile import FAST, PROFILES
from harness.cluster.spec import ClusterSpec
from harness.errors import EnvironmentLacks, UsageError
from harness.host import undo
from harness.host.abilities import Ability, abilities
from harness.host.cache import cache_dir
from harness.host.scratch import scratch_folder
from harness.kafka.broker_properties import refusals
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.distribution import Distribution, jolokia_agent, spark_kafka_jars
from harness.kafka.points import with_points
from harness.kafka.released import settle
from harness.kafka.security import ListenerSecurity
from harness.kafka.versions import KafkaVersion, Mode, upgraded_from
from harness.runner.at_once import AtOnce
from harness.runner.build_lacks import Lack, read_lacks
from harness.runner.case import Case, check_json_file, check_runs_dir
from harness.runner.case_workload import CaseWorkload
from harness.runner.cluster_reuse import ClusterPool
from harness.runner.deviation import Deviation
from harness.runner.hold_option import HoldOption
from harness.runner.pausing import Pause
from harness.runner.results import Results
from harness.runner.scenario import DeclaredCase
from harness.runner.selection import Selection
from harness.runner.set_option import conflict, options_of, settings_of
from harness.runner.subrun import arguments_of
from harness.spark.session import SessionSource, check_master
from harness.spark.shared import share, shared_session
from harness.workload.spark_archive import prepare_spark_archive

RUN = pytest.StashKey["Run"]()


class Run:
    """The state that all cases of one pytest session share.

    :ivar build: the options that choose its build; ``latest`` is already resolved to a version
    :ivar found: messages from resolving ``latest``
    :ivar profile: the settings that all cases have in common
    :ivar settings: the broker properties of ``--set``
    :ivar listener_security: what protects the listeners of clusters whose scenario does not say it
    :ivar lacks: what the backend cannot do on any machine
    :ivar again: the options that choose the same build, backend, seed and settings again
    :ivar unusual: those of them that change the settings that all suites have in common
    :ivar jobs: how many cases run at once, at the start of the run
    :ivar distributed: the cases that workers run, in the process that distributes them; None if it does not know them
    :ivar running: the case that runs now in this process
    :ivar say: shows one line of progress; set by the console reporter
    """

    def __init__(self, config: pytest.Config) -> None:
        get = config.getoption
        from_controller = getattr(config, "workerinput", {})
        check_master(get("--spark-master"))
        self.found: list[str] = []
        build = self.build = BuildOptions(
            kafka=from_controller["kafka"] if from_controller else settle(get("--kafka"), self.found.append),
            kafka_home=get("--kafka-home"),
            kafka_tarball=get("--kafka-tarball"),
            mode=get("--mode"),
        )
        self.builds = Builds.choose(build)
        self.build_lacks = read_lacks([Path(file) for file in get("--probe")], self.builds)
        self.spark_master: str | None = get("--spark-master")
        self._shared_spark: str | None = from_controller.get("spark")
        self.runs_dir = Path(get("--runs-dir"))
        self.keep_cluster: str = get("--keep-cluster")
        self.json_file = Path(get("--json")) if get("--json") else None
        check_json_file(self.json_file)
        self.backend: str = get("--backend")
        self.lacks = backend_kind(self.backend).lacks
        seed: int | None = from_controller.get("seed", get("--seed"))
        self.seed = random.SystemRandom().randrange(2**31) if seed is None else seed
        self.profile = PROFILES[get("--profile")]
        self.settings = settings_of(get("--set"))
        self.listener_security = ListenerSecurity(get("--listener-security"))
        self.unusual = arguments_of(options_of(self.profile.name, self.settings, self.listener_security))
        self.again = [
            *arguments_of({**vars(build), "backend": self.backend, "seed": self.seed, "hold": (*get("--hold"),)}),
            *self.unusual,
        ]
        self.jobs: int = from_controller.get("workercount", get("numprocesses", None) or 1)
        self.distributed: Sequence[DeclaredCase] | None = None
        program, *arguments = from_controller.get("mainargv", sys.argv)
        self.argv: list[str] = [Path(program).name, *arguments]
        self.selection = Selection(get("--select"))
        self.stop_at = None if (seconds := get("--stop-after")) is None else time.monotonic() + seconds
        self.holds = [HoldOption.parse(text) for text in get("--hold")]
        self.pause = Pause(moment) if (moment := get("--pause-at")) else None
        versions = {str(mode): str(self.builds.version(mode)) for mode in self.builds.modes()}
        on = {"backend": self.backend, "kafka": versions}
        self.results = Results(
            self.seed,
            self.json_file,
            self.runs_dir,
            self.argv,
            lambda line: self.say(line),
            on,
            no_skips=get("--no-skips"),
        )
        self.results.at_once = AtOnce(count=self.jobs)
        self.shared_clusters: bool = get("--clusters") == "shared"
        self.clusters = ClusterPool(lambda line: self.say(line))
        self.running: Case | None = None
        self.workload: CaseWorkload | None = None
        self.say: Callable[[str], None] = lambda _line: None

    def prepare(
        self, modes: Iterable[Mode], *, judges: bool, holds: Iterable[Mode], upgrades: Iterable[Mode] = ()
    ) -> None:
        """Undo what interrupted runs left, check the runs folder and the backend, and fetch what the cases need.

        :param modes: the metadata modes of the cases
        :param judges: whether any case is judged, and so needs Spark
        :param holds: the modes of cases that hold threads
        :param upgrades: the modes of cases that upgrade a cluster to the build
        :raises JbodError: the run cannot begin
        """
        undo.clean(self.say)
        check_runs_dir(self.runs_dir)
        backend_kind(self.backend).check()
        for mode in sorted(modes):
            self._check_settings(self.builds.of(mode, self.say))
        for mode in sorted(modes):
            prepare_fast_starts(self.builds.of(mode, self.say), mode, self.backend, self.say)
        for mode in sorted(upgrades):
            prepare_fast_starts(self.builds.earlier(mode, self.say), mode, self.backend, self.say)
        for mode in sorted(holds):
            with suppress(EnvironmentLacks):  # without a JDK, these cases are skipped
                held = with_points(self.builds.of(mode), mode, self.say)
                prepare_fast_starts(held, mode, self.backend, self.say)
        if judges:
            prepare_spark_archive(spark_kafka_jars(cache_dir(), say=self.say), self.say)
        jolokia_agent(cache_dir(), say=self.say)

    def _check_settings(self, build: Distribution) -> None:
        """Check that a build takes the properties of ``--set``: Kafka only ignores one that it does not know.

        :raises UsageError: it does not
        """
        for key, why in refusals(build, self.settings).items():
            raise UsageError(f"--set {key}={self.settings[key]}: Kafka {build.version} {why}")

    @cached_property
    def spark_address(self) -> Path | None:
        """The file that says how workers connect to one Spark; None if this process has no workers, or does not know
        whether their cases need Spark."""
        if self.distributed is None:
            return None
        folder = scratch_folder("spark")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder / "address.json"

    def share_spark(self) -> None:
        """Start one Spark for the workers of this process, if it has any."""
        if self.spark_address is not None:
            jars = spark_kafka_jars(cache_dir(), say=self.say)
            share(self.spark_master, self.jobs, jars=jars, file=self.spark_address)

    @property
    def shared_session(self) -> SessionSource | None:
        """Return what connects a worker to the Spark of the run; None if this process is no worker."""
        return partial(shared_session, Path(self._shared_spark)) if self._shared_spark else None

    def is_over(self) -> bool:
        """Return whether no further case may begin (``--stop-after``)."""
        return self.stop_at is not None and time.monotonic() > self.stop_at

    def version(self, declared: DeclaredCase) -> KafkaVersion:
        """Return the Kafka version that a case runs on."""
        return self.builds.version(declared.mode)

    def earlier_build(self, declared: DeclaredCase) -> Distribution | None:
        """Return the build from which a case upgrades its cluster; None if it does not."""
        return self.builds.earlier(declared.mode) if declared.scenario.upgrades else None

    def build_under_test(self, declared: DeclaredCase) -> Distribution:
        """Return the run's build, as nodes of a case's cluster can run it: with points if the case holds threads."""
        build = self.builds.of(declared.mode)
        return with_points(build, declared.mode) if self.spec(declared).holds else build

    def spec(self, declared: DeclaredCase) -> ClusterSpec:
        """Return the spec of a case's cluster."""
        spec = replace(declared.spec(self.backend), profile=self.profile, given=self.settings)
        if spec.listener_security is ListenerSecurity.PLAINTEXT:
            spec = replace(spec, listener_security=self.listener_security)
        return replace(spec, holds=True) if self.holds else spec

    def shared_spec(self, declared: DeclaredCase | None) -> ClusterSpec | None:
        """Return the spec of a case's cluster if the cluster may be reused; None if the case needs a new one."""
        if declared is None or declared.scenario.fresh or not self.shared_clusters:
            return None
        spec = self.spec(declared)
        # With slow settings it takes longer to empty a cluster than to start one.
        return None if spec.holds or spec.delay_s else spec

    def expected(self, declared: DeclaredCase) -> list[Deviation]:
        """Return the deviations that a case's scenario declares for its build (:meth:`DeclaredCase.expected`)."""
        return declared.expected(self.version(declared))

    def expected_in_logs(self, declared: DeclaredCase) -> list[Deviation]:
        """Return the deviations that a case's logs may show (:meth:`DeclaredCase.expected_in_logs`)."""
        return declared.expected_in_logs(self.version(declared))

    def unfit_build(self, declared: DeclaredCase) -> str | None:
        """Return why a case does not apply to this run's build; None if it applies."""
        version, scenario = self.version(declared), declared.scenario
        if scenario.upgrades and upgraded_from(version, declared.mode) is None:
            return f"no earlier release is listed from which a cluster is upgraded to Kafka {version}"
        if version in scenario.builds:
            return None
        return f"KIP-{scenario.kip} needs Kafka {scenario.builds}, and this is {version}"

    def unfit_settings(self, declared: DeclaredCase) -> str | None:
        """Return why a case cannot run with ``--profile`` and ``--set``; None if it can."""
        if self.profile is not FAST and not declared.scenario.any_profile:
            return f"the scenario relies on the fast settings, and this is --profile {self.profile.name}"
        spec = self.spec(declared)
        if self.listener_security not in (ListenerSecurity.PLAINTEXT, spec.listener_security):
            return f"the scenario itself needs --listener-security {spec.listener_security}"
        if spec.listener_security is not ListenerSecurity.PLAINTEXT and not self.version(declared).reads_pem:
            return f"--listener-security needs Kafka 2.7 or newer, which reads PEM (KIP-651): {self.version(declared)}"
        return conflict(self.settings, spec.overrides)

    def why_not(self, declared: DeclaredCase) -> str | None:
        """Return why a case cannot run on this build and machine, or with these settings; None if it can."""
        return (
            self.unfit_build(declared)
            or self.unfit_settings(declared)
            or "; ".join(map(str, self.lacking(declared)))
            or None
        )

    def lacking(self, declared: DeclaredCase) -> list[Ability | Lack]:
        """Return what this machine and this build lack for a case."""
        return [*self.unable(declared), *self.missing_in_build(declared)]

    def missing_in_build(self, declared: DeclaredCase) -> list[Lack]:
        """Return what this case needs and ``jbod probe`` found missing in the build."""
        return [lack for lack in self.build_lacks if lack.stops(declared.id, str(declared.mode))]

    def unable(self, declared: DeclaredCase) -> list[Ability]:
        """Return the abilities that this machine lacks for a case, including those that every case needs."""
        spec = self.spec(declared)
        needs = declared.needs() | ({"javac"} if spec.holds else set())
        if spec.listener_security is not ListenerSecurity.PLAINTEXT:
            needs.add(SECURED_LISTENERS)
        found = (*self.lacks, *abilities(needs))
        return [each for each in found if (each.required or each.name in needs) and not each.present]


def run_of(config: pytest.Config) -> Run:
    """Return the :class:`Run` of a session."""
    return config.stash[RUN]
