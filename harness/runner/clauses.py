"""The clauses of the KIPs, each with the scenarios that test it: ``suites/clauses``, and its part of COVERAGE.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from harness.runner.outside import SUITES

FOLDER = SUITES / "clauses"
"""One file for each KIP: ``kip_112.toml``."""


class Clause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that a KIP says. Exactly one of the last three fields is not empty.

    :ivar says: a short quotation; ``…`` stands for what is left out
    :ivar tested_by: ids of scenarios with a check that fails if the clause does not hold
    :ivar untested: why no scenario tests it yet
    :ivar not_testable: why none can
    """

    says: str
    tested_by: tuple[str, ...] = ()
    untested: str = ""
    not_testable: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one of the three fields is given."""
        given = [bool(each) for each in (self.tested_by, self.untested, self.not_testable)]
        if given.count(True) != 1:
            raise ValueError(f"{self.says!r} needs one of tested_by, untested and not_testable")

    @property
    def status(self) -> str:
        """The scenarios that test it, or why there is none, for the page."""
        if self.tested_by:
            return ", ".join(f"`{id}`" for id in self.tested_by)
        return f"not tested yet: {self.untested}" if self.untested else f"not testable: {self.not_testable}"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of a KIP's text: its title and its clauses, in the order of the text."""

    title: str
    clauses: tuple[Clause, ...] = msgspec.field(name="clause")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A file of the folder."""

    section: list[Section]


def read_clauses(folder: Path = FOLDER) -> dict[int, list[Section]]:
    """Return the sections of each KIP, in the order of the KIPs' numbers.

    :raises msgspec.ValidationError: a file has other fields or types, or a clause has not exactly one status
    """
    files = {int(file.stem.removeprefix("kip_")): file for file in folder.glob("kip_*.toml")}
    return {kip: msgspec.toml.decode(files[kip].read_bytes(), type=_File).section for kip in sorted(files)}


@cache
def scenarios_of(kip: int) -> frozenset[str]:
    """Return the ids of the scenarios that test a clause of the KIP."""
    sections = read_clauses().get(kip, [])  # a copy of the suites may be without the clauses
    return frozenset(id for section in sections for clause in section.clauses for id in clause.tested_by)


_INTRODUCTION = """# Clauses

What each section of the KIPs' texts says, and which scenarios test it. Quotations keep the text's own spelling. For a
clause about a message that no client sees, the scenarios check its effect. A test compares the sections with the
texts' own titles, and fails for a scenario that does not exist. The files are in [clauses](clauses).
"""


def clause_lines(kips: dict[int, list[Section]]) -> Iterator[str]:
    """Yield the lines of the part of COVERAGE.md: the counts, and a table for each KIP."""
    yield _INTRODUCTION
    yield from (row("KIP", "clauses", "tested", "not tested yet", "not testable"), "|---|---|---|---|---|")
    for kip, sections in kips.items():
        clauses = [clause for section in sections for clause in section.clauses]
        counts = (
            len(clauses),
            sum(bool(clause.tested_by) for clause in clauses),
            sum(bool(clause.untested) for clause in clauses),
            sum(bool(clause.not_testable) for clause in clauses),
        )
        yield row(f"KIP-{kip}", *map(str, counts))
    for kip, sections in kips.items():
        yield from ("", f"## Clauses of KIP-{kip}", "")
        yield from (row("section", "clause", "scenarios, or why none"), "|---|---|---|")
        for section in sections:
            for clause in section.clauses:
                yield row(section.title, clause.says, clause.status)


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
