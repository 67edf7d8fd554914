"""Points of Kafka's code at which a thread can be held: a file of data for each, and builds that have them.

A build with points has one more jar, first in its class path, with the classes that the points are in. In each place
they call ``jbod.Holds``, which holds the thread if a file says so (``bytecode/java/Holds.java``). Nothing is loaded
into a broker that runs, and no port is opened. The jar is made of the build's own classes, so a mutant keeps its
defect.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from harness.errors import HarnessError, UsageError
from harness.host.cache import cache_dir, publish
from harness.host.scratch import scratch
from harness.kafka.bytecode.change import Change
from harness.kafka.bytecode.engine import Order, engine_sum, make_jars, words_of
from harness.kafka.distribution import Distribution
from harness.kafka.versions import KafkaVersion, Mode

POINTS = Path(__file__).parent
HOLDS = "holds"
"""The name of the folder of a node's holds, in its own folder."""
HOLDS_OPTION = "-Djbod.holds={home}/" + HOLDS
"""JVM option with the folder of a node's holds; ``{home}`` stands for the node's own folder."""
_LOADS = "process-begins"
"""The point that loads ``jbod.Holds``. Without it, a node sees no hold until a thread comes to another point."""
_JAR = "0-jbod-points.jar"
_MISSING = "missing.json"
_HOLD = re.compile(r"\bHOLD\((.*?)\);")


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A point. In the source of its changes, ``HOLD(subject);`` is the point itself.

    :ivar id: the name of its file
    :ivar meaning: what the thread is about to do, or has just done, in one sentence
    :ivar subject: what ``HOLD`` is given, such as "the partition"
    :ivar limit_s: a longer hold would outlast a session or the time-out of a request, which is no slow thread any more
    """

    id: str = ""
    meaning: str
    subject: str
    limit_s: float = 8.0
    changes: tuple[Change, ...] = msgspec.field(name="change")

    def changes_for(self, version: KafkaVersion, mode: Mode) -> tuple[Change, ...]:
        """The changes of this build in this mode; none if it has no such point."""
        return tuple(_with_id(self.id, each) for each in self.changes if each.fits(version, mode))


@functools.cache
def read_points(folder: Path = POINTS) -> Mapping[str, Point]:
    """All points, by id.

    :raises UsageError: a file is no point
    """
    found = {}
    for file in sorted(folder.glob("*.toml")):
        try:
            point = msgspec.toml.decode(file.read_bytes(), type=Point)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageError(f"{file.name} is no point: {error}") from error
        found[file.stem] = msgspec.structs.replace(point, id=file.stem)
    return found


def points_of(version: KafkaVersion, mode: Mode, points: Mapping[str, Point] | None = None) -> Mapping[str, Point]:
    """The points that a build has in this mode, by id."""
    each = (read_points() if points is None else points) if version.has(mode) else {}
    return {id: point for id, point in each.items() if point.changes_for(version, mode)}


def with_points(
    distribution: Distribution,
    mode: Mode,
    say: Callable[[str], None] = lambda _line: None,
    *,
    points: Mapping[str, Point] | None = None,
) -> Distribution:
    """A build with the points that it has in this mode; made once, and kept in the cache.

    A point whose classes have another form in this build is left out; :func:`missing_points` says why.

    :param points: None: all of them
    :raises EnvironmentLacks: there is no JDK, or Javassist can't be fetched
    :raises HarnessError: the engine that changes classes failed
    """
    version = distribution.version
    changes = {point.id: point.changes_for(version, mode) for point in points_of(version, mode, points).values()}
    content = [distribution.sha256, engine_sum(), *(words_of(each) for of in changes.values() for each in of)]
    sum_ = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def make(folder: Path) -> None:
        missing = _try_each(distribution, changes, say)
        fitting = [each for id, of in changes.items() if id not in missing for each in of]
        whole = Order(id="points", changes=tuple(fitting), jar=folder / _JAR, kind="points")
        if problem := make_jars(distribution.class_path, [whole], say)[whole.jar]:
            raise HarnessError(f"the points of Kafka {version} in {mode} can't be made: {problem}")
        (folder / _MISSING).write_text(json.dumps(missing))

    folder = publish(cache_dir() / f"points-{version}-{mode}-{sum_[:12]}", make)
    return replace(distribution, class_path=(folder / _JAR, *distribution.class_path), sha256=sum_)


def missing_points(distribution: Distribution) -> Mapping[str, str]:
    """Why points are not in a build that :func:`with_points` made, by id."""
    return msgspec.json.decode((distribution.class_path[0].parent / _MISSING).read_bytes(), type=dict[str, str])


def _try_each(
    distribution: Distribution, changes: Mapping[str, Sequence[Change]], say: Callable[[str], None]
) -> dict[str, str]:
    """Make each point alone; return why some can't be made. Without the point that loads the holds, none can."""
    with scratch("points") as folder:
        orders = [
            Order(id=id, changes=tuple(of), jar=folder / f"{id}.jar", kind="points") for id, of in changes.items()
        ]
        answers = make_jars(distribution.class_path, orders, say)
    missing = {order.id: problem for order in orders if (problem := answers[order.jar])}
    if _LOADS in missing:
        return dict.fromkeys(changes, f"needs {_LOADS}: {missing[_LOADS]}") | {_LOADS: missing[_LOADS]}
    return missing


def _with_id(id: str, change: Change) -> Change:
    """Name the point in the source of a change."""

    def named(source: str | None) -> str | None:
        return None if source is None else _HOLD.sub(lambda found: f'jbod.Holds.at("{id}", {found[1]});', source)

    return msgspec.structs.replace(
        change, before=named(change.before), after=named(change.after), with_=named(change.with_)
    )
