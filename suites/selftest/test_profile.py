"""The settings of a profile reach the nodes, and waits follow them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster.nodes.node import Endpoint
from harness.cluster.nodes.process import ProcessBackend
from harness.cluster.profile import FAST, PRODUCTION, PROFILES, Profile
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.cluster.spec import ClusterSpec
from harness.errors import AwaitTimeout
from harness.kafka.broker_properties import refusals
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.security import ListenerSecurity
from harness.kafka.tools_jvm import end_tools
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from harness.runner import ledger
from harness.runner.case_result import CaseResult
from harness.runner.run import Run
from harness.runner.scenario import DeclaredCase, Scenario
from harness.waiting import await_until, waiting_longer
from suites.selftest.case_results import case_result
from suites.selftest.fakes import fake

LAG = "replica.lag.time.max.ms"


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_builds_know_the_settings(profile: Profile, mode: Mode) -> None:
    build = Builds.choose(BuildOptions(kafka=str(DEFAULT_BUILDS[mode]))).of(mode)
    try:
        assert refusals(build, ClusterSpec(mode=mode, profile=profile).settings) == {}
    finally:
        end_tools()


def test_waits_follow_the_settings_of_the_run() -> None:
    """They do not follow those of a scenario, whose own waits do."""
    fast = ClusterSpec(mode=Mode.KRAFT)
    assert fast.delay_s == 0
    assert replace(fast, overrides={LAG: "30000"}).delay_s == 0
    assert replace(fast, given={LAG: "30000"}).delay_s == 25
    assert replace(fast, given={LAG: "1000"}).delay_s == 0
    production = replace(fast, profile=PRODUCTION)
    assert production.delay_s > 25 + 59 + 59
    assert replace(production, given={LAG: "5000"}).delay_s == production.delay_s - 25


def test_a_wait_takes_longer_in_all_threads() -> None:
    took: list[str] = []

    def wait(*, for_kafka: bool = True) -> None:
        try:
            await_until(lambda: False, timeout_s=0.01, what="nothing", for_kafka=for_kafka)
        except AwaitTimeout as error:
            took.append(str(error))

    with waiting_longer(0.2):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        wait(for_kafka=False)
    wait()
    assert ["waited 0.2 s" in each for each in took] == [True, False, False]


@pytest.mark.parametrize(("profile", "tick", "session"), [(FAST, "500", 4.5), (PRODUCTION, "2000", 20.0)])
def test_a_session_with_zookeeper(tmp_path: Path, profile: Profile, tick: str, session: float) -> None:
    """ZooKeeper allows sessions of at most 20 ticks."""
    backend = fake(ProcessBackend, endpoint=lambda *_: Endpoint(address="127.0.0.1:1", port=1))
    quorum = ZooKeeperQuorum(work_dir=tmp_path, backend=backend, main_class="x", profile=profile)
    [node] = quorum.node_specs()
    assert (node.properties["tickTime"], quorum.registration_ttl_s) == (tick, session)
    asked = int(quorum.broker_settings(1, {})["zookeeper.session.timeout.ms"])
    assert asked == ClusterSpec(mode=Mode.ZK, profile=profile).profile.session_ms(Mode.ZK) <= 20 * int(tick)


def test_it_is_no_ordinary_run(tmp_path: Path) -> None:
    production = replace(case_result(), run_dir=tmp_path / "x", profile=PRODUCTION.name)
    ledger.note(tmp_path, production)
    assert ledger.read(tmp_path) == []
    assert CaseResult.from_json(production.to_json()).profile == PRODUCTION.name
    assert "profile" not in case_result().to_json()


@pytest.mark.parametrize("any_profile", [True, False])
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_case_that_relies_on_the_fast_settings_is_skipped(profile: Profile, any_profile: bool) -> None:
    spec = ClusterSpec(mode=Mode.KRAFT)
    run = fake(
        Run, profile=profile, settings={LAG: "1"}, listener_security=ListenerSecurity.PLAINTEXT, spec=lambda _: spec
    )
    declared = fake(DeclaredCase, scenario=fake(Scenario, any_profile=any_profile))
    why = "the scenario relies on the fast settings, and this is --profile production"
    assert run.unfit_settings(declared) == (None if any_profile or profile is FAST else why)
