"""The file system under a log dir fails, as it does when a disk does: errors on every file, read-only, full, power cut.

These need log dirs on volumes of their own (:mod:`harness.host.volume`), which a case with such a fault gets. What
each one does is what the kernel itself does in earnest: ``FS_IOC_SHUTDOWN`` is what ext4 and xfs do by themselves when
their journal can't be written; ``trigger_fs_error`` is the kernel's own hook for testing ``errors=remount-ro`` (``mount
-o remount,ro`` is no such thing: it is refused while a file is open for writing, and brokers have many).

A shut-down file system comes back only by being mounted again, which can't be done under open files. ``undo`` waits for
the broker to let go of the volume, as Kafka does once it has taken a dir offline; a broker that doesn't is killed and
started again, as an operator would have to, and the journal says so.
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

# linux/fs.h: FS_IOC_SHUTDOWN, known to ext4 and xfs; 2: without writing the journal first.
_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING = struct.pack("I", 2)
RELEASE_S = 5.0
"""Kafka closes the files of a log dir when it takes it offline, which it has noticed within a second."""
_RELEASE_BY_OTHERS_S = 5.0
"""Once the broker is dead: whoever starts in a mount namespace of their own has the volume too, for a while."""
_TIMES = 5
"""A broker lets go of files once; each look takes longer than that does."""


def volume_of(log_dir: LogDir) -> Volume:
    """The volume that a log dir lies on.

    :raises UsageError: it has none of its own
    """
    if log_dir.volume is None:
        raise UsageError(f'{log_dir} lies on no volume of its own; give the cluster volumes="ext4"')
    return log_dir.volume


class VolumeFault(LogDirFault):
    """A way in which the file system of a log dir fails."""

    needs: ClassVar[tuple[str, ...]] = ("loop mounts",)
    cluster: ClassVar[ClusterSettings] = {"volumes": "ext4"}

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)
        self.volume = volume_of(log_dir)


class _Broken(VolumeFault):
    """It stays broken until it is mounted again."""

    undo_unmounts = True

    _broken = False

    def apply(self) -> None:
        """Break it for good; the undo log knows that it is mounted, which is all that has to be taken away."""
        self._broken = True
        self._break_file_system()

    @abstractmethod
    def _break_file_system(self) -> None: ...

    def revert(self) -> None:
        """Mount it again, once the broker has let go of it."""
        super().revert()
        if self._broken:
            _mount_again(self.volume, self.broker)
            self._broken = False


class Eio(_Broken):
    """Every operation fails with EIO at once, on open files too; what was not synced is gone when it comes back."""

    name = "eio"
    expected_error = "Input/output error"

    def _break_file_system(self) -> None:
        shut_down(self.volume)


class EioXfs(Eio):
    """The same on xfs."""

    name = "eio_xfs"
    needs = ("loop mounts", "xfs")
    cluster: ClassVar[ClusterSettings] = {"volumes": "xfs"}


class ReadOnly(_Broken):
    """The kernel has seen an error and makes the file system read-only (``errors=remount-ro``, Debian's default)."""

    name = "read_only"
    needs = ("loop mounts", "file system errors")
    expected_error = "Read-only file system"

    def _break_file_system(self) -> None:
        Path(f"/sys/fs/ext4/{self.volume.device_name}/trigger_fs_error").write_text("jbod")


class _Exhausted(VolumeFault):
    """Somebody else's files use up the volume; they go, and there is room again."""

    expected_error = "No space left on device"

    @property
    def _filler(self) -> Path:
        return self.volume.path / "filler"

    def apply(self) -> None:
        """Use up all there is, again until nothing more comes free: a broker renames files over each other."""
        self._will("tree", path=str(self._filler))
        self._filler.mkdir()
        while self._use_up(self._filler):
            let_pass(0.1)

    def proof(self) -> str | None:
        """The error that the broker's own user gets, once what comes free at the end is used up too.

        A broker that takes the log dir offline closes files that it had deleted, and only then are these gone.
        """
        error = super().proof()
        for _ in range(_TIMES if self._tokens else 0):
            if error is not None:
                break
            used = self._use_up(self._filler)
            self.broker.journal.write("volume.used_up_again", log_dir=str(self.log_dir), used=used)
            error = super().proof()
        return error

    @abstractmethod
    def _use_up(self, filler: Path) -> int:
        """Use up all there is at this moment; how much that was."""


class Full(_Exhausted):
    """No block is left: ENOSPC for every write that needs one."""

    name = "full"

    def _use_up(self, filler: Path) -> int:
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
    """The same on a tmpfs, for machines without loop devices."""

    name = "full_tmpfs"
    needs = ("tmpfs mounts",)
    cluster: ClassVar[ClusterSettings] = {"volumes": "tmpfs"}


class NearlyFull(FullTmpfs):
    """Hardly any room is left, so that whoever writes more than that is the one who meets the end of it.

    What shows it is the room that the file system says it has, on a tmpfs to the page; nobody is to meet the end yet.
    """

    name = "nearly_full_tmpfs"
    expected_error = "bytes free"
    ROOM = 128 << 10

    def _use_up(self, filler: Path) -> int:
        over = self._room() - self.ROOM
        if over <= 0:
            return 0
        with (filler / "blocks").open("ab") as file:
            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), over)
        return over

    def proof(self) -> str | None:
        """There is room for a little, and for no more."""
        room = self._room()
        return f"{room} {self.expected_error}" if 0 < room <= self.ROOM and self.write_error() is None else None

    def _room(self) -> int:
        state = os.statvfs(self.volume.path)
        return state.f_bavail * state.f_frsize


