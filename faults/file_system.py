"""Faults of the file system under a log dir, as after a disk failure: I/O errors, read-only, full, power cut.

They need log dirs on their own volumes (:mod:`harness.host.volume`), which a case with such a fault gets. They use the
kernel's own means. ext4 and xfs shut down in the same way (``FS_IOC_SHUTDOWN``) when their journal can't be written.
``trigger_fs_error`` is the kernel's hook to test ``errors=remount-ro``. ``mount -o remount,ro`` is no replacement: it
fails while a file is open for writing.

A file system that was shut down must be unmounted and mounted again, which fails while files are open. ``undo`` waits
until the broker closes them, as Kafka does after it has taken a log dir offline. A broker that keeps them open is
killed and started again, as an operator would do; the journal records this.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from faults.broker import BrokerEnded
from faults.log_dir import LogDirFault
from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.cluster.spec import ClusterSettings
from harness.errors import AwaitTimeout, UsageError
from harness.host.volume import Volume
from harness.waiting import await_until, let_pass

# linux/fs.h: FS_IOC_SHUTDOWN of ext4 and xfs; 2: do not write the journal first.
_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING = struct.pack("I", 2)
RELEASE_S = 5.0
"""How long a broker may take to close the files of a log dir. It takes a failed dir offline within a second."""
_RELEASE_BY_OTHERS_S = 5.0
"""How long others may keep the volume after the broker's end, such as a process that starts in a mount namespace."""
_SYNCED, _UNSYNCED = "jbod-synced", "jbod-unsynced"
_REFILLS = 5
"""A broker closes deleted files once, which takes less time than one of these attempts."""


def volume_of(log_dir: LogDir) -> Volume:
    """The volume of a log dir.

    :raises UsageError: the log dir has no volume of its own
    """
    if log_dir.volume is None:
        raise UsageError(f'{log_dir} has no volume of its own; give the cluster volumes="ext4"')
    return log_dir.volume


class VolumeFault(LogDirFault):
    """A fault of a log dir's file system."""

    needs: ClassVar[tuple[str, ...]] = ("loop mounts",)
    cluster: ClassVar[ClusterSettings] = {"volumes": "ext4"}

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)
        self.volume = volume_of(log_dir)


class _BrokenUntilMounted(VolumeFault):
    """The file system stays broken until it is mounted again."""

    undo_unmounts = True
    harms_logs = True

    _broken = False

    def apply(self) -> None:
        """Break the file system; the undo log has its mount, and needs no more."""
        self._broken = True
        self._break_file_system()

    @abstractmethod
    def _break_file_system(self) -> None: ...

    def revert(self) -> None:
        """Mount it again after the broker has closed its files."""
        super().revert()
        if self._broken:
            _mount_again(self.volume, self.broker)
            self._broken = False


class Eio(_BrokenUntilMounted):
    """Every operation fails with EIO at once, also on open files; data that was not synced is lost."""

    name = "eio"
    expected_error = "Input/output error"
    explains = (*VolumeFault.explains, r"^[^\n]*Error processing fetch(?s:.*)IOException: Input/output error")

    def _break_file_system(self) -> None:
        shut_down(self.volume)


class EioXfs(Eio):
    """:class:`Eio` on xfs."""

    name = "eio_xfs"
    needs = ("loop mounts", "xfs")
    cluster: ClassVar[ClusterSettings] = {"volumes": "xfs"}


class ReadOnly(_BrokenUntilMounted):
    """The kernel reports an error and makes the file system read-only (``errors=remount-ro``, Debian's default)."""

    name = "read_only"
    needs = ("loop mounts", "file system errors")
    expected_error = "Read-only file system"

    def _break_file_system(self) -> None:
        Path(f"/sys/fs/ext4/{self.volume.device_name}/trigger_fs_error").write_text("jbod")


