"""The kernel shows whether a process is frozen, by cgroup v1 or v2; a paused container is proven by that."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from faults.broker import BrokerPaused
from harness.cluster.nodes import container
from harness.cluster.nodes.container import ContainerNode
from harness.cluster.nodes.process import ProcessNode
from harness.host.freezer import FROZEN, freezer_state
from harness.host.marked_processes import MARK, kill_marked
from harness.waiting import await_until
from suites.selftest.fakes import fake, fake_broker

V1, V2 = "cgroup {at} cgroup rw,freezer 0 0", "cgroup2 {at} cgroup2 rw 0 0"
IN_V1, IN_V2 = "6:freezer:/docker/c", "0::/docker/c"


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "said"),
    [
        ((V1,), (IN_V1,), {"0/docker/c/freezer.state": "FROZEN"}, "freezer.state: FROZEN"),
        ((V1,), (IN_V1,), {"0/docker/c/freezer.state": "THAWED"}, "freezer.state: THAWED"),
        ((V2,), (IN_V2,), {"0/docker/c/cgroup.events": "populated 1\nfrozen 1"}, "cgroup.events: frozen 1"),
        ((V2,), (IN_V2,), {"0/docker/c/cgroup.events": "populated 1\nfrozen 0"}, "cgroup.events: frozen 0"),
        # Both versions: the freezer is in v1, unless the process is in v1's root group, which has no such file.
        (
            (V2, V1),
            (IN_V2, IN_V1),
            {"0/docker/c/cgroup.events": "frozen 0", "1/docker/c/freezer.state": "FROZEN"},
            "freezer.state: FROZEN",
        ),
        ((V1, V2), ("6:freezer:/", IN_V2), {"1/docker/c/cgroup.events": "frozen 1"}, "cgroup.events: frozen 1"),
        # Unknown: a group of another namespace, a kernel before 5.2, and v1 without a freezer.
        ((V2,), ("0::/../../docker/c",), {}, None),
        ((V2,), (IN_V2,), {"0/docker/c/cgroup.events": "populated 1"}, None),
        (("cgroup {at} cgroup rw,cpu 0 0",), ("1:cpu:/docker/c",), {"0/docker/c/freezer.state": "FROZEN"}, None),
    ],
)
def test_what_the_kernel_says_of_a_freezer(
    tmp_path: Path, mounts: tuple[str, ...], groups: tuple[str, ...], files: Mapping[str, str], said: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("".join(f"{line}\n" for line in groups))
    lines = [line.format(at=tmp_path / str(number)) for number, line in enumerate(mounts)]
    (tmp_path / "mounts").write_text("".join(f"{line}\n" for line in ("proc /proc proc rw 0 0", *lines)))
    assert freezer_state(7, tmp_path) == said
    assert freezer_state(8, tmp_path) is None  # no such process


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Inside the block, the process is frozen, in a control group of its own."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    v1 = [Path(where) for _, where, kind, options, *_ in mounts if kind == "cgroup" and "freezer" in options.split(",")]
    v2 = [Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"]
    if os.geteuid() != 0 or not (v1 or v2):
        pytest.skip("only root freezes a group, where there are any")
    root, file, words = (v1[0], "freezer.state", ("FROZEN", "THAWED")) if v1 else (v2[0], "cgroup.freeze", ("1", "0"))
    group = root / f"jbod-test-{secrets.token_hex(3)}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made in {root}: {error.strerror}")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / file).write_text(words[0])
        yield
    finally:
        (group / file).write_text(words[1])
        with suppress(ProcessLookupError):
            (root / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def test_a_real_process_in_a_real_freezer() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with frozen(process.pid):
                await_until(
                    lambda: freezer_state(process.pid), lambda said: said in FROZEN, timeout_s=10, what="it to freeze"
                )
            assert freezer_state(process.pid) not in FROZEN
        finally:
            process.kill()


def test_a_frozen_process_that_is_killed_ends() -> None:
    """An engine that was killed leaves a paused container frozen, and a frozen process outlives SIGKILL."""
    mark = f"test-{secrets.token_hex(4)}"
    with subprocess.Popen(["sleep", "60"], env=os.environ | {MARK: mark}) as process:
        try:
            with frozen(process.pid):
                await_until(
                    lambda: freezer_state(process.pid), lambda said: said in FROZEN, timeout_s=10, what="it to freeze"
                )
                assert [each.pid for each in kill_marked(mark)] == [process.pid]
                assert process.wait(timeout=10) == -signal.SIGKILL
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("kernel", "engine", "evidence"),
    [
        ("freezer.state: FROZEN", False, "freezer.state: FROZEN"),
        ("cgroup.events: frozen 1", True, "cgroup.events: frozen 1"),
        ("freezer.state: THAWED", True, None),  # the kernel counts, not the engine
        ("freezer.state: FREEZING", True, None),
        (None, True, "the engine reports that it is paused"),
        (None, False, None),
    ],
)
def test_a_paused_container_is_proven_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, kernel: str | None, engine: bool, evidence: str | None
) -> None:
    """Where the kernel shows nothing, the engine's word counts."""
    node = fake(
        ContainerNode,
        is_alive=lambda: True,
        _container=SimpleNamespace(id="c0ffee"),
        _state=lambda: {"Pid": 7, "Paused": engine},
    )
    monkeypatch.setattr(container, "freezer_state", lambda pid, of: kernel if (pid, of) == (7, "c0ffee") else None)
    assert BrokerPaused(fake_broker(node=node)).proof() == evidence
    assert node.is_paused() is (evidence is not None)


def test_a_paused_process_is_proven_by_its_state() -> None:
    node = fake(ProcessNode)
    with subprocess.Popen(["sleep", "60"]) as node._process:
        try:
            assert node.paused_proof() is None
            node._process.send_signal(signal.SIGSTOP)
            await_until(node.is_paused, timeout_s=10, what="it to stop")
            assert BrokerPaused(fake_broker(node=node)).proof() == "process state: stopped"
        finally:
            node._process.kill()
    assert not node.is_paused()


def test_a_container_that_has_ended_is_not_paused() -> None:
    assert fake(ContainerNode, is_alive=lambda: False).paused_proof() is None
