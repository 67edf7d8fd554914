"""The probes of the machine's abilities: one for each thing that it can do or can't.

A probe tries the thing and leaves nothing behind: mounts and networks are made in namespaces that end with the probe,
files in a temporary folder. Probes run side by side. A program that a probe runs is killed after :data:`PROBE_S`; the
ability then counts as absent.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.host.broker_user import broker_user
from harness.host.cache import cache_path
from harness.host.control_group import controller
from harness.host.java import HOW_TO_GET, java_command, java_version, javac
from harness.host.limits import OPEN_FILES, UNLIMITED, open_files
from harness.host.programs import run_to_end, system_program
from harness.host.room import memory_left
from harness.host.scratch import scratch

# Kafka 4.x (KIP-1013) and pyspark 4 need 17. Kafka 3.x runs on 11, but pyspark runs beside every cluster.
LEAST_JAVA = 17
# What the packages of Allure need (reports/assets/package-lock.json); Debian 12 has 18.
LEAST_NODE = (20, 19)
# Ample: all probes together take about a second on two cores.
PROBE_S = 15.0
# Three brokers and a controller or ZooKeeper at 256 MB of heap each (about 450 MB resident); Spark with its workers.
MEMORY_BYTES = 3 << 30
# Kafka from Maven (60 MB each), Spark's connector, and the data of a run.
DISK_BYTES = 2 << 30
# A base with Java (400 MB), an image for each Kafka build (100 MB, twice that while it is made), and the volumes of
# clusters by hand.
ENGINE_DISK_BYTES = 2 << 30

_ROOT = Path("/")

Seen = tuple[bool, str]
"""Whether the ability is there, and what the probe saw, for people."""


@dataclass(frozen=True)
class Probe:
    """A probe, and the description of its ability (:class:`harness.host.abilities.Ability`).

    :ivar look: raises JbodError or OSError where the ability is absent
    :ivar as_root: without root the ability is absent, and ``look`` is not called
    :ivar asks_docker: ``look`` loads Docker's SDK
    """

    look: Callable[[], Seen]
    needed_for: str
    fix: str
    required: bool = False
    as_root: bool = False
    asks_docker: bool = False


PROBES: dict[str, Probe] = {}
"""The probes by their abilities' names, in the order in which ``jbod doctor`` shows them."""


def _probe(
    name: str, *, needed_for: str, fix: str, required: bool = False, as_root: bool = False, asks_docker: bool = False
) -> Callable[[Callable[[], Seen]], None]:
    """Register the decorated function as the probe of this ability."""

    def enter(look: Callable[[], Seen]) -> None:
        PROBES[name] = Probe(look, needed_for, fix, required, as_root, asks_docker)

    return enter


def _run(argv: Sequence[str], *, cwd: Path = _ROOT) -> tuple[int, str]:
    """A program's exit status and one line of its output: the first if it succeeded, the last if it failed."""
    try:
        status, lines = run_to_end(argv, cwd=cwd, timeout_s=PROBE_S)
    except FileNotFoundError:
        return 127, f"{argv[0]} is not on the PATH"
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} did not answer within {PROBE_S:.0f} s"
    return status, lines[-1 if status else 0] if lines else ""


def _works(argv: Sequence[str], *, yes: str) -> Seen:
    status, line = _run(argv)
    return (True, yes) if status == 0 else (False, line or f"{argv[0]} ended with status {status}")


def _program(name: str) -> Seen:
    """Whether a program can be run, and the first line that it prints for ``--version``."""
    path = shutil.which(name)
    if path is None:
        return False, "not on the PATH"
    status, line = _run([path, "--version"])
    return (True, f"{line} ({path})") if status == 0 else (False, f"{path}: {line}")


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


@_probe("python", needed_for="everything", fix="install Python 3.11 or later and make a new venv", required=True)
def _python() -> Seen:
    return sys.version_info >= (3, 11), f"{sys.version.split()[0]} ({sys.executable})"


