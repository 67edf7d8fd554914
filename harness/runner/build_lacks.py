"""What a build lacks, as ``jbod probe --json`` has found it: read here, so that what needs it doesn't even begin.

The probe itself knows the suites, which nothing here may import; so it is run apart, as anybody runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import EXIT_HARNESS, HarnessError, JbodError, UsageError
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode
from harness.runner.subrun import call_apart
from harness.runner.suite_kinds import suite_of


@dataclass(frozen=True, kw_only=True)
class Lack:
    """One thing that the build should have in a mode, and hasn't.

    :ivar seen: why the probe says so
    :ivar needed_by: suites, scenarios and cases by their ids; empty for all
    :ivar skips: they can't run without it; else :ivar without: says what is done instead
    """

    id: str
    what: str
    mode: str
    seen: str
    needed_by: tuple[str, ...]
    skips: bool
    without: str

    def stops(self, case: str, mode: str) -> bool:
        """Whether a case, by its id, can't run for want of it."""
        scenario = case.partition("[")[0]
        named = not self.needed_by or bool({case, scenario, suite_of(case)} & {*self.needed_by})
        return self.skips and self.mode == mode and named

    def __str__(self) -> str:
        """The reason of those that are skipped."""
        return f"this build lacks {self.what} (jbod probe)"


@dataclass(frozen=True, kw_only=True)
class ProbedBuild:
    """What a file of the probe says.

    :ivar modes: in which it was tried
    :ivar cause: why it can't be run at all; None where it can
    """

    kafka: str
    sha256: str
    modes: tuple[str, ...]
    lacks: tuple[Lack, ...]
    cause: str | None


def read_probe(file: Path) -> ProbedBuild:
    """What ``jbod probe --json`` wrote.

    :raises UsageError: there is no such file
    :raises HarnessError: it is not the probe's, or cut off
    """
    try:
        told: Mapping[str, Any] = json.loads(file.read_text())
        causes = [of["cause"] for of in told["modes"].values() if not of["starts"]]
        return ProbedBuild(
            kafka=told["kafka"],
            sha256=told["sha256"],
            modes=tuple(told["modes"]),
            lacks=tuple(
                Lack(
                    id=each["id"],
                    what=each["what"],
                    mode=each["mode"],
                    seen=each["seen"],
                    needed_by=tuple(each["needed_by"]),
                    skips=each["skips"],
                    without=each["without"],
                )
                for each in told["leans"]
                if each["state"] == "missing"
            ),
            cause="; ".join(dict.fromkeys(causes)) if told["exit_code"] == EXIT_HARNESS else None,
        )
    except FileNotFoundError:
        raise UsageError(f"--probe {file}: there is no such file; jbod probe BUILD --json FILE writes one") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"--probe {file} can't be read as what jbod probe --json writes: {error!r}") from error


def read_lacks(files: Sequence[Path], builds: Builds) -> tuple[Lack, ...]:
    """What the builds of a run lack.

    :raises UsageError: a file is of none of its builds
    """
    if not files:
        return ()
    ours = {builds.of(mode).sha256: mode for mode in builds.modes()}
    found: list[Lack] = []
    for file in files:
        probed = read_probe(file)
        if probed.sha256 not in ours:
            told = f"Kafka {probed.kafka} (sha256 {probed.sha256[:12]})"
            raise UsageError(f"--probe {file} is of another build, {told}: jbod probe BUILD --json {file}")
        modes = {str(mode) for mode in builds.modes() if builds.of(mode).sha256 == probed.sha256}
        found += [lack for lack in probed.lacks if lack.mode in modes]
    return tuple(found)


def probe_apart(options: BuildOptions, file: Path, say: Callable[[str], None]) -> ProbedBuild:
    """What the probe finds of a build; what it found of this very build before, in the same modes, stands.

    :param options: that choose one build
    :raises HarnessError: it can't be run at all
    :raises JbodError: the probe failed otherwise, and has said why
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
    say(f"trying what the suites lean on in {build}")
    mode = [f"--mode={options.mode}"] if options.mode else []
    code = call_apart("probe", str(build), *mode, f"--json={file}", quiet=True)
    if not file.exists():
        error = JbodError(f"jbod probe {build} ended with exit code {code}, and found nothing")
        error.exit_code = code  # type: ignore[misc]  # its own
        raise error
    probed = read_probe(file)
    if probed.cause is not None:
        raise HarnessError(f"Kafka {probed.kafka} ({build}) can't be run: {probed.cause}")
    return probed


def told(probed: ProbedBuild, cases: Collection[str]) -> list[str]:
    """A line for each thing that the build lacks, with how many of these cases are skipped for want of it."""
    lines = []
    for lack in probed.lacks:
        count = sum(lack.stops(case, mode_of(case)) for case in cases)
        skipped = f"{count} {'case is' if count == 1 else 'cases are'} skipped"
        what = skipped if lack.skips else lack.without
        lines.append(f"Kafka {probed.kafka} lacks {lack.what} in mode {lack.mode} ({lack.seen}): {what}")
    return lines


def mode_of(case: str) -> str:
    """The mode in a case's id, which comes first in its brackets."""
    inside = case.partition("[")[2].rstrip("]")
    return next((str(mode) for mode in Mode if inside == mode or inside.startswith(f"{mode}-")), "")
