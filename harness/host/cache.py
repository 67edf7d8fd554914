"""The cache of things that cost time to get: Kafka builds, unpacked tarballs, Spark's connector.

One folder for all runs of a user. An entry is a folder that appears whole or not at all (:func:`publish`); one process
makes it while others wait. All users can read it, whatever the umask, since brokers run as another user than root. For
the same reason root's cache is not below /root, which is often closed to others.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import HarnessError
from harness.waiting import await_until

# The longest work under a lock is a fetch of up to 300 s that first waits for another such fetch.
LOCK_S = 660.0


def cache_dir() -> Path:
    """The cache's folder, made if missing.

    ``JBOD_CACHE_DIR``; without it /var/cache/jbod for root, for others ``XDG_CACHE_HOME``/jbod or ~/.cache/jbod.

    :raises HarnessError: it can't be made
    """
    path = cache_path()
    try:
        make_open_dir(path)
    except OSError as error:
        raise HarnessError(
            f"the cache {path} can't be made: {error.strerror}; set JBOD_CACHE_DIR to a folder of yours"
        ) from error
    return path


def cache_path() -> Path:
    """The path of :func:`cache_dir`; makes nothing."""
    named = os.environ.get("JBOD_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/jbod")
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is ignored.
    return (Path(xdg) if xdg.startswith("/") else Path.home() / ".cache") / "jbod"


def make_open_dir(path: Path) -> None:
    """Make a folder and its missing parents; all users may read the new ones, whatever the umask."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def open_to_all(folder: Path) -> None:
    """Let all users read the files below this folder, and enter its folders; leaves symbolic links alone."""
    for here, _, names in os.walk(folder):
        Path(here).chmod(0o755)
        for name in names:
            path = Path(here) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                path.chmod(0o755 if mode & stat.S_IXUSR else 0o644)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that one thread of one process has at a time; the kernel frees it when the holder dies.

    :param path: the lock's file; made if missing, never removed (a removed one could be held twice)
    :raises HarnessError: another process held it for :data:`LOCK_S`, or the file can't be made
    """
    try:
        make_open_dir(path.parent)
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o644)
    except OSError as error:
        raise HarnessError(f"the lock {path} can't be opened: {error.strerror}") from error

    def taken() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def given_up(_waited: str) -> HarnessError:
        return HarnessError(f"another process has held {path} for {LOCK_S:.0f} s; fuser -v names it")

    try:
        await_until(taken, timeout_s=LOCK_S, what=f"the lock {path}", failure=given_up, for_kafka=False)
        yield
    finally:
        os.close(descriptor)


def publish(target: Path, make: Callable[[Path], None], is_sound: Callable[[Path], bool] = Path.is_dir) -> Path:
    """Return ``target``, a folder in the cache, after making it anew if it is missing or not sound.

    It appears by one rename, so it is always whole. A process that is killed half-way leaves a folder whose name begins
    with a dot; the next process removes that. If several processes want it at once, one makes it and the others wait.

    :param make: fills the empty folder that it is given
    :param is_sound: whether an existing target can be used; called before and after the lock is taken
    :raises HarnessError: the cache can't be written; and what ``make`` raises
    """
    if target.exists() and is_sound(target):
        return target
    with locked(target.with_name(f".{target.name}.lock")):
        if target.exists() and is_sound(target):
            return target
        try:
            for left in target.parent.glob(f".{target.name}.new-*"):
                shutil.rmtree(left, ignore_errors=True)
            made = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
            try:
                make(made)
                open_to_all(made)
                if target.exists():
                    # A broker that runs from the old folder keeps its open jars.
                    old = made.with_name(f"{made.name}-old")
                    target.rename(old)
                    made.rename(target)
                    shutil.rmtree(old, ignore_errors=True)
                else:
                    made.rename(target)
            finally:
                shutil.rmtree(made, ignore_errors=True)
        except OSError as error:
            raise HarnessError(f"the cache can't be written: {error.filename or target}: {error.strerror}") from error
    return target