class NoInodes(_Exhausted):
    """No inode is left: ENOSPC for every new file, though there are blocks.

    A broker that was killed amid a checkpoint leaves its ``.tmp``, which needs no new inode when it is written again,
    and gives one back at each rename: with it, a full disk would never be noticed. So what a dead broker left goes.
    """

    name = "no_inodes"

    def apply(self) -> None:
        """Use up all there is; see above for what goes first."""
        if not self.broker.is_alive:
            for left in self.log_dir.path.rglob("*-checkpoint.tmp"):
                left.unlink()
        super().apply()

    def _use_up(self, filler: Path) -> int:
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
        """No new file, and yet room for blocks."""
        error, free = super().proof(), os.statvfs(self.volume.path).f_bavail
        return f"{error}; {free} blocks free" if error and free else None


class NoInodesTmpfs(NoInodes):
    """The same on a tmpfs."""

    name = "no_inodes_tmpfs"
    needs = ("tmpfs mounts",)
    cluster: ClassVar[ClusterSettings] = {"volumes": "tmpfs"}


class PowerCut(BrokerEnded):
    """The power of the broker's machine fails: it ends at once, and what was not synced on any of its volumes is gone.

    The disks come back by themselves, the broker when it is started. It is paused while its volumes are shut down, so
    that it sees no error; then killed. What shows it: of two files that the harness wrote into each volume just before,
    only the synced one is there.
    """

    name = "power_cut"
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
            _synced(volume).write_bytes(b"synced")
            with _synced(volume).open("rb") as file:
                os.fsync(file.fileno())
            _unsynced(volume).write_bytes(b"not synced")
        self._pausing = True
        self.broker.pause()
        before = self._segment_bytes()
        for volume in self._volumes:
            self._cut.append(volume)
            self._cut_off(volume)
        self.broker.kill()
        self._pausing = False
        for volume in self._volumes:
            self._bring_back(volume)
        self._segments = (before, self._segment_bytes())

    @property
    def lost_bytes(self) -> int:
        """How much of the broker's segments was not synced, and is gone."""
        before, now = self._segments
        return before - now

    def _cut_off(self, volume: Volume) -> None:
        shut_down(volume)

    def _segment_bytes(self) -> int:
        return sum(file.stat().st_size for volume in self._volumes for file in volume.path.glob("*/*/*.log"))

    def proof(self) -> str | None:
        """The broker is gone, and so is what was not synced."""
        for volume in self._volumes:
            unsynced = _unsynced(volume)
            if _synced(volume).read_bytes() != b"synced" or (unsynced.exists() and unsynced.stat().st_size):
                return None
        before, now = self._segments
        told = f"an unsynced file is gone from each volume; {before:,} bytes of segments before, {now:,} now"
        return None if self.broker.is_alive else told

    def revert(self) -> None:
        """The disks are there again and the broker is started; one that the scenario has started is left alone."""
        if self._pausing and self.broker.is_alive:
            self.broker.kill()  # cut short
        self._pausing = False
        for volume in list(self._cut):
            self._bring_back(volume)
        for volume in self._volumes:
            _synced(volume).unlink(missing_ok=True)
            _unsynced(volume).unlink(missing_ok=True)
        if not self.broker.is_alive:
            self.broker.start()

    def _bring_back(self, volume: Volume) -> None:
        _mount_again(volume, self.broker)
        self._cut.remove(volume)


def shut_down(volume: Volume) -> None:
    """The file system ends as if its disk had: EIO for everything, nothing more is written, the journal neither."""
    root = os.open(volume.path, os.O_RDONLY)
    try:
        fcntl.ioctl(root, _SHUTDOWN, _WITHOUT_FLUSHING)
    finally:
        os.close(root)


def _mount_again(volume: Volume, broker: Broker) -> None:
    """Unmount and mount; see the module's text for the broker that holds on to it."""
    what = f"{broker} to let go of {volume}, and whoever else has it mounted"
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


def _synced(volume: Volume) -> Path:
    return volume.path / "jbod-synced"


def _unsynced(volume: Volume) -> Path:
    return volume.path / "jbod-unsynced"


VOLUME_FAULTS: tuple[type[VolumeFault], ...] = (
    Eio,
    EioXfs,
    ReadOnly,
    Full,
    FullTmpfs,
    NoInodes,
    NoInodesTmpfs,
)
