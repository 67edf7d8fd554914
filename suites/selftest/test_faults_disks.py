"""Disk faults on real file systems are proven, can be undone from any state, and are gone after a killed harness."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from faults import slow
from faults.base import Fault, injected
from faults.file_system import VOLUME_FAULTS, Eio, Full, NearlyFull, NoInodes, PowerCut, VolumeFault
from faults.log_dir import LOG_DIR_FAULTS, LogDirFault
from faults.slow import SLOW_FAULTS, Slow, SlowVolume, Stalled
from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.errors import FaultNotProven, UsageError
from harness.host import undo
from harness.host.abilities import ability
from harness.host.control_group import SlowGroup
from harness.host.volume import Volume, VolumeKind
from harness.waiting import await_until
from suites.known_bugs.test_creation import FewInodes
from suites.selftest.disks import broker_on, interrupted_after, traces
from suites.selftest.journal_lines import lines_of
from suites.selftest.needs import require

ALL: tuple[type[VolumeFault] | type[SlowVolume] | type[PowerCut], ...] = (
    *VOLUME_FAULTS,
    NearlyFull,
    *SLOW_FAULTS,
    PowerCut,
)
each_volume_fault = pytest.mark.parametrize("fault_type", VOLUME_FAULTS, ids=lambda fault: fault.name)
each_fault = pytest.mark.parametrize("fault_type", ALL, ids=lambda fault: fault.name)


def need(fault_type: type[Fault]) -> VolumeKind:
    """Skip the test if this machine cannot inject the fault; returns the kind of volume that the fault needs."""
    require(*fault_type.needs)
    kind: VolumeKind = fault_type.cluster["volumes"]
    return kind


def check_left(before: object) -> None:
    """The machine is as before; the kernel may release a loop device a moment after the unmount."""
    await_until(traces, lambda now: now == before, timeout_s=5.0, what=f"the machine to be as before: {before}")


@pytest.fixture(autouse=True)
def workspace(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace; after the test, nothing of it may be left on the machine."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    before = traces()
    monkeypatch.setattr("faults.file_system.RELEASE_S", 0.5)  # the writer never closes its file
    yield open_folder
    undo.clean()
    check_left(before)


class Disks:
    """Makes brokers on volumes (:func:`suites.selftest.disks.broker_on`), and remembers them for the clean-up."""

    def __init__(self) -> None:
        self.made: list[Broker] = []

    def broker(self, kind: VolumeKind, *, running: bool = False) -> Broker:
        self.made.append(broker_on(kind))
        if running:
            self.made[-1].start()
        return self.made[-1]


@pytest.fixture
def disks() -> Iterator[Disks]:
    disks = Disks()
    yield disks
    for broker in disks.made:
        broker.undo_log.close()


def make(fault_type: type[Fault], broker: Broker) -> Fault:
    return fault_type(broker if fault_type is PowerCut else broker.log_dirs[0])  # type: ignore[arg-type]


def writable(log_dir: LogDir) -> bool:
    done = log_dir.broker.node.run_as_user(["sh", "-c", f"echo x > {log_dir.path}/x && rm {log_dir.path}/x"])
    return done.returncode == 0


@each_fault
def test_each_way_is_proven_and_taken_back(disks: Disks, fault_type: type[Fault]) -> None:
    broker = disks.broker(need(fault_type), running=True)
    (broker.log_dirs[0].path / "kept").write_text("kept")
    os.sync()
    with injected(make(fault_type, broker)):
        [event] = lines_of(broker.journal, "fault.injected")
        if issubclass(fault_type, LogDirFault):
            assert fault_type.expected_error in event["evidence"]
            assert writable(broker.log_dirs[1])
    assert all(map(writable, broker.log_dirs))
    assert (broker.log_dirs[0].path / "kept").read_text() == "kept"
    assert {path.name for path in broker.log_dirs[0].path.parent.iterdir()} <= {"log-dir-1", "lost+found"}


def test_who_writes_more_than_is_left_meets_the_end_of_it(disks: Disks) -> None:
    broker = disks.broker(need(NearlyFull))
    path = broker.log_dirs[0].path / "large"
    write = ["dd", "if=/dev/zero", f"of={path}", "bs=1024", f"count={NearlyFull.ROOM // 1024}", "status=none"]
    assert broker.node.run_as_user(write).returncode == 0
    path.unlink()
    with injected(NearlyFull(broker.log_dirs[0])):
        assert writable(broker.log_dirs[0])
        assert "No space left on device" in broker.node.run_as_user([*write[:-2], "count=129", "status=none"]).stderr


@each_fault
def test_undo_is_allowed_from_any_state_and_any_number_of_times(disks: Disks, fault_type: type[Fault]) -> None:
    broker = disks.broker(need(fault_type), running=True)
    make(fault_type, broker).undo()  # never injected
    fault = make(fault_type, broker)
    fault.inject()
    for _ in range(2):
        fault.undo()
        assert all(map(writable, broker.log_dirs))


@each_fault
def test_an_injection_that_is_cut_short_heals(
    disks: Disks, fault_type: type[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = disks.broker(need(fault_type), running=True)

    def interrupted(_self: Fault) -> str | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fault_type, "proof", interrupted)
    with pytest.raises(KeyboardInterrupt), injected(make(fault_type, broker)):
        pytest.fail("must not get here")
    assert all(map(writable, broker.log_dirs))


@pytest.mark.parametrize("fault_type", [Eio, PowerCut])
def test_it_heals_wherever_it_is_cut_short(disks: Disks, fault_type: type[Fault]) -> None:
    """An injection that is interrupted after any line leaves writable volumes and no paused process."""
    kind = need(fault_type)
    for number in itertools.count():
        broker = disks.broker(kind, running=True)
        whole = False
        with suppress(KeyboardInterrupt), interrupted_after(number), injected(make(fault_type, broker)):
            whole = True
        assert all(map(writable, broker.log_dirs))
        assert broker.is_alive
        assert not broker.node.is_paused()
        disks.made.pop().undo_log.close()
        if whole:
            break
    assert number > 3


@pytest.mark.parametrize("fault_type", [Eio, PowerCut])
def test_a_disk_that_is_mounted_elsewhere_too_comes_back(
    disks: Disks, fault_type: type[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new mount namespace has a copy of each mount, which keeps the file system that was shut down alive.

    The undo must not mount that one again.
    """
    monkeypatch.setattr("faults.file_system.RELEASE_S", 5.0)
    broker = disks.broker(need(fault_type), running=True)
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo made; exec sleep 1"], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"made\n"
        with injected(make(fault_type, broker)):
            pass
        assert all(map(writable, broker.log_dirs))