@_probe(
    "java",
    needed_for=f"everything: brokers of Kafka 4.x, and Spark, need Java {LEAST_JAVA}",
    fix=f"{HOW_TO_GET}, or set JAVA_HOME",
    required=True,
)
def _java() -> Seen:
    """As the brokers' user, who may not get to a Java in another user's home."""
    major, version = java_version(broker_user().command())
    return major >= LEAST_JAVA, f"{version} ({java_command()[0]})"


@_probe(
    "javac",
    needed_for="brokers whose threads can be held, and mutants",
    fix="apt-get install openjdk-17-jdk-headless, or set JAVA_HOME to a JDK",
)
def _javac() -> Seen:
    return True, javac()


@_probe(
    "broker user",
    needed_for="every fault of permissions: root is not stopped by chmod",
    fix="apt-get install util-linux; in a container give it CAP_SETUID and CAP_SETGID, or be an ordinary user",
    required=True,
)
def _user() -> Seen:
    user = broker_user()
    if not (user.bare or user.drop):
        return True, f"not root: brokers run as you, {user.name}"
    who = "root of a user namespace" if user.bare else "root"
    return _works([*user.command(), "true"], yes=f"{who}: brokers run as {user.name}")


@_probe(
    "setpriv",
    needed_for="dropping privileges, and brokers that end with the harness",
    fix="apt-get install util-linux",
    required=True,
)
def _setpriv() -> Seen:
    return _program("setpriv")


@_probe(
    "maven",
    needed_for="builds named by version, and Spark's Kafka connector, where the cache doesn't have them yet",
    fix="apt-get install maven",
)
def _maven() -> Seen:
    return _program("mvn")


@_probe(
    "memory",
    needed_for="three brokers beside Spark",
    fix=f"end other programs or use a machine with {_gigabytes(MEMORY_BYTES)} to spare",
)
def _memory() -> Seen:
    available, where = memory_left()
    return available >= MEMORY_BYTES, f"{_gigabytes(available)} {where}"


@_probe(
    "open files",
    needed_for="a broker's segments: with fewer, a broker that runs out of them is not to blame",
    fix=f"raise the hard limit of open files to {OPEN_FILES} (LimitNOFILE of a service, or /etc/security/limits.conf)",
)
def _open_files() -> Seen:
    allowed = open_files()
    return allowed >= OPEN_FILES, "no limit" if allowed == UNLIMITED else f"{allowed} may be open"


def _work_dir() -> Path:
    return Path(os.environ.get("JBOD_WORK_DIR") or tempfile.gettempdir()).absolute()


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _writable(path: Path) -> Seen:
    there = _existing(path)
    if not there.is_dir():
        return False, f"{there} is not a folder"
    # A real file: permission bits don't tell of read-only or full file systems.
    with tempfile.TemporaryFile(dir=there) as stream:
        stream.write(b"jbod")
    return True, str(path) if there == path else f"{path}, not there yet; {there} can be written"


@_probe(
    "disk",
    needed_for="the brokers' log dirs",
    fix=f"make room for {_gigabytes(DISK_BYTES)}, or set JBOD_WORK_DIR to a folder on another disk",
)
def _disk() -> Seen:
    folder = _existing(_work_dir())
    free = shutil.disk_usage(folder).free
    return free >= DISK_BYTES, f"{_gigabytes(free)} free in {folder}"


@_probe(
    "work dir",
    needed_for="the brokers' folders",
    fix="set JBOD_WORK_DIR to a folder that everybody may enter, on a file system that allows programs",
    required=True,
)
def _work_dir_works() -> Seen:
    path = _work_dir()
    writable, found = _writable(path)
    if not writable:
        return False, found
    there, user = _existing(path), broker_user()
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return False, f"{there} is mounted noexec; Kafka's compression libraries could not be loaded"
    status, _ = _run([*user.command(), "test", "-x", str(there)])
    return (True, found) if status == 0 else (False, f"{user.name} can't get into {there}")


