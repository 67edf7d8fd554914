"""Applies each mutant to each build, without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.errors import EXIT_HARNESS, EXIT_VALID
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode
from suites.mutants.builds import MutatedBuild, make_builds
from suites.mutants.mutant import Mutant


def check(
    mutants: Sequence[Mutant],
    builds: Iterable[Distribution],
    mode: Mode | None,
    say: Callable[[str], None],
    tell: Callable[[str], None],
) -> int:
    """Print what became of each mutant on each build; return the exit code.

    :param mode: only this one; None for all that a build has
    :param say: prints a line of the result
    :param tell: prints a line of progress
    """
    failed, made_of = 0, dict.fromkeys((each.id for each in mutants), 0)
    for build in builds:
        modes = [each for each in build.version.modes() if mode in (None, each)]
        for each in make_builds(build, mutants, modes, tell):
            say(f"{each.mutant.id} · {build.version} {each.mode}: {words(each)}")
            made_of[each.mutant.id] += each.home is not None
            failed += each.problem is not None
    nowhere = [id for id, made in made_of.items() if not made]
    say(
        f"{len(mutants)} mutants: {sum(made_of.values())} builds made, {failed} failed"
        + (f"; for none of these builds: {', '.join(nowhere)}" if nowhere else "")
    )
    return EXIT_HARNESS if failed else EXIT_VALID


def words(build: MutatedBuild) -> str:
    """What became of a mutant on a build."""
    if not build.applies:
        return "not for this build"
    return f"made, {build.home}" if build.problem is None else f"error: {build.problem}"
