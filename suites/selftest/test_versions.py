"""The table of versions agrees with the jars of the default builds."""

import itertools

import pytest

from harness.errors import EnvironmentLacks, UsageError
from harness.kafka.versions import KafkaVersion, Mode, VersionRange

V = KafkaVersion.parse


@pytest.mark.parametrize("text", ["3.9.2", "4.3.1", "4.4.0-SNAPSHOT", "4.3.0-rc1", "3.9.2.vendor-00001", "7.5.0-ccs"])
def test_a_version_is_written_as_it_was_read(text: str) -> None:
    assert str(V(text)) == text


@pytest.mark.parametrize(
    "text", ["", "4", "4.3", "4.3.x", "v4.3.1", "4.3.1/..", "4.3.1 -Dx=y", "<a>", "4.3.-1", "４.4.0"]
)
def test_what_is_no_version_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="not a Kafka version"):
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
def test_a_build_that_does_not_run_on_this_java_is_refused(version: str, java: int, runs: bool) -> None:
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
        ("<4.0.2 | >=4.1.0,<4.1.2", ["3.9.2", "4.0.1", "4.1.0", "4.1.1"], ["4.0.2", "4.0.9", "4.1.2", "4.2.0"]),
    ],
)
def test_ranges(text: str, inside: list[str], outside: list[str]) -> None:
    both = VersionRange.parse(text)
    assert [version for version in inside + outside if V(version) in both] == inside
    assert VersionRange.parse(str(both)) == both
    assert str(VersionRange.parse(str(both))) == str(both)


@pytest.mark.parametrize("text", ["4.3", "=>4", ">=4.3.0.1", ">=x", "4.0 - 4.3", "<4.0.2 |", "| <4", ">=4 || <5"])
def test_what_is_no_range_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a range"):
        VersionRange.parse(text)
