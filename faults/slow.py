"""A disk that is slow or stalls, but gives no error.

KIP-112 leaves these out: a log dir is good or bad, and a disk that has become a hundred times slower is a good one. So
there is nothing for the broker to notice; the question is what clients go without.

Two means, both of the kernel's own: a control group that lets only so many writes through (:class:`Slower`), and
``FIFREEZE``, which makes every write wait, to the page cache too, as a disk does whose queue is full
(:class:`Stalled`). Both need root. Without it there was nothing to be found that would hold up a broker's writes and
could be shown from outside it: ``strace --inject`` delays only the one process, by exact file name, and slows
it down as a whole; a FUSE file system would be a program of its own to trust.
"""

from __future__ import annotations

import fcntl
import os
import statistics
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import ClassVar

from faults.base import Fault
from faults.file_system import volume_of
from harness.cluster.log_dir import LogDir
from harness.cluster.spec import ClusterSettings
from harness.errors import FaultNotProven
from harness.host.control_group import SlowGroup
from harness.host.undo import FIFREEZE, FITHAW
from harness.waiting import await_until

_PATIENCE_S = 60.0
_QUICK_WITHIN_S = 30.0
# On a busy machine most of the first five writes went through at once.
_LIMITED_WITHIN_S = 10.0
# With what every dd knows (BusyBox's, which images on Alpine have, neither syncs each write nor says how long they
# took), and the time as bash tells it.
_TIMED_WRITES = """\
for ((i = 0; i < $1; i++)); do
  from=${EPOCHREALTIME//[.,]/}
  dd if=/dev/zero of="$0" bs=4096 count=1 conv=fsync,notrunc status=none || exit
  echo "$((${EPOCHREALTIME//[.,]/} - from))"
done
rm -f "$0"
"""


class SlowVolume(Fault):
    """The volume of a log dir answers late."""

    cluster: ClassVar[ClusterSettings] = {"volumes": "ext4"}
    explains = (r"Connection to node .* was disconnected|request.*timed? ?out",)

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir.broker)
        self.log_dir = log_dir
        self.volume = volume_of(log_dir)

    @property
    def target(self) -> str:
        """Such as "log-dir-1 of broker 2"."""
        return str(self.log_dir)

    def _write(self, times: int) -> list[str]:
        """The command that writes a small block to the disk so often, and prints how many microseconds each took."""
        probe = self.log_dir.path / f".jbod-probe-{uuid.uuid4().hex}"
        return ["bash", "-c", _TIMED_WRITES, str(probe), str(times)]


class Slower(SlowVolume):
    """Only so many writes a second get through to the device; a synced write to ext4 is one to three of them (the data,
    the journal, its commit). The page cache hides it from whoever doesn't wait for the disk.

    A rate and not a multiple of what this machine's disk does: under a virtual machine that varied fiftyfold within
    a second (0.7 to 35 ms for a synced write), so that "ten times" of it could neither be set nor shown.
    """

    needs = ("loop mounts", "block I/O limits")
    writes_per_s: ClassVar[int]
    timed_writes: ClassVar[int]

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)
        self._group: SlowGroup | None = None
        self._before_s = 0.0

    def apply(self) -> None:
        """Wait until a write in the broker's group is quick, so that the limit can show, then limit them.

        :raises FaultNotProven: writes stay slow
        """
        self._group = self.broker.node.slow_group(self.volume.device)
        at_most_s = self.least_s / 2
        self._before_s = await_until(
            self._write_s,
            lambda took_s: took_s <= at_most_s,
            timeout_s=_QUICK_WITHIN_S,
            what=f"a synced write to {self.log_dir} to take at most {at_most_s:.3f} s before the fault",
            failure=FaultNotProven,
        )
        self._group.limit(self.writes_per_s)

    @property
    def least_s(self) -> float:
        """Half of the seconds that the limit makes one write to the device take."""
        return 0.5 / self.writes_per_s

    def _write_s(self) -> float:
        """Seconds for one synced write as the broker's own user, in its group: the median, as where the processors have
        much to do one may take long to start.

        :raises FaultNotProven: it failed
        """
        assert self._group is not None
        done = self._group.run(self._write(self.timed_writes), _PATIENCE_S)
        if done.returncode:
            raise FaultNotProven(f"a timed write to {self.log_dir} failed: {done.stderr.strip()}")
        return statistics.median(map(int, done.stdout.split())) / 1e6

    def proof(self) -> str | None:
        """A timed write takes at least :attr:`least_s`; before, it took at most half of that.

        :raises FaultNotProven: it does not take so long
        """
        now_s = await_until(
            self._write_s,
            lambda took_s: took_s >= self.least_s,
            timeout_s=_LIMITED_WITHIN_S,
            what=f"a synced write to {self.log_dir} to take {self.least_s:.3f} s with the limit, was "
            f"{self._before_s:.3f} s",
            failure=FaultNotProven,
        )
        times = now_s / self._before_s if self._before_s else 0.0
        return f"a synced write takes {now_s:.3f} s, was {self._before_s:.3f} s: {times:,.0f} times as long"

    def revert(self) -> None:
        """No group, no limit."""
        if self._group is not None:
            self._group.remove()
            self._group = None


