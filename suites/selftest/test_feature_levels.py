"""The levels of features as kafka-features prints them, and which downgrades of metadata.version are accepted."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from harness import timeouts
from harness.errors import PromiseBroken, ToolFailed
from harness.kafka.java_client import MetadataVersion
from harness.kafka.security import Bootstrap
from harness.kafka.tool_answers import Feature, read_features
from suites.selftest.fakes import fake_cluster
from suites.upgrade import test_features as features

LINES = """\
Feature: group.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 1\tEpoch: 31
Feature: kraft.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 0\tEpoch: 31
Feature: metadata.version\tSupportedMinVersion: 3.3-IV3\tSupportedMaxVersion: 4.4-IV2\tFinalizedVersionLevel: 4.3-IV0\
\tEpoch: 31
"""
REFUSED = "Refusing to perform the requested downgrade because it might delete metadata information."


def test_the_levels_of_features_are_read() -> None:
    assert read_features(LINES.splitlines()) == {
        "group.version": Feature(supported="1", finalized="1"),
        "kraft.version": Feature(supported="1", finalized="0"),
        "metadata.version": Feature(supported="4.4-IV2", finalized="4.3-IV0"),
    }


@pytest.mark.parametrize(
    ("changed", "error", "after", "says"),
    [
        ("4.3-IV0", None, "4.3-IV0", None),  # the version below which it does not go
        ("4.3-IV0", REFUSED, "4.4-IV1", "from 4.4-IV1 to 4.3-IV0 is refused"),
        ("4.3-IV0", None, "4.4-IV1", "should be|to show that the features"),
        ("4.4-IV0", REFUSED, "4.4-IV1", None),
        ("4.4-IV0", None, "4.3-IV0", "should be refused, since the metadata changed in between: it succeeds"),
        ("4.4-IV0", "Could not connect", "4.4-IV1", "should be refused.*Could not connect"),
        ("4.4-IV0", REFUSED, "4.3-IV0", "to show that the features"),
    ],
)
def test_a_downgrade_succeeds_unless_the_metadata_changed_in_between(
    monkeypatch: pytest.MonkeyPatch, changed: str, error: str | None, after: str, says: str | None
) -> None:
    names = ("4.2-IV1", "4.3-IV0", "4.4-IV0", "4.4-IV1")
    versions = [
        MetadataVersion(name=name, level=level, changes_metadata=name == changed)
        for level, name in enumerate(names, 29)
    ]
    level = ["4.4-IV1"]

    def ask(_build: object, _tool: object, *arguments: str) -> list[str]:
        assert arguments[-2:] == ("--feature", "metadata.version=30")
        level[0] = after
        if error is not None:
            raise ToolFailed(error)
        return []

    def describe(_build: object, _bootstrap: str) -> dict[str, Feature]:
        return {"metadata.version": Feature(supported="4.4-IV1", finalized=level[0])}

    monkeypatch.setattr(features, "metadata_versions", lambda _: versions)
    monkeypatch.setattr(features, "tool_lines", ask)
    monkeypatch.setattr(features, "describe_features", describe)
    monkeypatch.setattr(timeouts, "LOG_DIR_FAILURE_S", 0.01)
    cluster = fake_cluster("4.4.0", bootstrap=Bootstrap(addresses=""))
    with nullcontext() if says is None else pytest.raises(PromiseBroken, match=says):
        features.check_downgraded(cluster, "4.3-IV0")
