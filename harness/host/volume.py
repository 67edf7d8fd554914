"""A volume: a file system of its own under a log dir, so that a disk can fail without the machine's failing.

A sparse image in the run's folder, formatted and mounted through a loop device; or a tmpfs of a given size. Only real
file systems fail the way that disks do: EIO on every open file at once, a remount to read-only by the kernel, no space,
no inodes, unsynced data gone. Device-mapper targets (dm-error, dm-flakey, dm-delay) would do more, but many kernels of
virtual machines and containers don't have them, and all that is wanted here can be had without.

ext4 by default, because ``mkfs.ext4`` is on every Debian and because it can do all of it; xfs, where its tools are
installed, shows that nothing hangs on one file system's habits. A mount is written into the undo log before it is made
(:mod:`harness.host.undo`), and mounts through ``mount -o loop`` give their loop device back with the unmount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from harness.errors import EnvironmentLacks, HarnessError
from harness.host.system_path import system_program
from harness.host.undo import UndoLog, is_mounted, unmount

VolumeKind = Literal["ext4", "xfs", "tmpfs"]

# xfsprogs refuses less than 300 MB; the image is sparse, and what is never written takes no room.
SMALLEST_MB = {"ext4": 16, "xfs": 300, "tmpfs": 1}
# So few that they can run out in a moment; a partition takes about ten.
INODES = 4096
_MKFS = {
    # No blocks kept back for root (a full disk must be full for everybody), nothing written later in the background.
    "ext4": ["-q", "-F", "-m", "0", "-N", str(INODES), "-E", "lazy_itable_init=0,lazy_journal_init=1,nodiscard"],
    "xfs": ["-q", "-f", "-K"],
}
_OPTIONS = {"ext4": "loop,noatime,errors=remount-ro", "xfs": "loop,noatime"}
_MKFS_S = 30.0


class Volume:
    """One file system, mounted at :attr:`path`; made by :func:`make_volumes`."""

    def __init__(self, path: Path, *, kind: VolumeKind, size_mb: int, undo_log: UndoLog) -> None:
        if size_mb < SMALLEST_MB[kind]:
            raise ValueError(f"a volume of {size_mb} MB: {kind} needs at least {SMALLEST_MB[kind]} MB")
        self.path = path
        self.kind = kind
        self._image = path.with_name(f"{path.name}.image")
        self._size_mb = size_mb
        self._undo_log = undo_log

    @property
    def device(self) -> str:
        """Its block device's number, ``major:minor``; a tmpfs's has no disk behind it."""
        number = self.path.stat().st_dev
        return f"{os.major(number)}:{os.minor(number)}"

    @property
    def device_name(self) -> str:
        """Its block device's name, such as ``loop3``."""
        return Path(f"/sys/dev/block/{self.device}").resolve().name

    def mkfs(self) -> subprocess.Popen[str] | None:
        """Begin to format the image; None for a tmpfs, which needs none.

        :raises EnvironmentLacks: the program for it is not installed
        """
        self.path.mkdir()
        if self.kind == "tmpfs":
            return None
        program = system_program(f"mkfs.{self.kind}")
        if program is None:
            package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[self.kind]
            raise EnvironmentLacks(f"mkfs.{self.kind} is not on the PATH: apt-get install {package}")
        with self._image.open("wb") as image:
            image.truncate(self._size_mb << 20)
        argv = [program, *_MKFS[self.kind], str(self._image)]
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def mount(self) -> None:
        """Mount it; written into the undo log before.

        :raises EnvironmentLacks: the kernel refuses
        """
        self._undo_log.will("mount", path=str(self.path))
        self._mount()

    def _mount(self) -> None:
        if self.kind == "tmpfs":
            options = f"size={self._size_mb}m,nr_inodes={INODES},mode=755"
            argv = ["mount", "-t", "tmpfs", "-o", options, "none", str(self.path)]
        else:
            argv = ["mount", "-t", self.kind, "-o", _OPTIONS[self.kind], str(self._image), str(self.path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentLacks(f"{self.path} can't be mounted: {done.stderr.strip()}; see jbod doctor")

    def unmount(self) -> bool:
        """Unmount it; False where somebody has a file open in it, or has it mounted too.

        Whoever is given a mount namespace of their own takes along what is mounted then, and while they have it the
        kernel, asked to mount the image again, hands out the file system as it was: shut down.
        """
        return (not is_mounted(self.path) or unmount(self.path)) and not self._is_in_use()

    def _is_in_use(self) -> bool:
        """Whether a loop device has the image, which gives it back with the last of its mounts."""
        for device in Path("/sys/block").glob("loop*"):
            with suppress(OSError):  # it has none, or no more
                if (device / "loop" / "backing_file").read_text().strip() == str(self._image.resolve()):
                    return True
        return False

    def mount_again(self) -> None:
        """Mount it where it isn't mounted, as after the machine has come back: the journal is replayed.

        :raises EnvironmentLacks: the kernel refuses
        """
        if not is_mounted(self.path):
            self._mount()

    def __str__(self) -> str:
        return f"{self.path.name} ({self.kind})"


def make_volumes(volumes: Sequence[Volume]) -> None:
    """Format all side by side and mount them.

    :raises EnvironmentLacks: no program, no loop device, or not root
    :raises HarnessError: formatting failed
    """
    if volumes and os.geteuid() != 0:
        raise EnvironmentLacks("log dirs on volumes of their own need root, who may mount them; see jbod doctor")
    formatting = [(volume, volume.mkfs()) for volume in volumes]
    for volume, process in formatting:
        if process is not None:
            with process:
                _, said = process.communicate(timeout=_MKFS_S)
            if process.returncode:
                raise HarnessError(f"{volume} can't be formatted: {said.strip()}")
        volume.mount()


def sync(volumes: Sequence[Volume]) -> None:
    """Everything written on them so far is on the disk: a power cut takes only what comes later."""
    if volumes:
        subprocess.run(["sync", "--file-system", *(str(volume.path) for volume in volumes)], check=True)