@_probe(
    "cache",
    needed_for="keeping Kafka builds",
    fix="set JBOD_CACHE_DIR to a folder of yours that everybody may read",
    required=True,
)
def _cache() -> Seen:
    return _writable(cache_path())


# FS_IOC_SHUTDOWN of linux/fs.h, the ioctl behind `xfs_io -x -c shutdown`, known to xfs and ext4; 2: without flushing.
_SHUTDOWN = 'import fcntl, os, struct; fcntl.ioctl(os.open("m", os.O_RDONLY), 0x8004587D, struct.pack("I", 2))'
# The kernel's hook for testing errors=remount-ro.
_ERROR = """
import os
number = os.stat("m").st_dev
device = os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
open(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error", "w").write("jbod")
"""


def _on_a_loop_mount(python: str, wanted: int) -> Seen:
    """Break a small ext4, mounted at ``m``, with lines of Python; return whether a write then fails with that errno."""
    if not Path("/dev/loop-control").exists():
        return False, "no /dev/loop-control: the kernel has no loop devices, or the container was not given them"
    mkfs = system_program("mkfs.ext4")
    if mkfs is None:
        return False, "mkfs.ext4 is not on the PATH"
    with scratch("probe") as folder:
        image = folder / "image"
        with image.open("wb") as stream:
            stream.truncate(8 << 20)
        (folder / "m").mkdir()
        status, line = _run([mkfs, "-q", "-F", str(image)])
        if status:
            return False, line
        # The mount, and with it the loop device, ends with the namespace.
        script = f'mount -o loop,errors=remount-ro image m && exec "{sys.executable}" -I -S -c "$0"'
        python += '\nopen("m/file", "w")'
        _, line = _run(["unshare", "--mount", "sh", "-c", script, python], cwd=folder)
    return f"[Errno {wanted}]" in line and "m/file" in line, f"ext4: {line or 'writes still worked'}"


@_probe(
    "loop mounts",
    needed_for="log dirs on loop-mounted volumes: they fail with EIO, fill up, stall or lose power",
    fix="run as root with loop devices (docker run --privileged), and apt-get install e2fsprogs",
    as_root=True,
)
def _loop_mounts() -> Seen:
    return _on_a_loop_mount(_SHUTDOWN, errno.EIO)


@_probe(
    "file system errors",
    needed_for="log dirs that the kernel makes read-only",
    fix="run as root on Linux 4.8 or later with loop devices and a writable /sys (docker run --privileged)",
    as_root=True,
)
def _file_system_errors() -> Seen:
    return _on_a_loop_mount(_ERROR, errno.EROFS)


@_probe("xfs", needed_for="log dirs on xfs that fail with EIO", fix="apt-get install xfsprogs")
def _xfs() -> Seen:
    mkfs = system_program("mkfs.xfs")
    if mkfs is None:
        return False, "mkfs.xfs is not on the PATH"
    if "xfs" not in Path("/proc/filesystems").read_text().split() and _run(["modprobe", "-n", "xfs"])[0]:
        return False, "the kernel has no xfs"
    return True, mkfs


def _mount_tmpfs() -> list[str]:
    # Over the folder for temporary files, which exists everywhere; only the namespace sees it.
    return ["mount", "-t", "tmpfs", "-o", "size=1m", "none", tempfile.gettempdir()]


@_probe(
    "tmpfs mounts",
    needed_for="full log dirs (ENOSPC) without loop devices",
    fix="run as root (in a container with CAP_SYS_ADMIN), or: unshare --user --map-root-user --mount jbod run …",
    as_root=True,
)
def _tmpfs_mounts() -> Seen:
    return _works(["unshare", "--mount", *_mount_tmpfs()], yes="mounted one of 1 MB")