class Slow(Slower):
    """Five writes a second: a disk with bad sectors, or a neighbour that uses it up."""

    name = "slow"
    writes_per_s = 5
    timed_writes = 5  # the kernel lets one or two through before it begins to count


class Slower100(Slower):
    """One write a second, which makes a synced write a hundred times slower than on a hard disk (some 20 ms)."""

    name = "slower_100x"
    writes_per_s = 1
    timed_writes = 2


class Stalled(SlowVolume):
    """Nothing can be written for 5 s, then all goes through for 5 s, and again.

    Reads go on. The broker's request threads hang in the kernel, and with them what it does for other log dirs.
    """

    name = "stalled"
    needs = ("loop mounts",)
    stalls_s = 5.0
    flows_s = 5.0
    _patience_s = 1.0

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)
        self._end = threading.Event()
        self._cycle: threading.Thread | None = None
        self._token: int | None = None
        self._probes = ThreadPoolExecutor(max_workers=1)
        self._before_s = 0.0

    def apply(self) -> None:
        """Measure a write, stall the volume, and begin to go on and off."""
        began = time.monotonic()
        self._probe().result()
        self._before_s = time.monotonic() - began
        self._token = self.broker.undo_log.will("freeze", path=str(self.volume.path))
        self._freeze()
        self._cycle = threading.Thread(target=self._go_on, name="jbod-stall", daemon=True)
        self._cycle.start()

    def _freeze(self) -> None:
        self._ioctl(FIFREEZE)
        self.broker.journal.write("disk.stalled", volume=str(self.volume), for_s=self.stalls_s)

    def _go_on(self) -> None:
        while not self._end.wait(self.stalls_s):
            self._ioctl(FITHAW)
            self.broker.journal.write("disk.flows", volume=str(self.volume))
            if self._end.wait(self.flows_s):
                return
            self._freeze()

    def _probe(self) -> Future[str | None]:
        return self._probes.submit(lambda: self.broker.node.run_as_user(self._write(1)).stderr)

    def _ioctl(self, what: int) -> None:
        root = os.open(self.volume.path, os.O_RDONLY)
        try:
            fcntl.ioctl(root, what, 0)
        finally:
            os.close(root)

    def proof(self) -> str | None:
        """A write that took milliseconds has not ended after a second, or ten times as long as before."""
        patience_s = min(max(self._patience_s, 10 * self._before_s), self.stalls_s / 2)
        try:
            self._probe().result(timeout=patience_s)
        except NotYet:
            return f"a write has not ended after {patience_s:.1f} s, took {self._before_s:.3f} s before"
        return None

    def revert(self) -> None:
        """Let everything through, for good."""
        self._end.set()
        if self._cycle is not None:
            self._cycle.join()
        if self._token is not None:
            self.broker.undo_log.undo(self._token)
        self._probes.shutdown()


SLOW_FAULTS: tuple[type[SlowVolume], ...] = (Slow, Slower100, Stalled)
