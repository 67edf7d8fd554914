"""A dependency of the suites on a Kafka build, and groups of suites with the same dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from harness.kafka.versions import ANY_BUILD, Mode, VersionRange

Kind = Literal[
    "start",
    "format",
    "class",
    "tool",
    "request",
    "mbean",
    "znode",
    "file",
    "log line",
    "error text",
    "metadata record",
    "config",
]

SKIPPED = "these cases are skipped"
UNTRIED = "not tried"


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """One thing that a build must have.

    :ivar what: a description for people
    :ivar words: the texts in the code that ``what`` does not have: options, file names, patterns (``…`` stands for a
        placeholder). ``suites/selftest/test_dependencies.py`` fails for texts in the code that no dependency has
    :ivar needed_by: ids of suites and scenarios; empty for all
    :ivar without: what happens without it; unless it is :data:`SKIPPED`, the cases run
    :ivar builds: the builds that must have it; on others it is not expected
    :ivar tried: whether the probe tries it
    """

    id: str
    kind: Kind
    what: str
    words: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    without: str = SKIPPED
    modes: tuple[Mode, ...] = (Mode.ZK, Mode.KRAFT)
    builds: VersionRange = ANY_BUILD
    tried: bool = True

    @property
    def skips(self) -> bool:
        """Whether cases that need it are skipped without it."""
        return self.without is SKIPPED


config = partial(Dependency, kind="config")
error_text = partial(Dependency, kind="error text")
file = partial(Dependency, kind="file")
log_line = partial(Dependency, kind="log line")
tool = partial(Dependency, kind="tool")

KRAFT, ZK = (Mode.KRAFT,), (Mode.ZK,)
CORDONS = VersionRange.parse(">=4.3")
DYNAMIC_QUORUM = VersionRange.parse(">=3.9")
TIERED = VersionRange.parse(">=3.9")
PEM = VersionRange.parse(">=2.7")

COMPARED = (
    "control",
    "disks",
    "kafkatest-parity",
    "kip-1066",
    "kip-112",
    "kip-113",
    "kip-36/nearest-replica",
    "kip-36/rack-fails",
    "known-bugs",
    "migration",
    "network",
    "quorum",
    "readers",
    "schedules",
    "secured",
    "share",
    "tiered",
    "transactions",
    "upgrade",
)
"""The suites that compare all sources with the expected state (:mod:`suites.state_check`)."""
MOVES = (
    "control",
    "kip-1066",
    "kip-113",
    "known-bugs",
    "migration",
    "races",
    "schedules",
    "tiered",
    "upgrade/amid-move",
)
"""The suites that set dynamic configs, mostly the throttle that holds moves."""
FAIL_LOG_DIRS = (
    "control/log-dir-offline",
    "disks/two-dirs-at-once",
    "elr",
    "kafkatest-parity",
    "kip-1066/log-dirs-fail",
    "kip-1066/disk-taken-out",
    "kip-112",
    "kip-113",
    "kip-36/nearest-replica",
    "kip-36/rack-fails",
    "known-bugs",
    "migration",
    "quorum",
    "races/failed-replica-rejoins",
    "readers",
    "schedules",
    "secured",
    "share",
    "tiered",
    "transactions",
    "upgrade",
)
REASSIGNED = (
    "kip-1066",
    "kip-112/reassigned-away",
    "kip-112/reassigned-onto",
    "kip-113",
    "known-bugs",
    "races",
    "schedules",
)
REASSIGNED_BY_REQUEST = (
    "kip-1066",
    "kip-112",
    "kip-113",
    "known-bugs/large-record-moved",
    "known-bugs/reassigned-again",
    "known-bugs/reassigned-beside-failed",
    "migration/to-kraft",
    "schedules",
    "secured/log-dirs",
    "tiered/reassigned",
    "upgrade/amid-move",
)
GROUPS = ("readers/coordinator-log-dir", "readers/coordinator-log-moved", "transactions/group-offsets")
"""The scenarios that commit offsets of consumer groups without members."""
CANCELLED = ("kip-112/reassignment-cancelled", "kip-113", "schedules")
METADATA_LOG = (
    "kip-1066",
    "kip-112/bootstrap-healed",
    "kip-112/controller-failover",
    "kip-112/controllers-log-dir",
    "kip-112/killed-while-new",
    "kip-112/log-dir-taken-out",
    "kip-112/no-controller",
    "kip-112/reassigned-away",
    "kip-112/reassigned-onto",
    "kip-112/topic-creation",
    "kip-112/topic-deletion",
    "kip-112/what-users-see",
    "kip-113",
    "known-bugs",
    "migration",
    "quorum",
    "schedules",
    "secured/broker-reports",
    "tiered",
    "upgrade",
)
CONTROLLER_FAILS = (
    "kip-1066/lasts",
    "kip-112/controller-failover",
    "kip-112/controllers-log-dir",
    "kip-112/no-controller",
    "kip-112/no-controller-for-long",
    "quorum",
    "schedules",
)
VOTERS_CHANGE = ("quorum/controller-added-and-removed", "quorum/controller-replaced")


def request(name: str, version: int, *needed_by: str, builds: str = "", modes: Sequence[Mode] = (*Mode,)) -> Dependency:
    """A dependency on a request.

    :param version: the oldest version that has the fields that are read
    """
    return Dependency(
        id=f"request-{name}-v{version}" if builds == ">=4.3" else f"request-{name}",
        kind="request",
        what=f"{name} v{version} or later",
        needed_by=needed_by,
        builds=VersionRange.parse(builds),
        modes=tuple(modes),
    )


def mbean(
    name: str, *needed_by: str, builds: str = "", modes: Sequence[Mode] = (*Mode,), without: str = SKIPPED
) -> Dependency:
    """A dependency on an MBean.

    :param name: the MBean's name in JMX
    """
    short = (name.partition("name=")[2] or name.partition("type=")[2]).partition(",")[0]
    return Dependency(
        id=f"mbean-{short}",
        kind="mbean",
        what=name,
        needed_by=needed_by,
        builds=VersionRange.parse(builds),
        modes=tuple(modes),
        without=without,
    )
