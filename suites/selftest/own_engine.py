"""A second Docker engine, which a test may kill, with a folder and a network namespace of its own.

An engine that starts replaces the packet filter's chains, which breaks the published ports of any other engine in the
same network. A command that uses a port of this engine must run in its network namespace, too.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from functools import partial
from pathlib import Path

import psutil

from harness.errors import HarnessError
from harness.host.marked_processes import MARK, marked_processes
from harness.host.undo import is_mounted, unmount
from harness.waiting import await_until

_START_S = 60.0


class OwnEngine:
    """A dockerd that keeps all its files in one folder; :meth:`start` starts it.

    :ivar address: for ``DOCKER_HOST``
    """

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self._folder = folder
        self._mark = f"engine-{secrets.token_hex(3)}"
        self._environment = os.environ | {MARK: self._mark}
        self._network = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], env=self._environment)
        network = Path(f"/proc/{self._network.pid}/ns/net")
        ours = Path("/proc/self/ns/net").readlink()
        await_until(lambda: network.readlink() != ours, timeout_s=5, what="a network of its own")
        subprocess.run([*self.inside, "ip", "link", "set", "lo", "up"], check=True)
        self._dockerd: subprocess.Popen[bytes] | None = None

    @property
    def inside(self) -> list[str]:
        """The prefix of a command that is to run in the engine's network."""
        return ["nsenter", f"--net=/proc/{self._network.pid}/ns/net"]

    def start(self) -> None:
        """Start dockerd and wait until it answers."""
        command = ["dockerd", "--bridge", "none", "-H", self.address, "-p", str(self._folder / "pid")]
        command += ["--data-root", str(self._folder / "root"), "--exec-root", str(self._folder / "exec")]
        log = self._folder / "log"
        with log.open("ab") as output:
            self._dockerd = subprocess.Popen(
                [*self.inside, *command], env=self._environment, stdout=output, stderr=output
            )

        def check_runs() -> None:
            assert self._dockerd is not None
            if self._dockerd.poll() is not None:
                raise HarnessError(f"dockerd ended: {log.read_text()[-500:]}")

        await_until(
            lambda: self.docker("info").returncode == 0, timeout_s=_START_S, what="dockerd to answer", watch=check_runs
        )

    def kill(self) -> None:
        """Kill dockerd and containerd by SIGKILL, as the kernel does when memory is short; containers go on."""
        if self._dockerd is None:
            return
        self._dockerd.kill()
        self._dockerd.wait()
        containerd = self._folder / "exec" / "containerd" / "containerd.pid"
        if containerd.exists():
            # A dockerd that finds a containerd that is just ending, or a zombie, starts none and waits in vain.
            pid = int(containerd.read_text())
            await_until(lambda: _has_ended(pid), timeout_s=_START_S, what="containerd to end with dockerd")
            containerd.unlink()

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a docker command on this engine."""
        return subprocess.run(
            ["docker", "-H", self.address, *arguments], capture_output=True, text=True, timeout=_START_S, check=False
        )

    def take_image(self, name: str) -> None:
        """Copy an image from the machine's engine."""
        with subprocess.Popen(["docker", "save", name], stdout=subprocess.PIPE) as saving:
            subprocess.run(["docker", "-H", self.address, "load"], stdin=saving.stdout, check=True, capture_output=True)

    def remove(self) -> None:
        """End the engine and all that it started, in any state, and remove its folder."""
        self.kill()
        killed = [*marked_processes(self._mark)]
        for process in killed:
            process.kill()
        self._network.wait()
        for process in killed:
            await_until(partial(_has_ended, process.pid), timeout_s=_START_S, what=f"process {process.pid} to end")
        mounted = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
        for path in sorted((Path(each) for each in mounted if each.startswith(f"{self._folder}/")), reverse=True):
            await_until(partial(_unmounted, path), timeout_s=_START_S, what=f"{path} to be unmounted, which is busy")
        shutil.rmtree(self._folder)


def _unmounted(path: Path) -> bool:
    return unmount(path) or not is_mounted(path)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
