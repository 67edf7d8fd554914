"""A case's cluster is stopped, kept or held at its end, whatever the end of the case shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import EngineGone
from harness.kafka.builds import Builds
from harness.kafka.security import ListenerSecurity
from harness.kafka.versions import Mode
from harness.runner.case import Case
from harness.runner.case_cluster import cluster_of
from harness.runner.cluster_reuse import ClusterPool
from harness.runner.open_case import OpenCase
from harness.runner.run import Run
from harness.runner.scenario import DeclaredCase
from suites.selftest.fakes import fake, fake_cluster, fake_distribution


def test_a_cluster_that_cannot_be_asked_at_the_end_is_stopped(tmp_path: Path) -> None:
    def gone() -> None:
        raise EngineGone("the engine does not answer")

    stopped: list[str] = []
    cluster = fake_cluster(journal_unexpected_ends=gone, stop=lambda: stopped.append("stopped"))
    run = fake(
        Run,
        spec=lambda _: cluster.spec,
        builds=fake(Builds, of=lambda _: fake_distribution()),
        earlier_build=lambda _: None,
        clusters=fake(ClusterPool, take=lambda *_: cluster),
        keep_cluster="never",
        holds=[],
        listener_security=ListenerSecurity.PLAINTEXT,
        pause=None,
    )
    case = fake(Case, record_cluster=lambda *_: None, enter=lambda _: None, journal=cluster.journal)
    open_case = OpenCase(run=run, declared=fake(DeclaredCase, mode=Mode.KRAFT))
    with pytest.raises(EngineGone), cluster_of(open_case, case):
        pass
    assert stopped == ["stopped"]
