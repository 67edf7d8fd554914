"""The user that brokers run as: never root, since ``chmod 000`` doesn't stop root.

If an ordinary user starts the harness, brokers run as that user. If root does, they drop to :data:`UID`, a user without
an entry in the passwd file. For such a user Java's ``user.name`` and ``user.home`` are "?", so the harness sets
``user.home``.

The user ``nobody`` is unsuitable: other services run as it, and it may own the reserved blocks of an ext4 file system
(``resuid=65534``), so a full disk is not full for it. An account of jbod's own would change /etc.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EnvironmentLacks, UsageError

# Below 65536, since containers often map no higher uid. systemd leaves 60706 to 61183 unused (UIDS-GIDS).
UID = 60906


@dataclass(frozen=True, kw_only=True)
class BrokerUser:
    """The user that brokers run as.

    :ivar name: as in the passwd file; "uid 60906" for a user without an entry
    :ivar drop: the harness is root and must change to this user
    :ivar bare: the harness is root of a user namespace and must drop its capabilities
    """

    name: str
    uid: int
    gid: int
    drop: bool
    bare: bool = False

    def command(self) -> list[str]:
        """The prefix of a command that runs as this user, by setpriv (util-linux); empty for the harness's own user."""
        if self.bare:
            return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"] if self.drop else []


def broker_user() -> BrokerUser:
    """The brokers' user: the harness's own, or for root ``JBOD_BROKER_USER`` (a name or a number), or :data:`UID`.

    :raises UsageError: ``JBOD_BROKER_USER`` names no user, or root
    :raises EnvironmentLacks: the user namespace has no user :data:`UID`
    """
    own = os.geteuid()
    if own != 0:
        return BrokerUser(name=_name(own), uid=own, gid=os.getegid(), drop=False)
    named = os.environ.get("JBOD_BROKER_USER")
    if named:
        user = _named(named)
        if user.uid == 0:
            raise UsageError("JBOD_BROKER_USER is root; chmod does not stop root, so name another user")
        return user
    if sum(count for _, count in _uid_map()) == 1:
        return BrokerUser(name="you, without capabilities", uid=0, gid=0, drop=False, bare=True)
    if not _is_mapped(UID):
        raise EnvironmentLacks(
            f"brokers can't drop from root to uid {UID}: this user namespace has no such user (/proc/self/uid_map); "
            "run jbod as an ordinary user, or name one in JBOD_BROKER_USER"
        )
    return BrokerUser(name=_name(UID), uid=UID, gid=UID, drop=True)


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


def _uid_map() -> list[tuple[int, int]]:
    """The ranges of users in this user namespace: first uid and count."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return [(0, 1 << 32)]
    return [(int(first), int(count)) for first, _, count in map(str.split, lines)]
