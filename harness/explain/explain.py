"""Explains records of a run: reads their rows, finds where they are now, and tells their stories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from harness.checkers.settings import read_settings
from harness.errors import HarnessError, UsageError
from harness.explain.records import gather, worst_records
from harness.explain.segments import Name
from harness.explain.story import Story, read_sources, stored_replicas, tell, write_stories
from harness.explain.whereabouts import brokers_of, look
from harness.history.run_folder import VERDICT_FILE, VerdictRecord, read_run_json
from harness.kafka.distribution import Distribution


def explain_verdict(run_dir: Path, distribution: Callable[[], Distribution]) -> list[Story]:
    """Tell the stories of the worst records of the verdict, and write them to explained.json.

    :param distribution: finds the run's Kafka build; called only if log dirs of the run still exist
    :raises HarnessError: there is no verdict or no history
    """
    stories = _stories(run_dir, worst_records(run_dir, read_verdict(run_dir)), distribution)
    write_stories(run_dir, stories)
    return stories


def explain_record(run_dir: Path, name: Name, distribution: Callable[[], Distribution]) -> Story:
    """Tell the story of any record of the run.

    :raises UsageError: the history has no such record
    """
    try:
        kinds = worst_records(run_dir, read_verdict(run_dir)).get(name, [])
    except HarnessError:
        kinds = []  # not judged yet
    stories = _stories(run_dir, {name: kinds}, distribution)
    if not stories:
        raise UsageError(f"{run_dir}: the history has no record {name[0]} #{name[1]}")
    return stories[0]


def read_verdict(run_dir: Path) -> VerdictRecord:
    """Read verdict.json.

    :raises HarnessError: it is missing, cut off, or of another run
    """
    path = run_dir / VERDICT_FILE
    try:
        verdict = msgspec.json.decode(path.read_bytes(), type=VerdictRecord)
    except FileNotFoundError:
        raise HarnessError(f"{path} is missing: jbod check {run_dir} judges the run") from None
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessError(f"{path} cannot be read: {error!r}; jbod check {run_dir} judges the run again") from error
    own = read_settings(run_dir).run_id
    if verdict.run_id not in (None, own):
        raise HarnessError(f"{path} is of the run {verdict.run_id}, not of {own}; jbod check {run_dir} judges it")
    return verdict


def _stories(
    run_dir: Path, records: Mapping[Name, Sequence[str]], distribution: Callable[[], Distribution]
) -> list[Story]:
    known = [facts for name in records if (facts := gather(run_dir, name)) is not None]
    replicas = stored_replicas(run_dir)
    if known and brokers_of(run_dir):
        replicas |= look(run_dir, distribution(), read_run_json(run_dir).run_token, known)
    sources = read_sources(run_dir)
    return [tell(sources, facts, records[facts.name], replicas.get(facts.name)) for facts in known]
