"""The real mvn fetches jars, and its failures give one clear line."""

import socket
from pathlib import Path

import psutil
import pytest

from harness.errors import EnvironmentLacks
from harness.kafka.maven import copy_dependencies

SMALL = "org.slf4j:slf4j-reload4j:1.7.36"


def mirrored(home: Path, port: int) -> str:
    """Make a home whose Maven settings use 127.0.0.1:port for all repositories; returns the option that names it."""
    (home / ".m2").mkdir(parents=True)
    (home / ".m2" / "settings.xml").write_text(
        "<settings><mirrors><mirror><id>m</id><mirrorOf>*</mirrorOf>"
        f"<url>http://127.0.0.1:{port}/maven2</url></mirror></mirrors></settings>"
    )
    return f"-Duser.home={home}"


def test_an_artifact_comes_alone_where_that_is_asked(tmp_path: Path) -> None:
    copy_dependencies([SMALL], tmp_path, transitive=False)
    assert [jar.name for jar in tmp_path.iterdir()] == ["slf4j-reload4j-1.7.36.jar"]


def test_without_mvn_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacks, match="apt-get install maven"):
        copy_dependencies([SMALL], tmp_path)


def test_a_mirror_that_is_down_is_the_environment_and_the_users_settings_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        monkeypatch.setenv("MAVEN_OPTS", mirrored(tmp_path / "home", port))
        with pytest.raises(EnvironmentLacks, match="can't fetch") as caught:
            copy_dependencies([SMALL], tmp_path / "jars")
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_a_mirror_that_never_answers_is_given_up_and_mvn_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _programs()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("MAVEN_OPTS", mirrored(tmp_path / "home", silent.getsockname()[1]))
        with pytest.raises(EnvironmentLacks, match="did not end within 2 s"):
            copy_dependencies([SMALL], tmp_path / "jars", timeout_s=2.0)
    assert _programs() <= before


def _programs() -> set[psutil.Process]:
    """The shell scripts and JVMs that this process has started, such as Maven."""
    return {child for child in psutil.Process().children(recursive=True) if child.name() in {"java", "mvn"}}
