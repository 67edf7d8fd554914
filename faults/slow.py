"""Faults of a disk that is slow or stalls, and returns no error.

KIP-112 does not cover these: a slow log dir is a good log dir. The broker has nothing to notice; the question is what
clients experience.

Both faults use means of the kernel, which need root. A control group limits the rate of writes (:class:`Slower`).
``FIFREEZE`` blocks every write, also to the page cache, like a disk with a full queue (:class:`Stalled`). Without
root, nothing delays a broker's writes in a way that can be proven from outside. ``strace --inject``
slows down the whole process, and only for exact file names. A FUSE file system would be another program to trust.
"""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import ClassVar

from faults.base import Fault
from faults.file_system import ioctl, volume_of
from harness.cluster.log_dir import LogDir
from harness.cluster.spec import ClusterSettings
from harness.errors import FaultNotProven
from harness.host.control_group import SlowGroup
from harness.host.undo import FIFREEZE, FITHAW
from harness.waiting import await_until

_WRITE_TIMEOUT_S = 60.0
_FAST_WITHIN_S = 30.0
# On a busy machine the limit did not affect most of the first five writes.
_LIMITED_WITHIN_S = 10.0
# Options that every dd has, and bash's clock: BusyBox's dd in Alpine images neither syncs each write nor reports times.
_TIMED_WRITES = """\
for ((i = 0; i < $1; i++)); do
  from=${EPOCHREALTIME//[.,]/}
  dd if=/dev/zero of="$0" bs=4096 count=1 conv=fsync,notrunc status=none || exit
  echo "$((${EPOCHREALTIME//[.,]/} - from))"
done
rm -f "$0"
"""


class SlowVolume(Fault):
    """A fault that delays the volume of a log dir."""

    cluster: ClassVar[ClusterSettings] = {"volumes": "ext4"}
    explains = (r"Connection to node .* was disconnected|request.*timed? ?out",)

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir.broker)
        self.log_dir = log_dir
        self.volume = volume_of(log_dir)

    @property
    def target(self) -> str:
        """The log dir, such as "log-dir-1 of broker 2"."""
        return str(self.log_dir)

    def _write(self, times: int) -> list[str]:
        """The command that writes and syncs 4 KiB ``times`` times, and prints the microseconds that each took."""
        probe = self.log_dir.path / f".jbod-probe-{uuid.uuid4().hex}"
        return ["bash", "-c", _TIMED_WRITES, str(probe), str(times)]


class Slower(SlowVolume):
    """Limits the writes to the device to a rate; the page cache hides this from writers that do not sync.

    A synced write to ext4 takes one to three device writes (the data, the journal, its commit). The limit is a rate,
    and not a multiple of the disk's time: on a virtual machine that time varied fiftyfold within a second (0.7 to 35 ms
    for a synced write), so "ten times slower" could be neither set nor proven.
    """

    needs = ("loop mounts", "block I/O limits")
    writes_per_s: ClassVar[int]
    timed_writes: ClassVar[int]

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)
        self._group: SlowGroup | None = None
        self._before_s = 0.0

    def apply(self) -> None:
        """Wait until a write in the broker's group is fast, so that the limit can show, then limit the rate.

        :raises FaultNotProven: writes stay slow
        """
        self._group = self.broker.node.slow_group(self.volume.device)
        at_most_s = self.least_s / 2
        self._before_s = await_until(
            self._write_s,
            lambda took_s: took_s <= at_most_s,
            timeout_s=_FAST_WITHIN_S,
            what=f"a synced write to {self.log_dir} to take at most {at_most_s:.3f} s before the fault",
            failure=FaultNotProven,
            for_kafka=False,
        )
        self._group.limit(self.writes_per_s)

    @property
    def least_s(self) -> float:
        """Half of the seconds that one device write takes under the limit."""
        return 0.5 / self.writes_per_s

    def _write_s(self) -> float:
        """Median seconds of a synced write by the broker's own user in its group; one alone may wait for a CPU.

        :raises FaultNotProven: the write failed
        """
        assert self._group is not None
        done = self._group.run(self._write(self.timed_writes), _WRITE_TIMEOUT_S)
        if done.returncode:
            raise FaultNotProven(f"a timed write to {self.log_dir} failed: {done.stderr.strip()}")
        return statistics.median(map(int, done.stdout.split())) / 1e6

    def proof(self) -> str | None:
        """A timed write takes at least :attr:`least_s`; before, it took at most half of that.

        :raises FaultNotProven: it takes less
        """
        now_s = await_until(
            self._write_s,
            lambda took_s: took_s >= self.least_s,
            timeout_s=_LIMITED_WITHIN_S,
            what=f"a synced write to {self.log_dir} to take {self.least_s:.3f} s with the limit, was "
            f"{self._before_s:.3f} s",
            failure=FaultNotProven,
            for_kafka=False,
        )
        times = now_s / self._before_s if self._before_s else 0.0
        return f"a synced write takes {now_s:.3f} s, was {self._before_s:.3f} s: {times:,.0f} times as long"

    def revert(self) -> None:
        """Remove the group, and so the limit."""
        if self._group is not None:
            self._group.remove()
            self._group = None


