"""Reads what ``jbod probe --json`` found missing in a Kafka build, so that cases that need it are skipped at once.

The probe imports the suites, which this package must not import. So :func:`probe_apart` runs it as a separate process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import EXIT_HARNESS, HarnessError, JbodError, UsageError
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode
from harness.runner.subrun import call_apart
from harness.runner.suite_kinds import suite_of


@dataclass(frozen=True, kw_only=True)
class Lack:
    """A feature that the build should have in a mode, and lacks.

    :ivar seen: the probe's evidence
    :ivar needed_by: ids of the suites, scenarios and cases that need the feature; empty if all do
    :ivar skips: whether these cases are skipped
    :ivar without: what the suites do instead, if they are not skipped
    """

    id: str
    what: str
    mode: str
    seen: str
    needed_by: tuple[str, ...]
    skips: bool
    without: str

    def stops(self, case: str, mode: str) -> bool:
        """Return whether the case of this id must be skipped in this mode."""
        scenario = case.partition("[")[0]
        named = not self.needed_by or bool({case, scenario, suite_of(case)} & {*self.needed_by})
        return self.skips and self.mode == mode and named

    def __str__(self) -> str:
        """The reason for which a case is skipped."""
        return f"this build lacks {self.what} (jbod probe)"


@dataclass(frozen=True, kw_only=True)
class ProbedBuild:
    """The content of a probe's JSON file.

    :ivar sha256: of the build's jars
    :ivar modes: the metadata modes that were probed
    :ivar cause: why the build cannot be run at all; None if it can
    """

    kafka: str
    sha256: str
    modes: tuple[str, ...]
    lacks: tuple[Lack, ...]
    cause: str | None


def read_probe(file: Path) -> ProbedBuild:
    """Read a file of ``jbod probe --json``.

    :raises UsageError: there is no such file
    :raises HarnessError: the file is truncated or has another content
    """
    try:
        content = json.loads(file.read_text())
        causes = [of["cause"] for of in content["modes"].values() if not of["starts"]]
        return ProbedBuild(
            kafka=content["kafka"],
            sha256=content["sha256"],
            modes=tuple(content["modes"]),
            lacks=tuple(msgspec.convert(each, Lack) for each in content["leans"] if each["state"] == "missing"),
            cause="; ".join(dict.fromkeys(causes)) if content["exit_code"] == EXIT_HARNESS else None,
        )
    except FileNotFoundError:
        raise UsageError(f"--probe {file}: there is no such file; jbod probe BUILD --json FILE writes one") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise HarnessError(
            f"--probe {file} is not a file of jbod probe --json: {error!r}; jbod probe BUILD --json FILE writes one"
        ) from error


def read_lacks(files: Sequence[Path], builds: Builds) -> tuple[Lack, ...]:
    """Return what the builds of a run lack.

    :raises UsageError: a file belongs to none of these builds
    """
    if not files:
        return ()
    ours = {builds.of(mode).sha256: mode for mode in builds.modes()}
    found: list[Lack] = []
    for file in files:
        probed = read_probe(file)
        if probed.sha256 not in ours:
            other = f"Kafka {probed.kafka} (sha256 {probed.sha256[:12]})"
            again = f"jbod probe BUILD --json {file}"
            raise UsageError(f"--probe {file} is of another build, {other}; to write it for this build: {again}")
        modes = {str(mode) for mode in builds.modes() if builds.of(mode).sha256 == probed.sha256}
        found += [lack for lack in probed.lacks if lack.mode in modes]
    return tuple(found)


def probe_apart(options: BuildOptions, file: Path, say: Callable[[str], None]) -> ProbedBuild:
    """Probe a build in a separate process, unless ``file`` already has the result for this build and these modes.

    :param options: the options that choose the build
    :param file: the probe's JSON file, read and written
    :raises HarnessError: the build cannot be run at all
    :raises JbodError: the probe failed otherwise; it has printed the reason
    """
    builds = Builds.choose(options)
    modes = {str(mode) for mode in builds.modes()}
    sha256 = {builds.of(mode, say).sha256 for mode in builds.modes()}
    build = options.kafka or options.kafka_home or options.kafka_tarball
    if file.exists():
        known = read_probe(file)
        if {known.sha256} == sha256 and {*known.modes} == modes and known.cause is None:
            return known
    file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    say(f"probing what the suites need in {build}")
    mode = [f"--mode={options.mode}"] if options.mode else []
    code = call_apart("probe", str(build), *mode, f"--json={file}", quiet=True)
    if not file.exists():
        error = JbodError(f"jbod probe {build} ended with exit code {code} and without a result")
        error.exit_code = code  # type: ignore[misc]  # the probe's exit code
        raise error
    probed = read_probe(file)
    if probed.cause is not None:
        raise HarnessError(f"Kafka {probed.kafka} ({build}) cannot be run: {probed.cause}")
    return probed


def lack_lines(probed: ProbedBuild, cases: Collection[str]) -> list[str]:
    """Return one line for each lack of the build.

    It ends with the number of these cases that are skipped, or with what the suites do without the feature.
    """
    lines = []
    for lack in probed.lacks:
        count = sum(lack.stops(case, mode_of(case)) for case in cases)
        skipped = f"{count} {'case is' if count == 1 else 'cases are'} skipped"
        what = skipped if lack.skips else lack.without
        lines.append(f"Kafka {probed.kafka} lacks {lack.what} in mode {lack.mode} ({lack.seen}): {what}")
    return lines


def mode_of(case: str) -> str:
    """Return the metadata mode in the id of a case: the first word in its brackets. Empty if there is none."""
    inside = case.partition("[")[2].rstrip("]")
    return next((str(mode) for mode in Mode if inside == mode or inside.startswith(f"{mode}-")), "")
