"""The catalogue: a file for each mutant, which says what the defect is, and how Kafka's classes change."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import UsageError
from harness.kafka.bytecode.change import Change
from harness.kafka.versions import KafkaVersion, Mode

CATALOGUE = Path(__file__).parent / "catalogue"
PANEL = Path(__file__).parent / "panel.txt"
"""The ids of the few mutants that every change of jbod must catch, a line each."""

Area = Literal[
    "log-dir-failure",
    "replication",
    "moves",
    "reassignment",
    "cordons",
    "racks",
    "recovery",
    "transactions",
    "metrics",
    "quorum",
    "share-groups",
    "automatic",
]


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A defect that is put into a build.

    :ivar id: the name of its file
    :ivar defect: what is wrong with the build, in one sentence
    :ivar promise: the promise that it breaks, such as "acks=all" or "KIP-112: Broker"
    :ivar caught_by: selectors of the scenarios that are tried first, the likeliest first
    :ivar reasons: words, of which the reasons of a verdict must have one, so that it is invalid for this defect
    :ivar from_: the fix in Kafka's history that it undoes
    :ivar equivalent: why no test can see it; empty for all others
    """

    id: str = ""
    defect: str
    promise: str
    area: Area
    caught_by: tuple[str, ...]
    reasons: tuple[str, ...]
    from_: str = msgspec.field(name="from", default="")
    equivalent: str = ""
    changes: tuple[Change, ...] = msgspec.field(name="change")

    def __post_init__(self) -> None:
        """Raise ValueError if a list is empty."""
        for name in ("caught_by", "reasons", "changes"):
            if not getattr(self, name):
                raise ValueError(f"{name.removesuffix('s') if name == 'changes' else name} is empty")

    @property
    def is_automatic(self) -> bool:
        """Whether an operator made it (:mod:`suites.mutants.automatic`), so that it is in no catalogue."""
        return self.area == "automatic"

    def changes_for(self, version: KafkaVersion, mode: Mode) -> tuple[Change, ...]:
        """The changes of this build in this mode; none if the mutant is not for it."""
        return tuple(change for change in self.changes if change.fits(version, mode))


def read_mutant(file: Path) -> Mutant:
    """Read a mutant's file.

    :raises UsageError: it is no mutant
    """
    try:
        mutant = msgspec.toml.decode(file.read_bytes(), type=Mutant)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{file.name} is no mutant: {error}") from error
    return msgspec.structs.replace(mutant, id=file.stem)


def read_catalogue(folder: Path = CATALOGUE) -> tuple[Mutant, ...]:
    """All mutants, by id.

    :raises UsageError: a file is no mutant
    """
    return tuple(read_mutant(file) for file in sorted(folder.glob("*.toml")))


def panel() -> tuple[str, ...]:
    """The ids of the panel."""
    return tuple(line.strip() for line in PANEL.read_text().splitlines() if line.strip() and not line.startswith("#"))


def chosen(
    mutants: Sequence[Mutant], ids: Sequence[str], areas: Sequence[str], patterns: Sequence[str]
) -> tuple[Mutant, ...]:
    """The mutants with one of these ids, areas, or an id or area that fits a pattern; all if nothing is asked for.

    :param patterns: as for file names, such as ``acks-*``
    :raises UsageError: an id, an area or a pattern that no mutant has
    """
    found: set[str] = set()
    for asked in (*ids, *areas, *patterns):
        fits = {
            each.id
            for each in mutants
            if (asked in ids and each.id == asked)
            or (asked in areas and each.area == asked)
            or (asked in patterns and (fnmatchcase(each.id, asked) or fnmatchcase(each.area, asked)))
        }
        if not fits:
            raise UsageError(f"no mutant has the id or area {asked!r}; jbod mutants --list shows all")
        found |= fits
    every = not (ids or areas or patterns)
    return tuple(each for each in mutants if every or each.id in found)