class _Exhausted(VolumeFault):
    """Other files fill the volume; undoing the fault deletes them."""

    expected_error = "No space left on device"

    @property
    def _filler(self) -> Path:
        return self.volume.path / "filler"

    def apply(self) -> None:
        """Fill the volume, and repeat until no space becomes free: a broker replaces files by renaming others."""
        self._will("tree", path=str(self._filler))
        self._filler.mkdir()
        while self._fill(self._filler):
            let_pass(0.1)

    def proof(self) -> str | None:
        """The error of the broker's own user, after the volume is filled again if necessary.

        When a broker takes the log dir offline, it closes deleted files, which frees their space.
        """
        error = super().proof()
        for _ in range(_REFILLS if self._tokens else 0):
            if error is not None:
                break
            used = self._fill(self._filler)
            self.broker.journal.write("volume.used_up_again", log_dir=str(self.log_dir), used=used)
            error = super().proof()
        return error

    @abstractmethod
    def _fill(self, filler: Path) -> int:
        """Fill the free space; returns the amount."""


class Full(_Exhausted):
    """No block is free: ENOSPC for every write that needs one."""

    name = "full"

    def _fill(self, filler: Path) -> int:
        used, chunk = 0, 64 << 20
        with (filler / "blocks").open("ab") as file:
            while chunk >= 4096:
                end = file.seek(0, os.SEEK_END)
                try:
                    os.posix_fallocate(file.fileno(), end, chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk //= 2
                used += file.seek(0, os.SEEK_END) - end
        return used


class FullTmpfs(Full):
    """:class:`Full` on a tmpfs, for machines without loop devices."""

    name = "full_tmpfs"
    needs = ("tmpfs mounts",)
    cluster: ClassVar[ClusterSettings] = {"volumes": "tmpfs"}


class NearlyFull(FullTmpfs):
    """128 KiB are free, so only larger writes get ENOSPC.

    The proof is the free space that the file system reports, since no write should fail yet.
    """

    name = "nearly_full_tmpfs"
    expected_error = "bytes free"
    ROOM = 128 << 10

    def _fill(self, filler: Path) -> int:
        excess = self._room() - self.ROOM
        if excess <= 0:
            return 0
        with (filler / "blocks").open("ab") as file:
            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), excess)
        return excess

    def proof(self) -> str | None:
        """There is free space, and no more than :attr:`ROOM`."""
        room = self._room()
        return f"{room} {self.expected_error}" if 0 < room <= self.ROOM and self.write_error() is None else None

    def _room(self) -> int:
        state = os.statvfs(self.volume.path)
        return state.f_bavail * state.f_frsize


class NoInodes(_Exhausted):
    """No inode is free: ENOSPC for every new file, though blocks are free.

    A broker that was killed during a checkpoint leaves a ``.tmp`` file. Writing that file again needs no new inode, and
    each rename frees one, so the broker would never notice the fault. So such files are deleted first.
    """

    name = "no_inodes"

    def apply(self) -> None:
        """Delete the ``.tmp`` files of a dead broker, then use up the inodes."""
        if not self.broker.is_alive:
            for left in self.log_dir.path.rglob("*-checkpoint.tmp"):
                left.unlink()
        super().apply()

    def _fill(self, filler: Path) -> int:
        before = made = len(list(filler.iterdir()))
        while True:
            try:
                os.close(os.open(filler / str(made), os.O_CREAT | os.O_EXCL, 0o600))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return made - before
            made += 1

    def proof(self) -> str | None:
        """No file can be created although blocks are free."""
        error, free = super().proof(), os.statvfs(self.volume.path).f_bavail
        return f"{error}; {free} blocks free" if error and free else None


class NoInodesTmpfs(NoInodes):
    """:class:`NoInodes` on a tmpfs."""

    name = "no_inodes_tmpfs"
    needs = ("tmpfs mounts",)
    cluster: ClassVar[ClusterSettings] = {"volumes": "tmpfs"}