@_probe(
    "user namespaces",
    needed_for="full log dirs without root",
    fix="sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0",
)
def _user_namespaces() -> Seen:
    user = broker_user()
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    return _works([*user.command(), *own, *_mount_tmpfs()], yes=f"{user.name} mounted a tmpfs in one")


@_probe(
    "block I/O limits",
    needed_for="slow log dirs",
    fix="run as root; on cgroup v2: echo +io > /sys/fs/cgroup/cgroup.subtree_control",
    as_root=True,
)
def _block_io_limits() -> Seen:
    found = controller()
    return True, f"cgroup v{found.version}, {found.limit_file} in {found.root}"


@_probe(
    "network namespaces",
    needed_for="network faults between local brokers",
    fix="run as root, and apt-get install iproute2 iptables",
)
def _network_namespaces() -> Seen:
    if shutil.which("ip") is None:
        return False, "ip is not on the PATH"
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    tools = [name for name in ("ip", "tc", "iptables", "nft") if system_program(name)]
    return _works(["unshare", *own, "--net", "ip", "link", "set", "lo", "up"], yes=f"made one; {', '.join(tools)}")


@_probe(
    "own networks",
    needed_for="brokers that are cut off (--backend docker)",
    fix="run as root, and apt-get install iptables util-linux",
    as_root=True,
)
def _packet_filter() -> Seen:
    if shutil.which("nsenter") is None:
        return False, "nsenter is not on the PATH"
    drop = ["iptables", "--wait", "-I", "OUTPUT", "--destination", "198.18.0.1", "-j", "DROP"]
    return _works(["unshare", "--net", *drop], yes="iptables drops packets in a network namespace")


@_probe(
    "docker",
    needed_for="--backend docker",
    fix="apt-get install docker.io iptables, start dockerd, and be in the group docker",
    asks_docker=True,
)
def _docker_engine() -> Seen:
    if shutil.which("docker") is None:
        return False, "no docker on the PATH"
    from harness.host.engine import engine_version, host

    return True, f"engine {engine_version()} at {host()}"


@_probe(
    "compose",
    needed_for="--backend docker",
    fix="apt-get install docker-compose-plugin (Docker's own repository) or docker-compose-v2 (Ubuntu)",
    asks_docker=True,
)
def _compose() -> Seen:
    from harness.host.engine import compose_version

    return True, compose_version()


@_probe(
    "container image",
    needed_for="--backend docker, where no registry can be reached",
    fix="docker pull eclipse-temurin:17-jre, or apt-get install mmdebstrap && jbod image base",
    asks_docker=True,
)
def _container_image() -> Seen:
    from harness.host.engine import images_here

    here = images_here()
    return bool(here), ", ".join(here) or "none with Kafka, and none to build one on"


@_probe(
    "container disk",
    needed_for=f"--backend docker: images and volumes take {_gigabytes(ENGINE_DISK_BYTES)}",
    fix="docker system prune, or a dockerd with its --data-root on another disk",
    asks_docker=True,
)
def _container_disk() -> Seen:
    from harness.host.engine import engine_folder

    folder = engine_folder()
    if not folder.is_dir():  # an engine behind a socket that leads into a virtual machine, or another container
        return True, f"{folder}, which can't be seen from here"
    free = shutil.disk_usage(folder).free
    return free >= ENGINE_DISK_BYTES, f"{_gigabytes(free)} free in {folder}"


@_probe(
    "node",
    needed_for="Allure in the report",
    fix="Node.js with npm by NodeSource's packages, or by nvm install --lts",
)
def _node() -> Seen:
    present, found = _program("node")
    version = re.match(r"v(\d+)\.(\d+)", found)
    if not present or version is None:
        return False, found
    if (int(version[1]), int(version[2])) < LEAST_NODE:
        return False, f"{found} is older than {'.'.join(map(str, LEAST_NODE))}, which Allure needs"
    return True, found
