"""What KRaft's controllers are told of a cluster's settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.cluster.quorum.format_template import FormatTemplate
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.spec import ClusterSpec
from harness.kafka.versions import Mode


@pytest.mark.parametrize("controllers", [1, 3])
def test_controllers_are_told_the_settings_that_are_theirs_to_read(tmp_path: Path, controllers: int) -> None:
    """Else leaders move behind a scenario's back, 5 min after its cluster's start, and what it wants unclean is not."""
    asked = {"unclean.leader.election.enable": "true", "log.dir.failure.timeout.ms": "1000"}
    spec = ClusterSpec(mode=Mode.KRAFT, controllers=controllers, overrides=asked)
    backend = SimpleNamespace(endpoint=lambda *_: SimpleNamespace(port=1, address="127.0.0.1:1"))
    quorum = KRaftQuorum(
        spec=spec,
        work_dir=tmp_path,
        backend=cast(Any, backend),
        template=FormatTemplate(path=tmp_path),
        main_class="kafka.Kafka",
    )
    for node in quorum.node_specs():
        told = {name: node.properties.get(name) for name in ("auto.leader.rebalance.enable", *asked)}
        assert told == {
            "auto.leader.rebalance.enable": "false",
            "unclean.leader.election.enable": "true",
            "log.dir.failure.timeout.ms": None,
        }