class PowerCut(BrokerEnded):
    """The power of the broker's machine fails: the broker ends, and its volumes lose everything that was not synced.

    The disks come back at once, the broker when it is started. The broker is paused while its volumes are shut down, so
    it sees no error, and then killed. For the proof, the harness writes two files to each volume before, and only the
    synced one is there afterwards.
    """

    name = "power_cut"
    harms_logs = True
    needs = ("loop mounts",)
    cluster: ClassVar[ClusterSettings] = {"volumes": "ext4"}

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._volumes = [volume_of(log_dir) for log_dir in broker.log_dirs]
        self._cut: list[Volume] = []
        self._segments = (0, 0)
        self._pausing = False

    def apply(self) -> None:
        """Pause the broker, shut its volumes down, kill it, mount them again."""
        for volume in self._volumes:
            (volume.path / _SYNCED).write_bytes(b"synced")
            with (volume.path / _SYNCED).open("rb") as file:
                os.fsync(file.fileno())
            (volume.path / _UNSYNCED).write_bytes(b"not synced")
        self._pausing = True
        self.broker.pause()
        before = self._segment_bytes()
        for volume in self._volumes:
            self._cut.append(volume)
            self._cut_off(volume)
        self.broker.kill()
        self._pausing = False
        for volume in self._volumes:
            self._remount(volume)
        self._segments = (before, self._segment_bytes())

    @property
    def lost_bytes(self) -> int:
        """How many bytes of the broker's segments were not synced and are lost."""
        before, now = self._segments
        return before - now

    def _cut_off(self, volume: Volume) -> None:
        shut_down(volume)

    def _segment_bytes(self) -> int:
        return sum(file.stat().st_size for volume in self._volumes for file in volume.path.glob("*/*/*.log"))

    def proof(self) -> str | None:
        """The broker has ended, and the unsynced files are gone."""
        for volume in self._volumes:
            unsynced = volume.path / _UNSYNCED
            if (volume.path / _SYNCED).read_bytes() != b"synced" or (unsynced.exists() and unsynced.stat().st_size):
                return None
        before, now = self._segments
        evidence = f"an unsynced file is gone from each volume; {before:,} bytes of segments before, {now:,} now"
        return None if self.broker.is_alive else evidence

    def revert(self) -> None:
        """Mount the volumes, and start the broker unless the scenario has started it."""
        if self._pausing and self.broker.is_alive:
            self.broker.kill()  # apply was interrupted
        self._pausing = False
        for volume in list(self._cut):
            self._remount(volume)
        for volume in self._volumes:
            for name in (_SYNCED, _UNSYNCED):
                (volume.path / name).unlink(missing_ok=True)
        if not self.broker.is_alive:
            self.broker.start()

    def _remount(self, volume: Volume) -> None:
        _mount_again(volume, self.broker)
        self._cut.remove(volume)


def shut_down(volume: Volume) -> None:
    """Shut the file system down as if its disk had failed: all access is EIO, and nothing more is written."""
    ioctl(volume, _SHUTDOWN, _WITHOUT_FLUSHING)


def ioctl(volume: Volume, request: int, argument: bytes | int = 0) -> None:
    """Send an ioctl request to the volume's file system."""
    root = os.open(volume.path, os.O_RDONLY)
    try:
        fcntl.ioctl(root, request, argument)
    finally:
        os.close(root)


def _mount_again(volume: Volume, broker: Broker) -> None:
    """Unmount and mount; the module's docstring says what happens if the broker keeps files open."""
    what = f"{broker}, and any other process, to release {volume}"
    try:
        await_until(volume.unmount, timeout_s=RELEASE_S, what=what)
    except AwaitTimeout:
        was_alive = broker.is_alive
        broker.journal.write("fault.undo_ends_broker", broker=broker.id, volume=str(volume))
        broker.kill()
        await_until(volume.unmount, timeout_s=_RELEASE_BY_OTHERS_S, what=what)
        volume.mount_again()
        if was_alive:
            broker.start()
    else:
        volume.mount_again()


VOLUME_FAULTS: tuple[type[VolumeFault], ...] = (
    Eio,
    EioXfs,
    ReadOnly,
    Full,
    FullTmpfs,
    NoInodes,
    NoInodesTmpfs,
)
