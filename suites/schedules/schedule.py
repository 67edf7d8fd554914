"""A schedule: what is done to a cluster, step by step, as data that a seed makes and a file keeps.

A step names a role and a chance number, not a broker: who leads is known only when its turn comes. Whether it may be
done is decided then too (:mod:`suites.schedules.play`), and one that may not is passed over, so that any part of a
schedule is a schedule. That is what lets a failing one be shrunk by leaving steps out
(:mod:`harness.runner.delta_debugging`), which is why the steps are drawn one by one and do not depend on each other.
Jepsen's generators do the same with nemeses.

The same seed makes the same schedule on every machine; one that needs what a machine hasn't is skipped there. Brokers
are cut off only where they have networks of their own, which is in containers: there a seed makes the same steps, and
some cuts between them.
What is left out: records that rot, of which no KIP says anything. Brokers fetch little at once
(:data:`suites.steps.SMALL_FETCHES`) and records have 1 kB, so that a move can be held on its way.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from faults.broker import BrokerKilled, BrokerPaused, BrokerStopped
from faults.file_system import Eio, Full, NoInodes, PowerCut, ReadOnly
from faults.log_dir import LOG_DIR_FAULTS, LogDirFault
from faults.network import NETWORK_FAULTS, Cut
from faults.slow import Slow, SlowVolume, Stalled
from harness.errors import HarnessError, Inconclusive, UsageError
from suites.steps import SMALL_FETCHES

STEPS = 12
"""How many a schedule has; with start, healing and judging it is played in one to two minutes."""
FEWEST = STEPS // 4
"""How many of them must be done, the others passed over. Usually it is seven or eight; by a model of what stands in the
way of what (nothing to heal, nothing on its way, a broker that is wounded, a last in-sync replica) three are missed by
one draw in a hundred, four by one in thirty."""
DISK_FAULTS: tuple[type[LogDirFault], ...] = (Eio, ReadOnly, Full, NoInodes)
"""Ways in which a log dir on a file system of its own may fail, beside the others."""
LOG_DIR_WAYS = {fault.name: fault for fault in (*LOG_DIR_FAULTS, *DISK_FAULTS)}
BROKER_WAYS: dict[str, type[BrokerKilled | BrokerStopped | BrokerPaused | PowerCut]] = {
    fault.name: fault for fault in (BrokerKilled, BrokerStopped, BrokerPaused, PowerCut)
}
SLOW_WAYS: dict[str, type[SlowVolume]] = {fault.name: fault for fault in (Slow, Stalled)}
CUT_WAYS: dict[str, type[Cut]] = {fault.name: fault for fault in NETWORK_FAULTS}
ROLES = ("leader", "follower", "controller", "coordinator")
"""Whom a step is aimed at. The coordinator is the leader of the log in which the consumer group's offsets are; in KRaft
the controllers are no brokers, and whoever aims at a broker that is one gets the leader."""

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
    """One thing to do.

    :ivar do: what: a method of :class:`suites.schedules.play.Player`
    :ivar role: to whom, of the partition picked
    :ivar pick: which of those that there are then: partitions, or faults to heal
    :ivar fault: the way of failing, by its name, where there are several
    """

    do: str
    role: str = "leader"
    pick: int = 0
    fault: str | None = None

    def __post_init__(self) -> None:
        ways = _WAYS.get(self.do, [None])
        if self.do not in _WEIGHTS or self.role not in ROLES or self.fault not in ways:
            raise ValueError(f"no such step: {asdict(self)}")

    def __str__(self) -> str:
        return " ".join(str(value) for value in (self.do, self.fault, self.role, self.pick) if value is not None)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps, and the cluster that they want.

    A parameter of a scenario: ``needs`` and ``cluster`` are what the plugin asks of any.

    :ivar seed: what it was drawn from, None where it was not
    :ivar overrides: broker settings, such as an unsafe one that a schedule is to bring to light
    """

    steps: tuple[Step, ...]
    seed: int | None = None
    volumes: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """The abilities that the machine must have."""
        ways = LOG_DIR_WAYS | BROKER_WAYS | SLOW_WAYS | CUT_WAYS
        faults = [ways[step.fault] for step in self.steps if step.fault]
        return tuple(sorted({need for fault in faults for need in fault.needs}))

    @property
    def cluster(self) -> dict[str, Any]:
        """Fields of the cluster's spec."""
        volumes: dict[str, Any] = {"volumes": "ext4"} if self.volumes else {}
        return volumes | {"overrides": {**SMALL_FETCHES, **self.overrides}}

    def check_done(self, done: int) -> None:
        """So many of its steps were done, the others passed over.

        One that was written by hand or shortened, as a failing one is, may come to a single step.

        :raises Inconclusive: too few to show anything
        """
        is_whole = self.seed is not None and len(self.steps) >= STEPS
        if done < (FEWEST if is_whole else 1):
            raise Inconclusive(f"only {done} of the schedule's {len(self.steps)} steps could be done")

    def to_json(self) -> dict[str, Any]:
        """As run.json and files have it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Schedule:
        """What :meth:`to_json` made of one.

        :raises ValueError: it is none
        """
        try:
            steps = tuple(Step(**step) for step in content["steps"])
            known = {name: content[name] for name in ("seed", "volumes", "overrides") if name in content}
            return cls(steps=steps, **known)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no schedule: {error}") from error


def draw(seed: int, steps: int = STEPS, *, networks: bool = False) -> Schedule:
    """The schedule of a seed. Every second one is for log dirs on file systems of their own.

    It begins with a log dir that fails: nothing has been lost yet that could stand in its way.

    :param networks: brokers have networks of their own, so that they can be cut off
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
    if networks:  # by a chance of their own, which leaves all else as it is
        apart, share = random.Random(f"cuts of {seed}"), _WEIGHTS["cut_off"] / sum(weights.values())
        for place in range(len(drawn), 0, -1):
            if apart.random() < share:
                drawn.insert(place, step("cut_off", apart))
    return Schedule(steps=tuple(drawn), seed=seed, volumes=volumes)


def read(path: Path) -> Schedule:
    """A schedule from a file of its own, or from the run.json of a run that played it.

    :raises UsageError: there is no such file
    :raises HarnessError: it holds no schedule
    """
    if not path.is_file():
        raise UsageError(f"--schedule {path}: no such file")
    try:
        content = json.loads(path.read_text())
        return Schedule.from_json(content.get("schedule", content))
    except (OSError, ValueError, AttributeError) as error:
        raise HarnessError(f"--schedule {path} can't be read: {error}") from error


def schedules_of_run(files: Sequence[str], count: int, seed: int, *, networks: bool) -> list[Schedule]:
    """The schedules of a run: those in the files, or else ``count`` drawn from the seeds from ``seed`` on.

    :param networks: see :func:`draw`
    """
    return [read(Path(file)) for file in files] or [draw(seed + index, networks=networks) for index in range(count)]
