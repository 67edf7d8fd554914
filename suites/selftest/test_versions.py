"""The table of versions, held against the jars of the default builds."""

import itertools
import zipfile

import pytest

from harness.errors import EnvironmentLacks, UsageError
from harness.machine.cache import cache_dir
from harness.releases.distribution import from_maven
from harness.releases.versions import DEFAULT_BUILDS, KafkaVersion, Mode, Tool, VersionRange

V = KafkaVersion.parse


@pytest.mark.parametrize("text", ["3.9.2", "4.3.1", "4.4.0-SNAPSHOT", "4.3.0-rc1", "3.9.2.vendor-00001", "7.5.0-ccs"])
def test_a_version_is_written_as_it_was_read(text: str) -> None:
    assert str(V(text)) == text


@pytest.mark.parametrize("text", ["", "4", "4.3", "4.3.x", "v4.3.1", "4.3.1/..", "4.3.1 -Dx=y", "<a>", "4.3.-1"])
def test_what_is_no_version_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="no Kafka version"):
        V(text)


def test_versions_are_ordered_as_they_are_released() -> None:
    ordered = ["3.9.2", "3.10.0", "4.3.0-SNAPSHOT", "4.3.0-rc2", "4.3.0-rc10", "4.3.0", "4.3.0-vendor1", "4.3.1"]
    for lower, higher in itertools.combinations(map(V, ordered), 2):
        assert lower < higher
        assert not higher < lower
        assert lower != higher


@pytest.mark.parametrize(
    ("version", "modes"),
    [
        ("0.11.0.3", ()),
        ("1.0.2", (Mode.ZK,)),
        ("3.6.2", (Mode.ZK,)),
        ("3.7.0", (Mode.ZK, Mode.KRAFT)),
        ("3.9.2", (Mode.ZK, Mode.KRAFT)),
        ("4.0.0-rc1", (Mode.KRAFT,)),
        ("4.3.1", (Mode.KRAFT,)),
    ],
)
def test_modes_are_those_with_jbod(version: str, modes: tuple[Mode, ...]) -> None:
    assert V(version).modes() == modes


@pytest.mark.parametrize(
    ("version", "java", "runs"),
    [
        ("4.3.1", 17, True),
        ("4.0.0-rc1", 11, False),
        ("3.9.2", 11, True),
        ("3.9.2", 25, True),
        ("2.3.1", 17, False),
        ("2.3.1", 11, True),
        ("1.1.1", 17, True),
    ],
)
def test_a_build_that_does_not_run_on_this_java_is_said_to(version: str, java: int, runs: bool) -> None:
    if runs:
        V(version).check_java(java)
    else:
        with pytest.raises(EnvironmentLacks, match=rf"Kafka {version} needs Java .* this is {java}"):
            V(version).check_java(java)


def test_a_candidate_and_a_snapshot_have_what_their_release_has() -> None:
    assert V("4.3.0-rc1").has_cordoned_log_dirs
    assert V("4.3.0-SNAPSHOT").has_cordoned_log_dirs
    assert not V("4.2.9").has_cordoned_log_dirs
    assert V("4.3.0-rc1") in VersionRange.parse(">=4.3.0,<4.4.0")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=4.3.0,<4.4.0", ["4.3.0", "4.3.7"], ["4.2.9", "4.4.0", "4.4.0-SNAPSHOT"]),
        (">=3.7", ["3.7.0", "4.0.0"], ["3.6.2"]),
        ("==3.7.0", ["3.7.0"], ["3.7.1"]),
        ("<=3.9.2", ["3.9.2", "1.1.0"], ["3.9.3"]),
        (">3.9.2", ["3.9.3"], ["3.9.2"]),
        ("", ["1.1.0", "4.3.1"], []),
    ],
)
def test_ranges(text: str, inside: list[str], outside: list[str]) -> None:
    both = VersionRange.parse(text)
    assert [version for version in inside + outside if V(version) in both] == inside
    assert VersionRange.parse(str(both)) == both


@pytest.mark.parametrize("text", ["4.3", "=>4", ">=4.3.0.1", ">=x", "4.0 - 4.3"])
def test_what_is_no_range_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="no range"):
        VersionRange.parse(text)


@pytest.mark.parametrize("mode", Mode)
def test_the_default_build_has_its_mode_and_its_main_classes(mode: Mode) -> None:
    version = DEFAULT_BUILDS[mode]
    assert version.has(mode)
    inside: set[str] = set()
    for jar in from_maven(version, cache_dir()).class_path:
        with zipfile.ZipFile(jar) as opened:
            inside.update(opened.namelist())
    for tool in Tool:
        if tool is Tool.ZOOKEEPER and mode is Mode.KRAFT:
            with pytest.raises(UsageError, match="no zookeeper"):
                version.main_class(tool)
        else:
            assert version.main_class(tool).replace(".", "/") + ".class" in inside


def test_a_tool_is_where_it_was_at_the_time() -> None:
    """Read from the jars of 2.0.0, 3.5.2, 3.6.2, 3.7.2, 4.2.0 and 4.3.1."""
    assert V("3.5.2").main_class("log-dirs") == "kafka.admin.LogDirsCommand"
    assert V("3.6.2").main_class("log-dirs") == "org.apache.kafka.tools.LogDirsCommand"
    assert V("3.6.2").main_class("topics") == "kafka.admin.TopicCommand"
    assert V("3.7.2").main_class("topics") == "org.apache.kafka.tools.TopicCommand"
    assert V("3.7.2").main_class("reassign") == "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    assert V("4.2.0").main_class("dump-log") == "kafka.tools.DumpLogSegments"
    assert V("4.3.0-rc1").main_class("dump-log") == "org.apache.kafka.tools.DumpLogSegments"
    with pytest.raises(UsageError, match="no storage"):
        V("2.0.0").main_class("storage")
