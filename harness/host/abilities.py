"""What this machine can do, found out by doing it.

Each ability is probed for real and leaves nothing behind: mounts and network are tried inside namespaces of their own
that end with the probe, files lie in a temporary folder. Reading kernel versions or group memberships was not chosen:
containers, security modules and mount options make such guesses wrong. The probes run side by side and end within
:data:`PROBE_S` each; one that doesn't answer in time is an ability that isn't there.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from harness.errors import JbodError, UsageError
from harness.host.broker_user import broker_user
from harness.host.cache import cache_path
from harness.host.control_group import controller
from harness.host.java import HOW_TO_GET, java_command, java_version
from harness.host.scratch import scratch
from harness.host.system_path import system_program

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Kafka 3.x alone would do with 11; pyspark 4, beside every cluster, wants 17 as Kafka 4.x does (KIP-1013).
LEAST_JAVA = 17
# What the packages of Allure want (reports/assets/package-lock.json); Debian 12 has 18.
LEAST_NODE = (20, 19)
# Each is far below this where it works (all of them together take about a second on two cores).
PROBE_S = 15.0
# Three brokers and a controller or ZooKeeper at 256 MB of heap each (about 450 MB resident); Spark with its workers.
MEMORY_BYTES = 3 << 30
# Kafka from Maven (60 MB each), Spark's connector, and the data of a run.
DISK_BYTES = 2 << 30
# A base with Java (400 MB), on it an image for each Kafka build (100 MB, and as much again while it is made), and what
# clusters by hand keep in volumes.
ENGINE_DISK_BYTES = 2 << 30

# FS_IOC_SHUTDOWN of linux/fs.h, the ioctl behind `xfs_io -x -c shutdown`, known to xfs and ext4; 2: without flushing.
_SHUTDOWN = """
import fcntl, os, struct
fcntl.ioctl(os.open("m", os.O_RDONLY), 0x8004587D, struct.pack("I", 2))
try:
    open("m/file", "w")
except OSError as error:
    print(error.strerror)
