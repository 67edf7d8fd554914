"""``jbod mutants``: how many defects of Kafka the suites catch."""

from __future__ import annotations

import click

from harness.cli.shared import note, say, settled
from harness.errors import UsageError
from harness.host.cache import cache_dir
from harness.kafka.distribution import from_maven
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode
from suites.mutants.checking import check as check_mutants
from suites.mutants.mutant import chosen, panel, read_catalogue


@click.command()
@click.argument("selector", nargs=-1)
@click.option("--mutant", "ids", multiple=True, metavar="ID", help="Only this mutant; may be given several times.")
@click.option("--area", "areas", multiple=True, metavar="AREA", help="Only the mutants of this area.")
@click.option("--panel", "only_panel", is_flag=True, help="Only the panel: few mutants, for every change of jbod.")
@click.option("--kafka", metavar="VERSION", callback=settled, help="The builds, separated by commas.")
@click.option("--mode", metavar="zk|kraft", help="Only this metadata mode.")
@click.option("--check", is_flag=True, help="Only apply each mutant to each build; start no cluster.")
@click.option("--list", "only_list", is_flag=True, help="Only list the mutants.")
def mutants(
    selector: tuple[str, ...],
    ids: tuple[str, ...],
    areas: tuple[str, ...],
    only_panel: bool,
    kafka: str | None,
    mode: str | None,
    check: bool,
    only_list: bool,
) -> int:
    """Put one defect at a time into a build, and show which of them the suites catch.

    SELECTOR is the id or the area of mutants, also a pattern such as 'acks-*'; without one, all of them run.
    """
    try:
        wanted = None if mode is None else Mode(mode)
    except ValueError:
        raise UsageError(f"unknown mode {mode!r}: zk or kraft") from None
    found = chosen(read_catalogue(), [*ids, *(panel() if only_panel else ())], areas, selector)
    if only_list:
        for each in found:
            say(f"{each.id} ({each.area}): {each.defect}")
        return 0
    versions = [KafkaVersion.parse(each) for each in kafka.split(",")] if kafka else [DEFAULT_BUILDS[Mode.KRAFT]]
    if check:
        builds = (from_maven(version, cache_dir(), say=note) for version in versions)
        return check_mutants(found, builds, wanted, say, note)
    raise UsageError("only --check works yet")