@each_volume_fault
def test_a_file_system_that_did_not_fail_proves_nothing(
    disks: Disks, fault_type: type[VolumeFault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_type, "apply", lambda _self: None)
    broker = disks.broker(need(fault_type))
    with pytest.raises(FaultNotProven, match="nothing outside Kafka"), injected(make(fault_type, broker)):
        pytest.fail("must not get here")


def test_what_failed_before_proves_nothing(disks: Disks) -> None:
    broker = disks.broker(need(Eio))
    with injected(Eio(broker.log_dirs[0])), pytest.raises(FaultNotProven, match="could not be written before"):
        Full(broker.log_dirs[0]).inject()


def test_almost_full_is_not_full(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    broker = disks.broker(need(Full))
    with pytest.raises(FaultNotProven), injected(Full(broker.log_dirs[0])):
        pytest.fail("must not get here")


@pytest.mark.parametrize("fault_type", [Full, NoInodes])
def test_what_a_broker_lets_go_of_at_the_end_is_used_up_too(
    disks: Disks, monkeypatch: pytest.MonkeyPatch, fault_type: type[Full | NoInodes]
) -> None:
    """A deleted file frees its space only when the broker closes it, which may be after the disk was filled."""
    broker = disks.broker(need(fault_type))
    deleted = broker.log_dirs[0].path / "deleted"
    held = deleted.open("wb")
    held.write(bytes(1 << 20))
    held.flush()
    deleted.unlink()
    apply: Callable[[Any], None] = fault_type.apply

    def then_let_go(fault: Full | NoInodes) -> None:
        apply(fault)
        held.close()

    monkeypatch.setattr(fault_type, "apply", then_let_go)
    with injected(fault_type(broker.log_dirs[0])) as fault:
        assert fault.write_error() is not None
    assert lines_of(broker.journal, "volume.used_up_again")


def test_what_a_killed_broker_was_about_to_rename_gives_no_inode_back(disks: Disks) -> None:
    """A checkpoint's .tmp file would let the broker replace the checkpoint for ever, without a new inode."""
    log_dir = disks.broker(need(NoInodes)).log_dirs[0]
    checkpoint = log_dir.path / "recovery-point-offset-checkpoint"
    half = checkpoint.with_name(f"{checkpoint.name}.tmp")
    for file in (checkpoint, half):
        file.touch()
    with injected(NoInodes(log_dir)):
        with pytest.raises(OSError, match="No space left"):
            half.touch()
        assert checkpoint.exists()


def test_a_few_inodes_are_enough_for_a_folder_and_one_file(disks: Disks) -> None:
    log_dir = disks.broker(need(FewInodes)).log_dirs[0]
    replica = log_dir.path / "t-0"
    with injected(FewInodes(log_dir)) as fault:
        replica.mkdir()
        (replica / "first").touch()
        with pytest.raises(OSError, match="No space left"):
            (replica / "second").touch()
        assert fault.proof() is None
    (replica / "second").touch()


def test_no_space_at_all_is_not_taken_for_no_inodes(disks: Disks) -> None:
    broker = disks.broker(need(NoInodes))
    fault = NoInodes(broker.log_dirs[0])
    with injected(Full(broker.log_dirs[0])):
        assert fault.proof() is None


def test_a_disk_that_is_not_slow_proves_nothing(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowGroup, "limit", lambda _self, _rate: None)
    broker = disks.broker(need(Slow))
    monkeypatch.setattr(slow, "_LIMITED_WITHIN_S", 0.5)
    says = r"a synced write to .* to take 0\.100 s with the limit, was \d\.\d+ s; last seen: 0\."
    with pytest.raises(FaultNotProven, match=says), injected(Slow(broker.log_dirs[0])):
        pytest.fail("must not get here")
    [event] = lines_of(broker.journal, "fault.not_proven")
    assert re.search(says, event["why"])


def test_a_disk_that_was_slow_before_proves_nothing(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_FAST_WITHIN_S", 0.5)
    broker = disks.broker(need(Slow))
    monkeypatch.setattr(Slow, "least_s", 0.0)  # no write is fast enough
    says = r"waited 0\.5 s for a synced write to .* to take at most 0\.000 s before the fault; last seen: 0\."
    with pytest.raises(FaultNotProven, match=says), injected(Slow(broker.log_dirs[0])):
        pytest.fail("must not get here")


def test_a_disk_that_does_not_stall_proves_nothing(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stalled, "_freeze", lambda _self: None)
    broker = disks.broker(need(Stalled))
    with pytest.raises(FaultNotProven), injected(Stalled(broker.log_dirs[0])):
        pytest.fail("must not get here")


BUSYBOX = 'exec busybox dd "$@"'
OF_MUSL = 'busybox dd "$@" 2>&1 | sed "s|Input/output error|I/O error|" >&2; exit "${PIPESTATUS[0]}"'


def put_on_path(name: str, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("busybox") is None:
        pytest.skip("there is no busybox")
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(folder), os.environ["PATH"])))


@pytest.mark.parametrize("fault_type", [Slow, Stalled])
def test_of_busybox_slowness_is_proven(
    disks: Disks, workspace: Path, monkeypatch: pytest.MonkeyPatch, fault_type: type[Slow | Stalled]
) -> None:
    """The official image has only busybox's dd."""
    broker = disks.broker(need(fault_type))
    put_on_path("dd", BUSYBOX, workspace, monkeypatch)
    with injected(fault_type(broker.log_dirs[0])):
        pass


@pytest.mark.parametrize("dd", [BUSYBOX, OF_MUSL], ids=["busybox", "musl"])
def test_of_busybox_an_error_is_proven(disks: Disks, workspace: Path, monkeypatch: pytest.MonkeyPatch, dd: str) -> None:
    """The official image's busybox uses musl's error messages, which differ from Debian's."""
    broker = disks.broker(need(Eio))
    put_on_path("dd", dd, workspace, monkeypatch)
    with injected(Eio(broker.log_dirs[0])):
        pass


def test_a_stall_goes_on_and_off(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stalled, "stalls_s", 2.0)
    monkeypatch.setattr(Stalled, "flows_s", 0.5)
    broker = disks.broker(need(Stalled))
    with injected(Stalled(broker.log_dirs[0])):
        assert all(writable(broker.log_dirs[0]) for _ in range(2))  # the first write waits out the stall
        kinds = await_until(
            lambda: [event.kind for event in broker.journal.events if event.kind.startswith("disk.")],
            lambda kinds: len(kinds) >= 4,
            timeout_s=30,
            what="the disk to stall twice",
        )
    assert kinds[:4] == ["disk.stalled", "disk.flows"] * 2


def test_a_power_cut_that_loses_nothing_is_none(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PowerCut, "_cut_off", lambda _self, _volume: os.sync())
    broker = disks.broker(need(PowerCut), running=True)
    with pytest.raises(FaultNotProven), injected(make(PowerCut, broker)):
        pytest.fail("must not get here")


def test_a_broker_that_is_down_has_no_power_to_cut(disks: Disks) -> None:
    broker = disks.broker(need(PowerCut))
    with pytest.raises(FaultNotProven, match="did not run before"):
        make(PowerCut, broker).inject()


def test_after_a_power_cut_the_broker_stays_down_until_somebody_starts_it(disks: Disks) -> None:
    broker = disks.broker(need(PowerCut), running=True)
    with injected(make(PowerCut, broker)):
        assert not broker.is_alive
        assert all(map(writable, broker.log_dirs))
    assert broker.is_alive


def test_a_broker_that_holds_on_to_a_dead_volume_is_started_anew(disks: Disks) -> None:
    broker = disks.broker(need(Eio), running=True)
    pid = broker.node.pid()
    with injected(Eio(broker.log_dirs[0])):
        pass
    assert list(lines_of(broker.journal, "fault.undo_ends_broker"))
    assert broker.is_alive
    assert broker.node.pid() != pid


def test_a_log_dir_without_a_volume_is_refused(tmp_path: Path, disks: Disks) -> None:
    broker = disks.broker(need(Eio))
    with pytest.raises(UsageError, match='volumes="ext4"'):
        Eio(LogDir(broker.log_dirs[0].broker, tmp_path))


@pytest.mark.parametrize("fault_type", LOG_DIR_FAULTS, ids=lambda fault: fault.name)
def test_faults_of_the_dir_work_on_a_volume_too(disks: Disks, fault_type: type[LogDirFault]) -> None:
    broker = disks.broker(need(Eio))
    with injected(fault_type(broker.log_dirs[0])):
        pass
    assert writable(broker.log_dirs[0])


@pytest.mark.parametrize(("first", "second"), [(Full, Eio), (Eio, Eio), (NoInodes, NoInodes)], ids=str)
def test_faults_follow_each_other(disks: Disks, first: type[VolumeFault], second: type[VolumeFault]) -> None:
    broker = disks.broker(need(first))
    for fault_type in (first, second):
        with injected(fault_type(broker.log_dirs[0])):
            pass
        assert writable(broker.log_dirs[0])


def test_faults_on_two_disks_at_once(disks: Disks) -> None:
    broker = disks.broker(need(Eio))
    with injected(Eio(broker.log_dirs[0]), Full(broker.log_dirs[1])):
        assert not any(map(writable, broker.log_dirs))
    assert all(map(writable, broker.log_dirs))


# A harness that injects a fault and then waits to be killed.
DOOMED = """
import sys
import tempfile
from suites.selftest.disks import broker_on
import faults.file_system, faults.slow
fault_type = getattr(faults.file_system, sys.argv[1], None) or getattr(faults.slow, sys.argv[1])
broker = broker_on(fault_type.cluster["volumes"])
broker.start()
fault = fault_type(broker if sys.argv[1] == "PowerCut" else broker.log_dirs[0])
fault.inject()
print("done", flush=True)
sys.stdin.read()
"""


@each_fault
def test_a_killed_harness_leaves_nothing(workspace: Path, fault_type: type[Fault]) -> None:
    need(fault_type)
    before = traces()
    harness = subprocess.Popen(
        [sys.executable, "-c", DOOMED, fault_type.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert harness.stdout is not None
    assert harness.stdout.readline() == "done\n"
    assert traces() != before
    harness.kill()
    harness.wait()
    assert undo.clean() == 1
    check_left(before)
    assert list(workspace.iterdir()) == []


def test_a_volume_needs_a_least_size(disks: Disks) -> None:
    broker = disks.broker(need(Eio))
    with pytest.raises(ValueError, match="at least 300 MB"):
        Volume(Path("/nowhere"), kind="xfs", size_mb=299, undo_log=broker.undo_log)


def test_what_somebody_stands_in_is_unmounted_all_the_same(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.host.undo._UNMOUNT_WAIT_S", 0.3)
    broker = disks.broker(need(Eio))
    stranger = subprocess.Popen(["sleep", "60"], cwd=broker.log_dirs[0].path)
    try:
        mounted = traces()["mounts"]
        broker.undo_log.close()
        assert traces()["mounts"] != mounted
    finally:
        stranger.kill()
        stranger.wait()


# The faults that an ordinary user can inject as root of a user namespace.
OWN_NAMESPACE = """
from faults.base import injected
from faults.file_system import FullTmpfs
from faults.log_dir import Chmod000
from harness.host.broker_user import broker_user
from suites.selftest.disks import broker_on
broker = broker_on("tmpfs")
for fault_type in (FullTmpfs, Chmod000):
    with injected(fault_type(broker.log_dirs[0])):
        print(broker_user().bare, broker.journal.events[-1].details()["evidence"])
"""


def test_log_dirs_fill_up_and_chmod_bites_in_a_user_namespace(workspace: Path) -> None:
    if not ability("user namespaces").present:
        pytest.skip(f"user namespaces: {ability('user namespaces').found}")
    own = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", OWN_NAMESPACE]
    done = subprocess.run(own, capture_output=True, text=True, check=False, timeout=60)
    full, closed = done.stdout.splitlines() or [done.stderr, ""]
    assert (full[:4], full[-23:]) == ("True", "No space left on device"), done.stderr
    assert (closed[:4], closed[-17:]) == ("True", "Permission denied"), done.stderr
