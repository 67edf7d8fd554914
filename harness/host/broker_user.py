"""Which user the brokers run as.

root reads and writes what ``chmod 000`` closed, so a broker run by root would not notice half of the faults. Started
by root, brokers drop to an ordinary user; started by an ordinary user, they are that user.

The user they drop to is a number of its own, :data:`UID`, without an entry in the passwd file. Not ``nobody``: that
user may own the reserved blocks of an ext4 file system (``resuid=65534`` is mounted like that in the wild), so a full
disk would not be full for it, and other services run as it too. Nor an account made for the purpose: a test should
not change /etc. Java copes: ``user.name`` and ``user.home`` are then "?", so the harness sets the latter.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EnvironmentLacks, UsageError

# Below 65536, since containers often map no more, and in a range that nobody gives out: systemd's list of uids
# (UIDS-GIDS) has 60706 to 61183 as unused.
UID = 60906


@dataclass(frozen=True, kw_only=True)
class BrokerUser:
    """The user that brokers run as.

    :ivar name: as in the passwd file; "uid 60906" for one that isn't there
    :ivar drop: the harness is root and must change to this user
    :ivar bare: the harness is root of a user namespace and must lay down its capabilities
    """

    name: str
    uid: int
    gid: int
    drop: bool
    bare: bool = False

    def command(self) -> list[str]:
        """What to put before a command so that it runs as this user; empty where the harness is this user.

        ``setpriv`` (util-linux) is named bare: that it is missing is said by the program that needs it.
        """
        if self.bare:
            return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"] if self.drop else []


def broker_user() -> BrokerUser:
    """The user for brokers: oneself, or for root ``JBOD_BROKER_USER`` (a name or a number), or :data:`UID`.

    :raises UsageError: ``JBOD_BROKER_USER`` names nobody, or root
    :raises EnvironmentLacks: this root, in a user namespace, has no other user to change to
    """
    own = os.geteuid()
    if own != 0:
        return BrokerUser(name=_name(own), uid=own, gid=os.getegid(), drop=False)
    named = os.environ.get("JBOD_BROKER_USER")
    if named:
        user = _named(named)
        if user.uid == 0:
            raise UsageError("JBOD_BROKER_USER is root; brokers must not be root, who is not stopped by chmod")
        return user
    uid = UID
    if _mapped() == 1:
        return BrokerUser(name="you, without capabilities", uid=0, gid=0, drop=False, bare=True)
    if not _is_mapped(uid):
        raise EnvironmentLacks(
            f"brokers can't drop from root to uid {uid}: this user namespace has no such user (/proc/self/uid_map); "
            "run jbod as an ordinary user, or name one in JBOD_BROKER_USER"
        )
    return BrokerUser(name=_name(uid), uid=uid, gid=uid, drop=True)


def _named(text: str) -> BrokerUser:
    try:
        if text.isascii() and text.isdigit():
            uid = int(text)
            if not _is_mapped(uid):
                raise KeyError(uid)
            try:
                gid = pwd.getpwuid(uid).pw_gid
            except KeyError:
                gid = uid
            return BrokerUser(name=_name(uid), uid=uid, gid=gid, drop=True)
        entry = pwd.getpwnam(text)
    except (KeyError, OverflowError):
        raise UsageError(f"JBOD_BROKER_USER={text}: there is no such user") from None
    return BrokerUser(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, drop=True)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _is_mapped(uid: int) -> bool:
    return any(first <= uid < first + count for first, count in _uid_map())


def _mapped() -> int:
    """How many users there are in this user namespace."""
    return sum(count for _, count in _uid_map())


def _uid_map() -> list[tuple[int, int]]:
    """The ranges of users in this user namespace: the first, and how many."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return [(0, 1 << 32)]
    return [(int(first), int(count)) for first, _, count in map(str.split, lines)]
