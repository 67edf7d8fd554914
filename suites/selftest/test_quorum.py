"""KRaft's controllers get those settings of a cluster that controllers read."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cluster.nodes.node import Endpoint
from harness.cluster.nodes.process import ProcessBackend
from harness.cluster.quorum.format_template import FormatTemplate
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.spec import ClusterSpec
from harness.kafka.versions import Mode
from suites.selftest.fakes import fake


@pytest.mark.parametrize("controllers", [1, 3])
def test_controllers_are_told_the_settings_that_are_theirs_to_read(tmp_path: Path, controllers: int) -> None:
    """Without them the controller moves leaders 5 min after the start, and never elects an unclean leader."""
    asked = {"unclean.leader.election.enable": "true", "log.dir.failure.timeout.ms": "1000"}
    spec = ClusterSpec(mode=Mode.KRAFT, controllers=controllers, overrides=asked)
    quorum = KRaftQuorum(
        spec=spec,
        work_dir=tmp_path,
        backend=fake(ProcessBackend, endpoint=lambda *_: Endpoint(address="127.0.0.1:1", port=1)),
        template=FormatTemplate(path=tmp_path),
        main_class="kafka.Kafka",
    )
    for node in quorum.node_specs():
        settings = {name: node.properties.get(name) for name in ("auto.leader.rebalance.enable", *asked)}
        assert settings == {
            "auto.leader.rebalance.enable": "false",
            "unclean.leader.election.enable": "true",
            "log.dir.failure.timeout.ms": None,
        }
