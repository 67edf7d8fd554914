"""A volume: a file system of its own for a log dir, so that its disk can fail and the machine's does not.

It is a sparse image in the run's folder, mounted through a loop device, or a tmpfs of a given size. Real file systems
fail as disks do: EIO on every open file, a remount to read-only, no space, no inodes, unsynced data lost. Device-mapper
targets (dm-error, dm-flakey, dm-delay) are missing in many virtual machines and containers.

ext4 is the default: every Debian has ``mkfs.ext4``. xfs shows that a result doesn't depend on one file system. A mount
is in the undo log before it is made (:mod:`harness.host.undo`); unmounting frees the loop device.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from harness.errors import EnvironmentLacks, HarnessError
from harness.host.programs import system_program
from harness.host.undo import UndoLog, is_mounted, unmount

VolumeKind = Literal["ext4", "xfs", "tmpfs"]

# xfsprogs refuses less than 300 MB; the image is sparse, so it takes only the room of what is written.
SMALLEST_MB = {"ext4": 16, "xfs": 300, "tmpfs": 1}
# Few, so that they run out in a moment; a partition takes about ten.
INODES = 4096
_MKFS = {
    # No blocks reserved for root, so that a full disk is full for all users; no writes later in the background.
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
        """The number of its block device, ``major:minor``; a tmpfs has no disk behind that number."""
        number = self.path.stat().st_dev
        return f"{os.major(number)}:{os.minor(number)}"

    @property
    def device_name(self) -> str:
        """The name of its block device, such as ``loop3``."""
        return Path(f"/sys/dev/block/{self.device}").resolve().name

    def mkfs(self) -> subprocess.Popen[str] | None:
        """Start to format the image; None for a tmpfs, which needs no format.

        :raises EnvironmentLacks: mkfs is not installed
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
        """Write the mount into the undo log, then mount.

        :raises EnvironmentLacks: the kernel refuses
        """
        self._undo_log.will("mount", path=str(self.path))
        self.mount_again()

    def mount_again(self) -> None:
        """Mount it if it isn't mounted, for example after a power cut: the file system then replays its journal.

        :raises EnvironmentLacks: the kernel refuses
        """
        if is_mounted(self.path):
            return
        if self.kind == "tmpfs":
            options = f"size={self._size_mb}m,nr_inodes={INODES},mode=755"
            argv = ["mount", "-t", "tmpfs", "-o", options, "none", str(self.path)]
        else:
            argv = ["mount", "-t", self.kind, "-o", _OPTIONS[self.kind], str(self._image), str(self.path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentLacks(f"{self.path} can't be mounted: {done.stderr.strip()}; see jbod doctor")

    def unmount(self) -> bool:
        """Unmount it; False if a process has a file open in it, or has it mounted in a mount namespace of its own.

        While another namespace has it mounted, a new mount of the image is still the same, shut-down file system.
        """
        return (not is_mounted(self.path) or unmount(self.path)) and not self._is_in_use()

    def _is_in_use(self) -> bool:
        """Whether a loop device still has the image, as it does until the last unmount."""
        for device in Path("/sys/block").glob("loop*"):
            with suppress(OSError):  # it has no image
                if (device / "loop" / "backing_file").read_text().strip() == str(self._image.resolve()):
                    return True
        return False

    def __str__(self) -> str:
        return f"{self.path.name} ({self.kind})"


def make_volumes(volumes: Sequence[Volume]) -> None:
    """Format all volumes side by side, and mount them.

    :raises EnvironmentLacks: there is no mkfs or no loop device, or the harness is not root
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
    """Write all data of these volumes to their disks, so that a power cut loses only later writes."""
    if volumes:
        subprocess.run(["sync", "--file-system", *(str(volume.path) for volume in volumes)], check=True)
