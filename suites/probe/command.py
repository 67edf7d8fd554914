"""``jbod probe``: whether a Kafka build has what the suites lean on, before any of them is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.cli.shared import err, note, out, settled
from harness.errors import EXIT_HARNESS, HarnessError
from harness.host import undo
from harness.host.atomic_write import write_atomically
from harness.host.cache import cache_dir
from harness.kafka.builds import Builds
from harness.kafka.distribution import jolokia_agent
from harness.runner.case import check_json_file
from harness.runner.qualifying import build_options
from suites.probe.lean import Lean
from suites.probe.leans import LEANS
from suites.probe.probing import Found, Probed
from suites.probe.probing import probe as try_build

_STYLES = {"works": "green", "missing": "bold red", "absent": "dim", "untried": "dim"}
_WORDS = {"absent": "not in it", "untried": "not tried"}


@click.command()
@click.argument("build", callback=settled)
@click.option("--mode", metavar="zk|kraft", help="Only this metadata mode.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write what was found.")
def probe(build: str, mode: str | None, json_file: Path | None) -> int:
    """Try whether BUILD (a version, latest, an unpacked build, a tarball) has all that the suites lean on."""
    check_json_file(json_file)
    undo.clean(note)
    builds = Builds.choose(build_options(build, mode))
    jolokia_agent(cache_dir(), say=note)
    with err.status(f"trying {build}"):
        probed = try_build(builds, note)
    if json_file is not None:
        write_atomically(json_file, json.dumps(probed.to_json(), indent=2) + "\n")
    if probed.exit_code == EXIT_HARNESS:
        raise HarnessError(cant_run(probed))
    out.print(table(probed))
    for each in probed.missing:
        out.print(Text(missing_line(each), style="bold red" if each.lean.skips else "yellow"), soft_wrap=True)
    out.print(Text(summary(probed)), soft_wrap=True)
    return probed.exit_code


def cant_run(probed: Probed) -> str:
    """Why no mode starts, in one line."""
    causes = {cause: [str(m) for m, why in probed.causes.items() if why == cause] for cause in probed.causes.values()}
    told = "; ".join(f"in mode {' and '.join(modes)}: {cause}" for cause, modes in causes.items())
    return f"Kafka {probed.kafka} can't be run {told}"


def table(probed: Probed) -> Table:
    """A row for each lean below its kind, a column for each mode."""
    modes = [*probed.took_s]
    made = Table(header_style="bold")
    made.add_column("leaned on", ratio=3, overflow="fold")
    for mode in modes:
        made.add_column(str(mode), width=9)
    made.add_column("needed by", ratio=2, overflow="fold")
    found = {(each.lean.id, each.mode): each for each in probed.found}
    for kind in dict.fromkeys(lean.kind for lean in LEANS):
        rows = [(lean, [found.get((lean.id, mode)) for mode in modes]) for lean in LEANS if lean.kind == kind]
        if there := [(lean, cells) for lean, cells in rows if any(cells)]:
            made.add_section()
            made.add_row(Text(kind, style="bold"))
            for lean, cells in there:
                made.add_row(Padding(Text(lean.what), (0, 0, 0, 2)), *map(_cell, cells), Text(needs(lean)))
    return made


def _cell(found: Found | None) -> Text:
    if found is None:
        return Text("")
    return Text(_WORDS.get(found.state, found.state), style=_STYLES[found.state])


def needs(lean: Lean) -> str:
    """Who needs it, for people: how many of them are too many for a line."""
    who = lean.needed_by or (("all",) if lean.skips else ("no case",))
    return ", ".join(who[:2]) + (f" and {len(who) - 2} more" if len(who) > 2 else "")


def missing_line(found: Found) -> str:
    """One that is missing, in full."""
    lean = found.lean
    who = f"needed by {', '.join(lean.needed_by) or 'all cases'}: " if lean.skips else ""
    return f"missing in mode {found.mode}: {lean.what} ({found.seen}): {who}{lean.without}"


def summary(probed: Probed) -> str:
    """The last line."""
    tried = [each for each in probed.found if each.state in ("works", "missing")]
    took = ", ".join(f"{mode} {seconds:.0f} s" for mode, seconds in probed.took_s.items())
    if not probed.missing:
        return f"Kafka {probed.kafka}: all {len(tried)} work ({took})"
    return f"Kafka {probed.kafka} lacks {len(probed.missing)} of {len(tried)}: {_named(probed.missing)} ({took})"


def _named(missing: Sequence[Found]) -> str:
    return ", ".join(dict.fromkeys(each.lean.id for each in missing))
