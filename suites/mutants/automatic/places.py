"""Places of Kafka's classes that an operator can change, and a build that notes which of them run.

JaCoCo would count the same, but it writes its counts when a process ends, and these brokers are killed. So the engine
puts a note beside each place, and the broker prints the notes twice a second.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from harness.host.atomic_write import write_atomically
from harness.host.scratch import scratch
from harness.kafka.bytecode.change import Change
from harness.kafka.bytecode.engine import list_places
from harness.kafka.distribution import MUTANT_JAR, MUTANT_SAYS, Distribution
from suites.mutants.builds import builds_locked, home_for, link_build
from suites.mutants.mutant import Mutant

CLASSES = Path(__file__).parent / "classes.txt"
_LIST = "places.tsv"
_PASSED = re.compile(rf"{MUTANT_SAYS}places passed ([\w+/=]+)".encode())

Kind = Literal["branch", "call", "result", "sum"]
Operator = Literal["negated", "other bound", "removed", "replaced", "reversed"]

_REPLACED = {
    "Z": "{ $_ = !$_; }",
    "I": "{ $_ = 0; }",
    "J": "{ $_ = 0L; }",
    "Lscala/Option;": "{ $_ = scala.Option.empty(); }",
    "Ljava/util/Optional;": "{ $_ = java.util.Optional.empty(); }",
    "Ljava/util/OptionalInt;": "{ $_ = java.util.OptionalInt.empty(); }",
    "Ljava/util/OptionalLong;": "{ $_ = java.util.OptionalLong.empty(); }",
    "Ljava/util/List;": "{ $_ = java.util.Collections.emptyList(); }",
    "Ljava/util/Collection;": "{ $_ = java.util.Collections.emptyList(); }",
    "Ljava/util/Set;": "{ $_ = java.util.Collections.emptySet(); }",
    "Ljava/util/Map;": "{ $_ = java.util.Collections.emptyMap(); }",
}
"""What a method returns instead, by the type that it returns."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """An instruction, or the result of a method.

    :ivar number: its number in the list of its build
    :ivar parameters: the types of the method's parameters
    :ivar line: its line in Kafka's source; -1 if the class does not say
    :ivar nth: its number among those of its kind in the method, from 1; for a call, among the calls of the same method
    :ivar detail: the called method, the returned type, ``order`` or ``equality``, ``+`` or ``-``
    """

    number: int
    class_: str
    method: str
    parameters: tuple[str, ...]
    line: int
    kind: Kind
    nth: int
    detail: str

    @classmethod
    def of(cls, number: int, line: str) -> Place:
        """Read a line of the engine's list."""
        class_, method, parameters, at, kind, nth, detail = line.split("\t")
        return cls(
            number=number,
            class_=class_,
            method=method,
            parameters=tuple(parameters.split(",")) if parameters else (),
            line=int(at),
            kind=kind,  # type: ignore[arg-type]  # the engine's words are these
            nth=int(nth),
            detail=detail,
        )

    @property
    def key(self) -> str:
        """Its name, which stays the same while the method's instructions do."""
        of = f" of {self.detail}" if self.kind == "call" else ""
        return f"{self.class_}.{self.method}({','.join(self.parameters)}) {self.kind} {self.nth}{of}"

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators that can change it."""
        match self.kind:
            case "branch":
                return ("negated", "other bound") if self.detail == "order" else ("negated",)
            case "call":
                return ("removed",)
            case "result":
                return ("replaced",)
            case "sum":
                return ("reversed",)

    def changed(self, operator: Operator) -> Change:
        """The change of this operator."""
        where = {"class_": self.class_, "method": self.method, "parameters": self.parameters}
        match operator:
            case "negated":
                return Change(**where, branch=self.nth, to="inverted")  # type: ignore[arg-type]
            case "other bound":
                return Change(**where, branch=self.nth, to="other-bound")  # type: ignore[arg-type]
            case "removed":
                return Change(**where, call=self.detail, with_="{ }", nth=self.nth)  # type: ignore[arg-type]
            case "replaced":
                return Change(**where, after=_REPLACED[self.detail])  # type: ignore[arg-type]
            case "reversed":
                return Change(**where, sum=self.nth)  # type: ignore[arg-type]

    def mutant(self, operator: Operator, cases: tuple[str, ...], equivalent: str) -> Mutant:
        """The mutant of this operator.

        :param cases: those that are tried, in this order
        :param equivalent: why no test can see it; empty if one may
        """
        simple = f"{self.class_.rpartition('.')[2]}-{self.method}-{self.kind}-{self.nth}-{operator}"
        sum_ = hashlib.sha256(f"{self.key} {operator}".encode()).hexdigest()[:6]
        return Mutant(
            id=f"auto-{re.sub(r'[^A-Za-z0-9]+', '-', simple)}-{sum_}",
            defect=f"{self.class_}.{self.method}, line {self.line}: {self._says(operator)}.",
            promise="none by name",
            area="automatic",
            caught_by=cases,
            reasons=("",),
            equivalent=equivalent,
            changes=(self.changed(operator),),
        )

    def _says(self, operator: Operator) -> str:
        match operator:
            case "negated":
                return f"condition {self.nth} of the method is negated"
            case "other bound":
                return f"condition {self.nth} of the method has the other bound, as < and <="
            case "removed":
                return f"the call of {self.detail} is left out"
            case "replaced":
                what = "the contrary" if self.detail == "Z" else "0" if self.detail in "IJ" else "nothing"
                return f"the method returns {what}"
            case "reversed":
                return f"{self.detail} is {'-' if self.detail == '+' else '+'}"


@dataclass(frozen=True, kw_only=True)
class NotingBuild:
    """A build that notes which of its places run.

    :ivar home: the folder for ``--kafka-home``
    """

    home: Path

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All places, by their numbers."""
        lines = (self.home / _LIST).read_text(encoding="utf-8").splitlines()
        return tuple(Place.of(number, line) for number, line in enumerate(lines))


def noting_build(distribution: Distribution, say: Callable[[str], None]) -> NotingBuild:
    """Make the build, unless the cache has it.

    :raises EnvironmentLacks: there is no JDK, or Javassist can't be fetched
    :raises HarnessError: the engine fails, or the cache can't be written
    """
    classes = [line for line in CLASSES.read_text().split("\n") if line and not line.startswith("#")]
    home = home_for("places", distribution, classes)
    with builds_locked():
        if not (home / _LIST).exists():
            with scratch("places") as folder:
                jar, listed = folder / MUTANT_JAR, folder / _LIST
                list_places(distribution.class_path, jar, listed, classes, say)
                if not home.exists():
                    link_build(distribution, jar, home)
                write_atomically(home / _LIST, listed.read_text(encoding="utf-8"))
        os.utime(home)
    return NotingBuild(home=home)


def passed_in(run_dir: Path) -> set[int]:
    """The numbers of the places that ran in the brokers and controllers of a run folder."""
    passed = 0
    for log in run_dir.glob("brokers/*/broker.log"):
        for printed in _PASSED.findall(log.read_bytes()):
            passed |= int.from_bytes(base64.b64decode(printed), "little")
    return {number for number in range(passed.bit_length()) if passed >> number & 1}