class Slow(Slower):
    """Five writes a second, like a disk with bad sectors or with a busy neighbour."""

    name = "slow"
    writes_per_s = 5
    timed_writes = 5  # the kernel does not limit the first one or two


class Slower100(Slower):
    """One write a second: a synced write takes a hundred times as long as on a hard disk (about 20 ms)."""

    name = "slower_100x"
    writes_per_s = 1
    timed_writes = 2


class Stalled(SlowVolume):
    """Blocks all writes for 5 s, lets them through for 5 s, and so on.

    Reads work. The broker's request threads block in the kernel, so requests for its other log dirs wait too.
    """

    name = "stalled"
    needs = ("loop mounts",)
    stalls_s = 5.0
    flows_s = 5.0

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)
        self._end = threading.Event()
        self._cycle: threading.Thread | None = None
        self._token: int | None = None
        self._probes = ThreadPoolExecutor(max_workers=1)
        self._before_s = 0.0

    def apply(self) -> None:
        """Time a write, block the volume, and start the cycle."""
        began = time.monotonic()
        self._probe().result()
        self._before_s = time.monotonic() - began
        self._token = self.broker.undo_log.will("freeze", path=str(self.volume.path))
        self._freeze()
        self._cycle = threading.Thread(target=self._run_cycle, name="jbod-stall", daemon=True)
        self._cycle.start()

    def _freeze(self) -> None:
        ioctl(self.volume, FIFREEZE)
        self.broker.journal.write("disk.stalled", volume=str(self.volume), for_s=self.stalls_s)

    def _run_cycle(self) -> None:
        while not self._end.wait(self.stalls_s):
            ioctl(self.volume, FITHAW)
            self.broker.journal.write("disk.flows", volume=str(self.volume))
            if self._end.wait(self.flows_s):
                return
            self._freeze()

    def _probe(self) -> Future[str | None]:
        return self._probes.submit(lambda: self.broker.node.run_as_user(self._write(1)).stderr)

    def proof(self) -> str | None:
        """A write has not ended after a second, or after ten times as long as before."""
        timeout_s = min(max(1.0, 10 * self._before_s), self.stalls_s / 2)
        try:
            self._probe().result(timeout=timeout_s)
        except NotYet:
            return f"a write has not ended after {timeout_s:.1f} s, took {self._before_s:.3f} s before"
        return None

    def revert(self) -> None:
        """Unblock the volume and end the cycle."""
        self._end.set()
        if self._cycle is not None:
            self._cycle.join()
        if self._token is not None:
            self.broker.undo_log.undo(self._token)
        self._probes.shutdown()


SLOW_FAULTS: tuple[type[SlowVolume], ...] = (Slow, Slower100, Stalled)
