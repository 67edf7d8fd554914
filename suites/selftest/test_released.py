"""``latest`` is the newest release that Maven lists and has; without Maven there is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import EnvironmentLacks, UsageError
from harness.kafka import released
from harness.kafka.released import between, settle
from harness.kafka.versions import KafkaVersion
from suites.selftest.own_maven import OwnMaven
from suites.selftest.test_maven import mirrored


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "_known", {})


@pytest.fixture
def own(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> OwnMaven:
    return OwnMaven(open_folder, monkeypatch)


def test_a_version_is_left_as_it_is_and_maven_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert settle(None) is None
    assert settle("4.3.1,3.9.2") == "4.3.1,3.9.2"
    with pytest.raises(EnvironmentLacks, match="apt-get install maven"):
        settle("latest")


def test_the_last_line_with_zookeeper_is_known_to_maven() -> None:
    said: list[str] = []
    found = settle("latest-3.9", said.append)
    assert found is not None
    assert KafkaVersion.parse(found) >= KafkaVersion.parse("3.9.2")
    assert said[-1] == f"Kafka latest-3.9 is {found}"


def test_the_newest_by_number_that_is_a_release_and_can_be_fetched(own: OwnMaven) -> None:
    """Candidates, snapshots and vendors' builds do not count; a listed release that is missing is skipped and named."""
    own.lists(["90.0.10", "90.0.9", "90.1.0", "90.2.0-rc1", "90.2.0-SNAPSHOT", "90.2.0-ccs", "89.9.0"])
    own.has("90.0.10", "90.0.9", "89.9.0", "90.2.0-rc1", "90.2.0-ccs")
    said: list[str] = []
    assert settle("latest", said.append) == "90.0.10"
    assert said[-2:] == [
        "Kafka 90.1.0 is listed by your Maven repositories, but none of them has it",
        "Kafka latest is 90.0.10",
    ]
    assert settle("latest-90,89.8.0,latest-89.9") == "90.0.10,89.8.0,89.9.0"
    low, high = KafkaVersion.parse("89.9.0"), KafkaVersion.parse("90.1.0")
    assert list(map(str, between(low, high))) == ["89.9.0", "90.0.9", "90.0.10", "90.1.0"]


@pytest.mark.parametrize(
    ("word", "says"), [("latest-91.0", r"no such release .*; there is …, .*90\.0$"), ("latest-3.9.1", "say latest")]
)
def test_a_line_that_does_not_exist_is_a_usage_error(own: OwnMaven, word: str, says: str) -> None:
    own.lists(["90.0.9"])
    with pytest.raises(UsageError, match=says):
        settle(word)


def test_releases_before_scala_2_13_are_found_too() -> None:
    found = list(map(str, between(KafkaVersion.parse("2.3.0"), KafkaVersion.parse("2.4.1"))))
    assert found == ["2.3.0", "2.3.1", "2.4.0", "2.4.1"]


def test_a_mirror_that_is_down_is_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAVEN_OPTS", mirrored(tmp_path / "home", 1))
    with pytest.raises(EnvironmentLacks, match=r"can't list the versions of .*127\.0\.0\.1:1/"):
        settle("latest")


def test_maven_set_offline_is_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maven may have builds in its cache, and cannot know which release is the newest."""
    option = mirrored(tmp_path / "home", 1)
    (tmp_path / "home" / ".m2" / "settings.xml").write_text("<settings><offline>true</offline></settings>")
    monkeypatch.setenv("MAVEN_OPTS", option)
    with pytest.raises(EnvironmentLacks, match="set offline"):
        settle("latest")
