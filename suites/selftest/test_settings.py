"""The keywords of scenarios are the fields of the specs that they set."""

from dataclasses import fields
from typing import Any

import pytest

from harness.cluster.spec import ClusterSettings, ClusterSpec
from harness.workload.workload import Load, LoadSettings


@pytest.mark.parametrize(
    ("keywords", "spec", "left_out"),
    [(ClusterSettings, ClusterSpec, {"mode", "backend", "profile", "given"}), (LoadSettings, Load, set())],
)
def test_each_field_has_its_keyword(keywords: Any, spec: Any, left_out: set[str]) -> None:
    assert keywords.__optional_keys__ == {field.name for field in fields(spec)} - left_out