"""

# The kernel's hook for testing errors=remount-ro.
_ERROR = """
import os
number = os.stat("m").st_dev
device = os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
try:
    open(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error", "w").write("jbod")
    open("m/file", "w")
except OSError as error:
    print(error.strerror)
"""


@dataclass(frozen=True, kw_only=True)
class Ability:
    """One thing that the machine can do, or can't.

    :ivar name: short and stable, such as "loop mounts"; a fault names the abilities that it needs by it
    :ivar found: what the probe saw, for people
    :ivar needed_for: what doesn't work without it
    :ivar fix: a command or a sentence that brings it
    :ivar required: nothing at all runs without it
    """

    name: str
    present: bool
    found: str
    needed_for: str
    fix: str
    required: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.found} ({self.fix})"

    def to_json(self) -> dict[str, object]:
        """As ``jbod doctor --json`` prints it."""
        return asdict(self)


Seen = tuple[bool, str]


@dataclass(frozen=True, kw_only=True)
class _Probe:
    look: Callable[[], Seen]
    needed_for: str
    fix: str
    required: bool = False


def abilities(names: Collection[str] | None = None) -> tuple[Ability, ...]:
    """Abilities, probed side by side; about a second for all.

    :param names: only these, and those without which nothing runs
    """
    wanted = [name for name, probe in _PROBES.items() if names is None or name in names or probe.required]
    if _OF_CONTAINERS.intersection(wanted):
        import harness.host.engine  # noqa: F401 - before threads do: imported by two at once, Docker's SDK may deadlock
    with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
        return tuple(pool.map(ability, wanted))


_OF_CONTAINERS = frozenset({"docker", "compose", "container image", "container disk"})


@functools.cache
def ability(name: str) -> Ability:
    """One ability, probed when first asked for and then remembered.

    :raises UsageError: there is no ability of that name
    """
    probe = _PROBES.get(name)
    if probe is None:
        raise UsageError(f"there is no ability {name!r}; there are: {', '.join(_PROBES)}")
    try:
        present, found = probe.look()
    except JbodError as error:
        present, found = False, str(error)
    except OSError as error:
        present, found = False, f"{error.strerror}: {error.filename}"
    return Ability(
        name=name,
        present=present,
        found=found,
        needed_for=probe.needed_for,
        fix=probe.fix,
        required=probe.required,
    )


_FROM_ABOVE: dict[str, Callable[[], Seen]] = {}


def look_by(name: str, look: Callable[[], Seen]) -> None:
    """Have an ability probed by a function of an upper layer, which registers it as it is imported.

    :param look: whether the ability is there, and what was seen, for people
    """
    _FROM_ABOVE[name] = look


def doctor_json() -> dict[str, object]:
    """What ``jbod doctor --json`` prints: the abilities, and whether what everything needs is there."""
    found = abilities()
    return {
        "schema": 1,
        "able": all(each.present for each in found if each.required),
        "abilities": [each.to_json() for each in found],
    }


# --- the probes -----------------------------------------------------------------------------------------------------


def _run(argv: Sequence[str], *, cwd: Path = Path("/")) -> tuple[int, str]:
    """Run a command, end it and its children after the time allowed.

    :return: its status and a line of what it said: the first where it succeeded, the last, where programs say why
        they gave up, where it failed
    """
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        return 127, f"{argv[0]} is not on the PATH"
    with process:
        try:
            output, _ = process.communicate(timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return 124, f"{argv[0]} did not answer within {PROBE_S:.0f} s"
    lines = [line.strip() for line in _COLOUR.sub("", output).splitlines() if line.strip()] or [""]
    return process.returncode, lines[-1 if process.returncode else 0]


def _works(argv: Sequence[str], *, yes: str, cwd: Path = Path("/")) -> Seen:
    status, line = _run(argv, cwd=cwd)
    return (True, yes) if status == 0 else (False, line or f"{argv[0]} ended with status {status}")


def _program(name: str, *arguments: str) -> Seen:
    """A program and the first line that it says of its version."""
    path = shutil.which(name)
    if path is None:
        return False, "not on the PATH"
    status, line = _run([path, *arguments])
    return (True, f"{line} ({path})") if status == 0 else (False, f"{path}: {line}")


def _node() -> Seen:
    present, found = _program("node", "--version")
    version = re.match(r"v(\d+)\.(\d+)", found)
    if not present or version is None:
        return False, found
    least = ".".join(map(str, LEAST_NODE))
    is_old = tuple(map(int, version.groups())) < LEAST_NODE
    return (False, f"{found} is older than {least}, which Allure needs") if is_old else (True, found)


def _python() -> Seen:
    return sys.version_info >= (3, 11), f"{sys.version.split()[0]} ({sys.executable})"


def _java() -> Seen:
    """As the brokers' user, who may not get to a Java in somebody's home."""
    major, version = java_version(broker_user().command())
    return major >= LEAST_JAVA, f"{version} ({java_command()[0]})"


def _user() -> Seen:
    user = broker_user()
    if user.bare:
        return _works([*user.command(), "true"], yes=f"root of a user namespace: brokers run as {user.name}")
    if not user.drop:
        return True, f"not root: brokers run as you, {user.name}"
    return _works([*user.command(), "true"], yes=f"root: brokers run as {user.name}")


def _as_root(look: Callable[[], Seen]) -> Callable[[], Seen]:
    def looked() -> Seen:
        return look() if os.geteuid() == 0 else (False, "you are not root")

    return looked


def _on_a_loop_mount(python: str) -> Seen:
    """Run a few lines of Python beside a small ext4 mounted at ``m``; whether they ran, and the line that they said."""
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
        status, line = _run(["unshare", "--mount", "sh", "-c", script, python], cwd=folder)
    return status == 0, line


def _loop_mounts() -> Seen:
    ran, line = _on_a_loop_mount(_SHUTDOWN)
    return ran and line == os.strerror(errno.EIO), f"ext4, mounted and shut down: {line or 'writes still worked'}"


def _file_system_errors() -> Seen:
    ran, line = _on_a_loop_mount(_ERROR)
    return ran and line == os.strerror(errno.EROFS), f"ext4, told of an error: {line or 'writes still worked'}"


def _xfs() -> Seen:
    mkfs = system_program("mkfs.xfs")
    if mkfs is None:
        return False, "mkfs.xfs is not on the PATH"
    if "xfs" not in Path("/proc/filesystems").read_text().split() and _run(["modprobe", "-n", "xfs"])[0]:
        return False, "the kernel has no xfs"
    return True, mkfs


def _mount_tmpfs() -> list[str]:
    # Over the folder for temporary files, which is there everywhere; nobody sees it outside the namespace.
    return ["mount", "-t", "tmpfs", "-o", "size=1m", "none", tempfile.gettempdir()]


def _tmpfs_mounts() -> Seen:
    return _works(["unshare", "--mount", *_mount_tmpfs()], yes="mounted one of 1 MB")


def _user_namespaces() -> Seen:
    user = broker_user()
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    return _works([*user.command(), *own, *_mount_tmpfs()], yes=f"{user.name} mounted a tmpfs in one")


def _block_io_limits() -> Seen:
    """Make a group, see that the limit can be set in it, and remove it."""
    found = controller()
    return True, f"cgroup v{found.version}, {found.limit_file} in {found.root}"


def _network_namespaces() -> Seen:
    if shutil.which("ip") is None:
        return False, "ip is not on the PATH"
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    tools = [name for name in ("ip", "tc", "iptables", "nft") if system_program(name)]
    return _works(["unshare", *own, "--net", "ip", "link", "set", "lo", "up"], yes=f"made one; {', '.join(tools)}")


def _packet_filter() -> Seen:
    if shutil.which("nsenter") is None:
        return False, "nsenter is not on the PATH"
    drop = ["iptables", "--wait", "-I", "OUTPUT", "--destination", "198.18.0.1", "-j", "DROP"]
    return _works(["unshare", "--net", *drop], yes="iptables drops packets in a network namespace")


def _docker_engine() -> Seen:
    if shutil.which("docker") is None:
        return False, "no docker on the PATH"
    from harness.host.engine import engine_version, host  # loads the SDK, for which only containers have a use

    return True, f"engine {engine_version()} at {host()}"


def _compose() -> Seen:
    from harness.host.engine import compose_version

    return True, compose_version()


def _container_image() -> Seen:
    return _FROM_ABOVE["container image"]()


def _container_disk() -> Seen:
    from harness.host.engine import engine_folder

    folder = engine_folder()
    if not folder.is_dir():  # an engine behind a socket that leads into a virtual machine, or another container
        return True, f"{folder}, which can't be seen from here"
    free = shutil.disk_usage(folder).free
    return free >= ENGINE_DISK_BYTES, f"{_gigabytes(free)} free in {folder}"


def _memory() -> Seen:
    available, where = psutil.virtual_memory().available, "available"
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        # "max", or no such file, is no limit; a container sees its own group here.
        with suppress(OSError, ValueError):
            left = int(Path(limit).read_text()) - int(Path(usage).read_text())
            if left < available:
                available, where = left, "left in this cgroup"
    return available >= MEMORY_BYTES, f"{_gigabytes(available)} {where}"


def _disk() -> Seen:
    folder = _existing(_work_dir())
    free = shutil.disk_usage(folder).free
    return free >= DISK_BYTES, f"{_gigabytes(free)} free in {folder}"


def _cache() -> Seen:
    path = cache_path()
    return _writable(path)


def _writable(path: Path) -> Seen:
    there = _existing(path)
    if not there.is_dir():
        return False, f"{there} is no folder"
    # A real file: permission bits don't tell of read-only or full file systems.
    with tempfile.TemporaryFile(dir=there) as stream:
        stream.write(b"jbod")
    return True, str(path) if there == path else f"{path}, not there yet; {there} can be written"


def _temporary() -> Seen:
    """The brokers' folders lie here: their user must get in, and native libraries in there must load."""
    path = _work_dir()
    writable, found = _writable(path)
    if not writable:
        return False, found
    there, user = _existing(path), broker_user()
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return False, f"{there} is mounted noexec; Kafka's compression libraries could not be loaded"
    status, _ = _run([*user.command(), "test", "-x", str(there)])
    return (True, found) if status == 0 else (False, f"{user.name} can't get into {there}")


def _work_dir() -> Path:
    return Path(os.environ.get("JBOD_WORK_DIR") or tempfile.gettempdir()).absolute()


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


_PROBES = {
    "python": _Probe(
        look=_python, needed_for="everything", fix="install Python 3.11 or later and make a new venv", required=True
    ),
    "java": _Probe(
        look=_java,
        needed_for=f"everything: brokers of Kafka 4.x, and Spark, need Java {LEAST_JAVA}",
        fix=f"{HOW_TO_GET}, or set JAVA_HOME",
        required=True,
    ),
    "broker user": _Probe(
        look=_user,
        needed_for="every fault of permissions: root is not stopped by chmod",
        fix="apt-get install util-linux; in a container give it CAP_SETUID and CAP_SETGID, or be an ordinary user",
        required=True,
    ),
    "setpriv": _Probe(
        look=lambda: _program("setpriv", "--version"),
        needed_for="dropping privileges, and brokers that end with the harness",
        fix="apt-get install util-linux",
        required=True,
    ),
    "maven": _Probe(
        look=lambda: _program("mvn", "--version"),
        needed_for="builds named by version, and Spark's Kafka connector, where the cache doesn't have them yet",
        fix="apt-get install maven",
    ),
    "memory": _Probe(
        look=_memory,
        needed_for="three brokers beside Spark",
        fix=f"end other programs or use a machine with {_gigabytes(MEMORY_BYTES)} to spare",
    ),
    "disk": _Probe(
        look=_disk,
        needed_for="the brokers' log dirs",
        fix=f"make room for {_gigabytes(DISK_BYTES)}, or set JBOD_WORK_DIR to a folder on another disk",
    ),
    "work dir": _Probe(
        look=_temporary,
        needed_for="the brokers' folders",
        fix="set JBOD_WORK_DIR to a folder that everybody may enter, on a file system that allows programs",
        required=True,
    ),
    "cache": _Probe(
        look=_cache,
        needed_for="keeping Kafka builds",
        fix="set JBOD_CACHE_DIR to a folder of yours that everybody may read",
        required=True,
    ),
    "loop mounts": _Probe(
        look=_as_root(_loop_mounts),
        needed_for="log dirs that fail with EIO, without space, with the power cut, or stalled: volumes that are files",
        fix="run as root with loop devices (docker run --privileged), and apt-get install e2fsprogs",
    ),
    "file system errors": _Probe(
        look=_as_root(_file_system_errors),
        needed_for="log dirs that the kernel makes read-only",
        fix="run as root on Linux 4.8 or later with loop devices and a writable /sys (docker run --privileged)",
    ),
    "xfs": _Probe(
        look=_xfs,
        needed_for="the same on xfs",
        fix="apt-get install xfsprogs",
    ),
    "tmpfs mounts": _Probe(
        look=_as_root(_tmpfs_mounts),
        needed_for="full log dirs (ENOSPC) without loop devices",
        fix="run as root (in a container with CAP_SYS_ADMIN), or: unshare --user --map-root-user --mount jbod run …",
    ),
    "user namespaces": _Probe(
        look=_user_namespaces,
        needed_for="full log dirs without root",
        fix="sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "block I/O limits": _Probe(
        look=_as_root(_block_io_limits),
        needed_for="slow log dirs",
        fix="run as root; on cgroup v2: echo +io > /sys/fs/cgroup/cgroup.subtree_control",
    ),
    "network namespaces": _Probe(
        look=_network_namespaces,
        needed_for="network faults between local brokers",
        fix="run as root, and apt-get install iproute2 iptables",
    ),
    "own networks": _Probe(
        look=_as_root(_packet_filter),
        needed_for="brokers that are cut off (--backend docker)",
        fix="run as root, and apt-get install iptables util-linux",
    ),
    "docker": _Probe(
        look=_docker_engine,
        needed_for="--backend docker",
        fix="apt-get install docker.io iptables, start dockerd, and be in the group docker",
    ),
    "compose": _Probe(
        look=_compose,
        needed_for="--backend docker",
        fix="apt-get install docker-compose-plugin (Docker's own repository) or docker-compose-v2 (Ubuntu)",
    ),
    "container image": _Probe(
        look=_container_image,
        needed_for="--backend docker, where no registry can be reached",
        fix="docker pull eclipse-temurin:17-jre, or apt-get install mmdebstrap && jbod image base",
    ),
    "container disk": _Probe(
        look=_container_disk,
        needed_for=f"--backend docker: images and volumes take {_gigabytes(ENGINE_DISK_BYTES)}",
        fix="docker system prune, or a dockerd with its --data-root on another disk",
    ),
    "node": _Probe(
        look=_node,
        needed_for="Allure in the report",
        fix="Node.js with npm by NodeSource's packages, or by nvm install --lts",
    ),
}
