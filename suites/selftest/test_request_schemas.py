"""Requests that kafka-python does not know are made from the schemas in a build's jar."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import BuildLacks
from harness.host.cache import cache_dir
from harness.kafka.distribution import Distribution, from_maven
from harness.kafka.request_schemas import request_class
from harness.kafka.versions import DEFAULT_BUILDS, Mode


@pytest.fixture(scope="module")
def build() -> Distribution:
    """KRaft's default build."""
    return from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir())


def test_a_request_is_that_of_the_build(build: Distribution) -> None:
    request = request_class(build, "ShareGroupHeartbeat")
    assert request_class(build, "ShareGroupHeartbeat") is request
    sent = request(group_id="share", member_id="m0", member_epoch=0, subscribed_topic_names=["orders"])
    assert request.decode(sent.encode(version=1), version=1) == sent


def test_a_build_without_the_request_lacks_it(build: Distribution, tmp_path: Path) -> None:
    jar = tmp_path / "kafka-clients-0.1.jar"
    with zipfile.ZipFile(jar, "w") as empty:
        empty.writestr("common/message/", "")
    with pytest.raises(BuildLacks, match=r"kafka-clients-0\.1\.jar has no schema of the request ShareFetch$"):
        request_class(replace(build, class_path=(jar,)), "ShareFetch")
