"""What all cases of one ``jbod run`` share: the options, the builds, what stands; and what a case comes to in it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.nodes.backends import backend_kind
from harness.cluster.spec import ClusterSpec
from harness.host.abilities import Ability, abilities
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.released import settle
from harness.kafka.versions import KafkaVersion
from harness.runner.build_lacks import Lack, read_lacks
from harness.runner.case import Case, check_json_file
from harness.runner.case_workload import CaseWorkload
from harness.runner.cluster_reuse import ClusterPool
from harness.runner.deviation import Deviation
from harness.runner.pausing import Pause
from harness.runner.results import Results
from harness.runner.scenario import DeclaredCase
from harness.runner.selection import Selection
from harness.runner.subrun import arguments_of
from harness.spark.session import check_master

RUN = pytest.StashKey["Run"]()


class Run:
    """What all cases of one pytest session share.

    :ivar build: the options that choose its build; each ``latest`` is a version by now
    :ivar found: what was said of finding that version
    """

    def __init__(self, config: pytest.Config) -> None:
        get = config.getoption
        told: dict[str, Any] = getattr(config, "workerinput", {})
        check_master(get("--spark-master"))
        self.found: list[str] = []
        build = self.build = BuildOptions(
            kafka=told["kafka"] if told else settle(get("--kafka"), self.found.append),
            kafka_home=get("--kafka-home"),
            kafka_tarball=get("--kafka-tarball"),
            mode=get("--mode"),
        )
        self.builds = Builds.choose(build)
        self.build_lacks = read_lacks([Path(file) for file in get("--probe")], self.builds)
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
        versions = {str(mode): str(self.builds.version(mode)) for mode in self.builds.modes()}
        on = {"backend": self.backend, "kafka": versions}
        self.results = Results(self.seed, self.json_file, self.runs_dir, argv, lambda line: self.say(line), on)
        self.shared_clusters: bool = get("--clusters") == "shared"
        self.standing = ClusterPool(lambda line: self.say(line))
        self.running: Case | None = None
        self.workload: CaseWorkload | None = None
        self.say: Callable[[str], None] = lambda _line: None

    def is_over(self) -> bool:
        """No case may begin any more."""
        return self.stop_at is not None and time.monotonic() > self.stop_at

    def version(self, declared: DeclaredCase) -> KafkaVersion:
        """Of the build that a case runs on."""
        return self.builds.version(declared.mode)

    def spec(self, declared: DeclaredCase) -> ClusterSpec:
        """The cluster that a case is given."""
        return declared.spec(self.backend)

    def shared_spec(self, declared: DeclaredCase | None) -> ClusterSpec | None:
        """The cluster that a case wants and may have from others before it; None where it must have its own."""
        if declared is None or declared.scenario.fresh or not self.shared_clusters:
            return None
        return self.spec(declared)

    def expected(self, declared: DeclaredCase) -> list[Deviation]:
        """The deviations that a case's scenario declares of its build (:meth:`DeclaredCase.expected`)."""
        return declared.expected(self.version(declared))

    def unfit_build(self, declared: DeclaredCase) -> str | None:
        """Why this run's build can't run a case: it doesn't have what the case checks; None where it has."""
        version, scenario = self.version(declared), declared.scenario
        if version in scenario.builds:
            return None
        return f"KIP-{scenario.kip} needs Kafka {scenario.builds}, and this is {version}"

    def lacking(self, declared: DeclaredCase) -> list[Ability | Lack]:
        """What this machine lacks for a case, and for any; and what this build lacks of what it should have."""
        return [*self.unable(declared), *self.missing_in_build(declared)]

    def missing_in_build(self, declared: DeclaredCase) -> list[Lack]:
        """What ``jbod probe`` missed in the build that this case can't do without."""
        return [lack for lack in self.build_lacks if lack.stops(declared.id, str(declared.mode))]

    def unable(self, declared: DeclaredCase) -> list[Ability]:
        """What this machine lacks for a case, and for any."""
        needs = declared.needs()
        found = (*self.lacks, *abilities(needs))
        return [each for each in found if (each.required or each.name in needs) and not each.present]


def run_of(config: pytest.Config) -> Run:
    """The session's :class:`Run`."""
    return config.stash[RUN]
