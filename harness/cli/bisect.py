"""``jbod bisect``: finds the first release on which a case comes out differently."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from harness.cli.shared import BACKEND, JSON_FILE, collect, out, say, settled, where
from harness.errors import EnvironmentLacks, UsageError
from harness.runner.subrun import arguments_of

if TYPE_CHECKING:
    from harness.kafka.versions import KafkaVersion
    from harness.runner.bisecting import Bisection
    from harness.runner.scenario import DeclaredCase


@click.command()
@click.argument("case")
@click.option(
    "--good",
    required=True,
    metavar="VERSION",
    callback=settled,
    help="A release on which the case is valid; may be the newer one.",
)
@click.option(
    "--bad",
    required=True,
    metavar="VERSION",
    callback=settled,
    help="A release on which the case is invalid, or shows another deviation.",
)
@click.option("--repeats", default=1, show_default=True, type=click.IntRange(1, 100), help="Runs on each release.")
@click.option("--mode", metavar="zk|kraft", help="Only this metadata mode.")
@BACKEND
@click.option("--seed", type=int, metavar="N", help="Seed of all random choices; the same on each release.")
@click.option(
    "--runs-dir",
    default="reports/bisect/runs",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where run folders go; earlier runs there count.",
)
@JSON_FILE
def bisect(
    case: str,
    good: str,
    bad: str,
    repeats: int,
    mode: str | None,
    backend: str,
    seed: int | None,
    runs_dir: Path,
    json_file: Path | None,
) -> int:
    """Find the first release on which CASE comes out differently, by running it on releases from Maven.

    Where the case is an error, unknown or skipped, the release is not judged, and a neighbour is tried. With --repeats,
    one invalid run makes a release invalid. The same command with the same --runs-dir continues an earlier bisection.
    """
    from harness.cluster.nodes.backends import backend_kind
    from harness.kafka.released import between
    from harness.kafka.versions import KafkaVersion
    from harness.runner import bisecting, results
    from harness.runner.case import check_json_file, check_runs_dir
    from harness.runner.release_trials import Trials

    ends = {"good": KafkaVersion.parse(good), "bad": KafkaVersion.parse(bad)}
    low, high = sorted(ends.values())
    if low == high:
        raise UsageError(f"--good and --bad are both {low}")
    check_json_file(json_file)
    check_runs_dir(runs_dir)
    chosen = _case_of(case, mode, backend, low, high)
    backend_kind(backend).check()
    releases = [release for release in between(low, high, say) if release.has(chosen.mode)]
    for name, version in ends.items():
        if version not in releases:
            raise UsageError(f"--{name} {version} is not a release on Maven Central or your mirrors")
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    trials = Trials(
        case=chosen.identity(seed),
        mode=chosen.mode,
        backend=backend,
        repeats=repeats,
        runs_dir=runs_dir,
        say=say,
    )
    say(f"bisecting {chosen.id} on backend {backend} over {len(releases)} releases from {low} to {high}, seed {seed}")
    found = bisecting.bisect(releases, **ends, trial_of=trials.of, known=trials.known, say=say)
    _show(found)
    content = {"case": chosen.id, "backend": backend, "repeats": repeats, "good": good, "bad": bad, **found.to_json()}
    return results.write_json(json_file, {"schema": 1, "exit_code": found.exit_code, "seed": seed, **content}, say)


def _case_of(selector: str, mode: str | None, backend: str, low: KafkaVersion, high: KafkaVersion) -> DeclaredCase:
    """Return the one case that the selector selects, in a mode that both ends have.

    :raises UsageError: there is none, or several
    :raises EnvironmentLacks: the case cannot run on this machine
    """
    from harness.runner.suite_kinds import is_random

    collected = collect(*where((selector,)), *arguments_of({"mode": mode, "backend": backend}))
    cases = [case for case in collected.cases if low.has(case.mode) and high.has(case.mode)]
    if not cases:
        has = ", ".join(f"{each} has {' and '.join(each.modes()) or 'none with JBOD'}" for each in (low, high))
        raise UsageError(f"{selector}: there is no such case in a metadata mode of this bisection; {has}")
    if len(cases) > 1:
        raise UsageError(
            f"{selector} is {len(cases)} cases; name one of them: "
            + ", ".join(case.identity(0).selector for case in cases)
        )
    if is_random(cases[0].id):
        raise UsageError(
            f"{cases[0].id} plays a random schedule, which its id does not name; only fixed scenarios can be bisected"
        )
    if lacking := collected.run.lacking(cases[0]):
        raise EnvironmentLacks(f"{cases[0].id} cannot run here: {'; '.join(map(str, lacking))}")
    return cases[0]


def _show(found: Bisection) -> None:
    """Print a row for each release that was tried, the notes, and last the result in one sentence."""
    from harness.cli.console import STYLES

    table = Table("Kafka", "came out", "why, or the deviation that it shows", header_style="bold")
    table.columns[0].no_wrap = True
    for trial in found.trials:
        style = STYLES[trial.outcome.verdict] if trial.outcome else STYLES["skipped"]
        came_out = "left out" if trial.missing else trial.came_out
        table.add_row(str(trial.kafka), Text(came_out, style=style), Text(trial.because))
    out.print(table)
    for note in found.notes:
        out.print(Text(note, style="yellow"), soft_wrap=True)
    if found.sides:
        say(f"run: {found.sides}")
    out.print(Text(found.sentence, style="bold"), soft_wrap=True)
