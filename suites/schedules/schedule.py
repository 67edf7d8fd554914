"""A schedule: the steps that are done to a cluster, as data that is drawn from a seed or read from a file.

A step names a role and a random number, not a broker: the leader is known only when the step's turn comes. Then
:mod:`suites.schedules.play` also decides whether the step may be done; if not, it is passed over. So any part of a
schedule is a schedule, and a failing one can be shrunk by leaving steps out (:mod:`harness.runner.shrinking`).
For the same reason steps are drawn one by one and do not depend on each other, as with Jepsen's generators.

The same seed gives the same schedule on every machine. A machine that lacks an ability skips it. Brokers are cut off
only in containers, where they have networks of their own. There a seed gives the same steps, with some cuts in between.
Flipped bits in records are left out, since no KIP covers them. Brokers fetch little at once
(:data:`suites.moves.SMALL_FETCHES`) and records have 1 kB, so that a move can be held.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from faults.broker import BrokerKilled, BrokerPaused, BrokerStopped
from faults.file_system import Eio, Full, NoInodes, PowerCut, ReadOnly
from faults.log_dir import LOG_DIR_FAULTS, LogDirFault
from faults.network import NETWORK_FAULTS, Cut
from faults.slow import Slow, SlowVolume, Stalled
from harness.cluster.spec import ClusterSettings
from harness.errors import HarnessError, Inconclusive, UsageError
from harness.kafka.points import read_points
from suites.log_cleaning import FREQUENT_CLEANING
from suites.moves import SMALL_FETCHES

STEPS = 24
"""Steps that are drawn for a schedule. About a third of them are passed over, which takes no time."""
ENOUGH = 8
"""A drawn schedule ends when so many of its steps are done; with start, healing and judging it takes one to two
minutes."""
_HELD = 0.5
"""The share of steps during which a thread is held, in a schedule with holds."""
FEWEST = 3
"""The least steps that must be done and not passed over."""
DISK_FAULTS: tuple[type[LogDirFault], ...] = (Eio, ReadOnly, Full, NoInodes)
"""Further faults of a log dir that is on a file system of its own."""
LOG_DIR_WAYS = {fault.name: fault for fault in (*LOG_DIR_FAULTS, *DISK_FAULTS)}
BROKER_WAYS: dict[str, type[BrokerKilled | BrokerStopped | BrokerPaused | PowerCut]] = {
    fault.name: fault for fault in (BrokerKilled, BrokerStopped, BrokerPaused, PowerCut)
}
SLOW_WAYS: dict[str, type[SlowVolume]] = {fault.name: fault for fault in (Slow, Stalled)}
CUT_WAYS: dict[str, type[Cut]] = {fault.name: fault for fault in NETWORK_FAULTS}
ROLES = ("leader", "follower", "controller", "coordinator")
"""The roles that a step may be aimed at. The coordinator is the leader of the consumer group's offsets. In KRaft the
controllers are no brokers, and a step for the controller's broker gets the leader."""

_WAYS: dict[str, list[str | None]] = {
    "fail_log_dir": [*LOG_DIR_WAYS],
    "end_broker": [*BROKER_WAYS],
    "slow_disk": [*SLOW_WAYS],
    "cut_off": [*CUT_WAYS],
}

