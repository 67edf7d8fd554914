"""jbod finds each ability of the machine by trying it, and the try leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.errors import EnvironmentLacks, JbodError, UsageError
from harness.host import java
from harness.host.abilities import abilities, ability, doctor_json
from harness.host.broker_user import UID, broker_user
from harness.host.java import java_command, java_version

AS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not AS_ROOT, reason="only root can become another user")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Forget the abilities that were found, before and after each test."""
    ability.cache_clear()
    java._ask.cache_clear()
    yield
    ability.cache_clear()
    java._ask.cache_clear()


def _as_user(uid: int, do: Callable[[], str]) -> str:
    """Call a function in a child process of another user; returns its result, or the error's class and text."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = do()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writable, answer.encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer


def _left(temporary: Path) -> list[str]:
    """What a try has left on the machine; those of other runs lie elsewhere."""
    seen = Path("/proc/self/mounts").read_text().splitlines()
    seen += [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    paths = [*temporary.iterdir(), *Path("/sys/fs/cgroup").rglob(f"jbod-probe-{os.getpid()}")]
    return [line for line in seen if str(temporary) in line] + list(map(str, paths))


def test_every_ability_is_listed_with_its_use_and_nothing_is_left_behind(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(open_folder))
    found = abilities()
    assert _left(open_folder) == []
    assert len({each.name for each in found}) == len(found)
    for each in found:
        assert each.needed_for, each
        assert each.fix, each
        assert each.found, each
        assert "\n" not in each.found
    assert {each.name for each in found if each.required} >= {"java", "setpriv", "broker user", "cache", "work dir"}
    # The tests could not run without these.
    assert all(ability(name).present for name in ("python", "java", "maven", "cache", "work dir"))


def test_the_doctors_answer_is_json() -> None:
    answer = json.loads(json.dumps(doctor_json()))
    assert answer["schema"] == 1
    assert answer["able"] is all(each["present"] for each in answer["abilities"] if each["required"])
    assert set(answer["abilities"][0]) == {"name", "present", "found", "needed_for", "fix", "required"}


def test_an_ability_is_probed_once() -> None:
    assert ability("memory") is ability("memory")


def test_an_unknown_ability_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="loop mounts"):
        ability("teleport")


def test_without_programs_the_abilities_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = {each.name: each for each in abilities()}
    for name in ("java", "setpriv", "maven", "docker", "compose", "node", "user namespaces", "network namespaces"):
        assert not found[name].present, name
        assert found[name].found
    assert doctor_json()["able"] is False


def test_a_program_that_fails_or_never_answers_is_no_ability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in {"node": "echo warning; echo 'no licence' >&2; exit 3", "mvn": "exec sleep 60"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (ability("node").present, ability("node").found) == (False, f"{tmp_path}/node: no licence")
    monkeypatch.setattr("harness.host.probes.PROBE_S", 0.5)
    assert not ability("maven").present
    assert "did not answer" in ability("maven").found


def test_a_node_that_is_too_old_is_reported_with_the_version_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``apt-get install nodejs`` on Debian 12 brings 18, which is too old."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for version, present in {
        "v18.20.4": False,
        "v20.18.3": False,
        "v20.19.0": True,
        "v24.0.1": True,
        "?": False,
    }.items():
        (tmp_path / "node").write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / "node").chmod(0o755)
        ability.cache_clear()
        found = ability("node")
        assert found.present is present, version
        assert version in found.found
        assert ("is older than 20.19" in found.found) is (version != "?" and not present)
        assert "NodeSource" in found.fix
        assert "nvm" in found.fix


@pytest.mark.parametrize(("variable", "name"), [("JBOD_CACHE_DIR", "cache"), ("JBOD_WORK_DIR", "work dir")])
def test_a_folder_that_cannot_be_written_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, name: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file" / "below"))
    assert not ability(name).present
    monkeypatch.setenv(variable, "/proc/jbod")
    ability.cache_clear()
    assert not ability(name).present


# --- the brokers' user ----------------------------------------------------------------------------------------------


def test_the_brokers_user_is_stopped_by_chmod(open_folder: Path) -> None:
    user = broker_user()
    assert user.uid != 0
    assert user.drop is AS_ROOT
    assert ability("broker user").present
    closed = open_folder / "closed"
    closed.mkdir()
    if user.drop:
        os.chown(closed, user.uid, user.gid)
    touch = [*user.command(), "touch", str(closed / "file")]
    assert subprocess.run(touch, capture_output=True, check=False).returncode == 0
    closed.chmod(0)
    try:
        done = subprocess.run(touch, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    finally:
        closed.chmod(0o700)
    assert "Permission denied" in done.stderr


def test_an_ordinary_user_is_the_brokers_user() -> None:
    """An ordinary user cannot become another one, so ``JBOD_BROKER_USER`` has no effect."""

    def ask() -> str:
        os.environ["JBOD_BROKER_USER"] = "daemon"
        user = broker_user()
        return f"{user.uid} {user.drop} {user.command()}"

    uid = 4711 if AS_ROOT else os.geteuid()
    assert (_as_user(uid, ask) if AS_ROOT else ask()) == f"{uid} False []"


@only_root
def test_root_drops_to_a_user_of_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JBOD_BROKER_USER", raising=False)
    assert (broker_user().uid, broker_user().gid) == (UID, UID)


@only_root
@pytest.mark.parametrize(
    ("named", "uid", "gid"), [("daemon", 1, 1), ("1", 1, 1), ("54321", 54321, 54321), ("nobody", 65534, 65534)]
)
def test_another_user_can_be_named(monkeypatch: pytest.MonkeyPatch, named: str, uid: int, gid: int) -> None:
    monkeypatch.setenv("JBOD_BROKER_USER", named)
    assert (broker_user().uid, broker_user().gid, broker_user().drop) == (uid, gid, True)


@only_root
@pytest.mark.parametrize("named", ["root", "0", "no-such-user", "-1", "99999999999999999999", "٣"])
def test_a_user_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("JBOD_BROKER_USER", named)
    with pytest.raises(UsageError, match="JBOD_BROKER_USER"):
        broker_user()
    assert not ability("broker user").present


# --- Java -----------------------------------------------------------------------------------------------------------


def test_java_runs_without_an_entry_in_the_passwd_file(tmp_path: Path) -> None:
    major, version = java_version(broker_user().command())
    assert major >= 17
    assert version.startswith(str(major))


def test_java_home_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentLacks, match="no bin/java"):
        java_command()
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "java"
    script.write_text("#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dx'\necho 'openjdk version \"1.8.0_422\"' >&2\n")
    script.chmod(0o755)
    assert java_command() == [str(script)]
    assert java_version() == (8, "1.8.0_422")
    script.write_text("#!/bin/sh\necho broken\n")
    java._ask.cache_clear()
    with pytest.raises(EnvironmentLacks, match="broken"):
        java_version()
    assert not ability("java").present


def test_without_java_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JbodError, match="apt-get install openjdk"):
        java_command()
