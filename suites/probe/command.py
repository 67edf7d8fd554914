"""``jbod probe``: whether a Kafka build has what the suites depend on, before any of them is run."""

from __future__ import annotations

import json
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
from suites.probe.dependencies import DEPENDENCIES
from suites.probe.dependency import Dependency
from suites.probe.probing import Found, Probed
from suites.probe.probing import probe as try_build

_STYLES = {"works": "green", "missing": "bold red", "absent": "dim", "untried": "dim"}
_WORDS = {"absent": "not in it", "untried": "not tried"}


@click.command()
@click.argument("build", callback=settled)
@click.option("--mode", metavar="zk|kraft", help="Only this metadata mode.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write the result as JSON.")
def probe(build: str, mode: str | None, json_file: Path | None) -> int:
    """Try whether BUILD (a version, latest, an unpacked build, a tarball) has all that the suites depend on."""
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
        out.print(Text(missing_line(each), style="bold red" if each.dependency.skips else "yellow"), soft_wrap=True)
    out.print(Text(summary(probed)), soft_wrap=True)
    return probed.exit_code


def cant_run(probed: Probed) -> str:
    """Why no cluster starts in any mode, in one line."""
    causes = {cause: [str(m) for m, why in probed.causes.items() if why == cause] for cause in probed.causes.values()}
    reasons = "; ".join(f"in mode {' and '.join(modes)}: {cause}" for cause, modes in causes.items())
    return f"Kafka {probed.kafka} can't be run {reasons}"


def table(probed: Probed) -> Table:
    """A row for each dependency below its kind, a column for each mode."""
    modes = [*probed.took_s]
    made = Table(header_style="bold")
    made.add_column("dependency", ratio=3, overflow="fold")
    for mode in modes:
        made.add_column(str(mode), width=9)
    made.add_column("needed by", ratio=2, overflow="fold")
    found = {(each.dependency.id, each.mode): each for each in probed.found}
    for kind in dict.fromkeys(dependency.kind for dependency in DEPENDENCIES):
        rows = [
            (dependency, [found.get((dependency.id, mode)) for mode in modes])
            for dependency in DEPENDENCIES
            if dependency.kind == kind
        ]
        if there := [(dependency, cells) for dependency, cells in rows if any(cells)]:
            made.add_section()
            made.add_row(Text(kind, style="bold"))
            for dependency, cells in there:
                made.add_row(Padding(Text(dependency.what), (0, 0, 0, 2)), *map(_cell, cells), Text(needs(dependency)))
    return made


def _cell(found: Found | None) -> Text:
    if found is None:
        return Text("")
    return Text(_WORDS.get(found.state, found.state), style=_STYLES[found.state])


def needs(dependency: Dependency) -> str:
    """The first two that need it, and how many more."""
    who = dependency.needed_by or (("all",) if dependency.skips else ("no case",))
    return ", ".join(who[:2]) + (f" and {len(who) - 2} more" if len(who) > 2 else "")


def missing_line(found: Found) -> str:
    """One line about a missing dependency: what it is, who needs it, and what happens without it."""
    dependency = found.dependency
    who = f"needed by {', '.join(dependency.needed_by) or 'all cases'}: " if dependency.skips else ""
    return f"missing in mode {found.mode}: {dependency.what} ({found.seen}): {who}{dependency.without}"


def summary(probed: Probed) -> str:
    """The last line of the output."""
    tried = [each for each in probed.found if each.state in ("works", "missing")]
    took = ", ".join(f"{mode} {seconds:.0f} s" for mode, seconds in probed.took_s.items())
    if not probed.missing:
        return f"Kafka {probed.kafka}: all {len(tried)} work ({took})"
    named = ", ".join(dict.fromkeys(each.dependency.id for each in probed.missing))
    return f"Kafka {probed.kafka} lacks {len(probed.missing)} of {len(tried)}: {named} ({took})"