_WEIGHTS = {
    "fail_log_dir": 5,
    "end_broker": 3,
    "heal": 10,
    "restart": 1,
    "lose_controller": 1,
    "cut_off": 3,
    "slow_disk": 2,
    "rot": 2,
    "move": 2,
    "begin_move": 3,
    "end_move": 2,
    "reassign": 1,
    "replace": 2,
    "create_topic": 1,
    "delete_topic": 1,
    "quiet": 1,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step.

    :ivar do: a method of :class:`suites.schedules.play.Player`
    :ivar role: the role of the broker, for the picked partition
    :ivar pick: picks among the partitions, faults or moves that there are then
    :ivar fault: the name of the fault, where there are several
    :ivar hold: the point at which a thread of a broker is held during the step (:mod:`harness.kafka.points`)
    """

    do: str
    role: str = "leader"
    pick: int = 0
    fault: str | None = None
    hold: str | None = None

    def __post_init__(self) -> None:
        ways = _WAYS.get(self.do, [None])
        if self.do not in _WEIGHTS or self.role not in ROLES or self.fault not in ways:
            raise ValueError(f"no such step: {asdict(self)}")
        if self.hold is not None and self.hold not in read_points():
            raise ValueError(f"no such point: {self.hold}")

    def __str__(self) -> str:
        words = (self.do, self.fault, self.role, self.pick, self.hold and f"holding {self.hold}")
        return " ".join(str(value) for value in words if value is not None)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps, and the cluster that they need.

    It is a parameter of a scenario, so the plugin asks for ``needs`` and ``cluster``.

    :ivar seed: the seed that it was drawn from; None if it was not drawn
    :ivar volumes: log dirs are on file systems of their own
    :ivar overrides: broker settings, such as an unsafe one that the schedule should reveal
    :ivar enough: it ends when so many steps are done; None: all are tried
    """

    steps: tuple[Step, ...]
    seed: int | None = None
    volumes: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
    enough: int | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The abilities that the machine must have."""
        ways = LOG_DIR_WAYS | BROKER_WAYS | SLOW_WAYS | CUT_WAYS
        faults = [ways[step.fault] for step in self.steps if step.fault]
        return tuple(sorted({need for fault in faults for need in fault.needs}))

    @property
    def cluster(self) -> ClusterSettings:
        """Fields of the cluster's spec."""
        settings: ClusterSettings = {"overrides": {**SMALL_FETCHES, **FREQUENT_CLEANING, **self.overrides}}
        if any(step.hold for step in self.steps):
            settings["holds"] = True
        return {"volumes": "ext4", **settings} if self.volumes else settings

    def check_done(self, done: int) -> None:
        """Enough steps were done; one is enough for a schedule that was written by hand or shrunk.

        :param done: how many steps were done and not passed over
        :raises Inconclusive: too few
        """
        is_whole = self.seed is not None and len(self.steps) >= STEPS
        if done < (FEWEST if is_whole else 1):
            raise Inconclusive(f"only {done} of the schedule's {len(self.steps)} steps could be done")

    def to_json(self) -> dict[str, object]:
        """As in run.json and in files."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Schedule:
        """The schedule that :meth:`to_json` wrote.

        :raises ValueError: ``content`` is not a schedule
        """
        try:
            steps = tuple(Step(**step) for step in content["steps"])
            known = {name: content[name] for name in ("seed", "volumes", "overrides", "enough") if name in content}
            return cls(steps=steps, **known)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no schedule: {error}") from error


def draw(seed: int, steps: int = STEPS, *, networks: bool = False, holds: bool = False) -> Schedule:
    """The schedule of a seed. Every second seed has log dirs on file systems of their own.

    In the first step a log dir fails, since nothing prevents that yet.

    :param networks: brokers have networks of their own, so they can be cut off
    :param holds: a thread is held during every second step; the steps are the same as without
    """
    chance = random.Random(seed)
    volumes = bool(seed % 2)
    ways = {
        "fail_log_dir": [fault.name for fault in (DISK_FAULTS if volumes else LOG_DIR_FAULTS)],
        "end_broker": [name for name, fault in BROKER_WAYS.items() if volumes or not fault.needs],
        "slow_disk": [*SLOW_WAYS],
        "cut_off": [*CUT_WAYS],
    }
    may = {"slow_disk": volumes, "cut_off": False}
    weights = {do: weight for do, weight in _WEIGHTS.items() if may.get(do, True)}

    def step(do: str, chance: random.Random = chance) -> Step:
        fault = ways.get(do)
        return Step(
            do=do,
            role=chance.choices(ROLES, (3, 2, 1, 1))[0],
            pick=chance.randrange(12),
            fault=chance.choice(fault) if fault else None,
        )

    what = ["fail_log_dir", *chance.choices([*weights], [*weights.values()], k=steps - 1)]
    drawn = [step(do) for do in what]
    if networks:  # drawn from a random generator of their own, so that all other steps stay the same
        apart, share = random.Random(f"cuts of {seed}"), _WEIGHTS["cut_off"] / sum(weights.values())
        for place in range(len(drawn), 0, -1):
            if apart.random() < share:
                drawn.insert(place, step("cut_off", apart))
    if holds:
        apart, points = random.Random(f"holds of {seed}"), sorted(read_points())
        drawn = [replace(step, hold=apart.choice(points)) if apart.random() < _HELD else step for step in drawn]
    return Schedule(steps=tuple(drawn), seed=seed, volumes=volumes, enough=ENOUGH)


def read(path: Path) -> Schedule:
    """The schedule in a file, or in the run.json of a run that played it.

    :raises UsageError: there is no such file
    :raises HarnessError: the file has no schedule
    """
    if not path.exists():
        raise UsageError(f"--schedule {path}: no such file")
    try:
        content = json.loads(path.read_text())
        return Schedule.from_json(content.get("schedule", content))
    except (OSError, ValueError, AttributeError) as error:
        raise HarnessError(f"--schedule {path} can't be read: {error}") from error


def schedules_of_run(
    files: Sequence[str], count: int, seed: int, *, networks: bool, holds: bool = False
) -> list[Schedule]:
    """The schedules in the files; without files, ``count`` schedules drawn from ``seed`` and the seeds after it.

    :param networks: see :func:`draw`, as for ``holds``
    """
    drawn = (draw(seed + index, networks=networks, holds=holds) for index in range(count))
    return [read(Path(file)) for file in files] or [*drawn]
