"""Changes classes of a build with Javassist, in one JVM for many jars."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote_plus

from harness.errors import HarnessError
from harness.host.cache import cache_dir, publish
from harness.host.java import FAST_START, java_command, javac
from harness.host.programs import run_to_end
from harness.host.scratch import scratch
from harness.kafka.bytecode.change import Change
from harness.kafka.maven import copy_dependencies

_JAVASSIST = "org.javassist:javassist:3.30.2-GA"
_SOURCES = Path(__file__).parent / "java"
_RELEASE = "11"
"""The Java that the engine's classes are made for: the oldest that runs a build with log dirs to test."""
_COMPILE_S = 60.0
_MUTATE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """A jar to make.

    :ivar jar: the changed classes are written there, with the classes that they call
    :ivar kind: what the changes are: a defect, or the points at which threads can be held
    """

    id: str
    changes: tuple[Change, ...]
    jar: Path
    kind: Literal["mutant", "points"] = "mutant"


def make_jars(class_path: Sequence[Path], orders: Sequence[Order], say: Callable[[str], None]) -> dict[Path, str]:
    """Make the jars of changes of one build; return why one can't be made, by jar, and "" for those made.

    :raises EnvironmentLacks: there is no JDK, or Javassist can't be fetched
    :raises HarnessError: the engine's JVM failed
    """
    if not orders:
        return {}
    engine = prepare(say)
    lines = []
    for order in orders:
        lines.append(" ".join((order.kind, quote(order.id, safe=""), quote(str(order.jar), safe=""))))
        lines += [_line(change) for change in order.changes]
    with scratch("mutants") as folder:
        request = folder / "request"
        request.write_text("\n".join(lines) + "\n", encoding="utf-8")
        printed = _run(engine, "jbod.MakeJars", class_path, request)
    answers = [line.split(" ") for line in printed if line.startswith(("made ", "error "))]
    if len(answers) != len(orders):
        raise _failed(0, printed)
    return {
        order.jar: "" if answer[0] == "made" else unquote_plus(answer[2])
        for order, answer in zip(orders, answers, strict=True)
    }


def list_places(
    class_path: Sequence[Path], jar: Path, listed: Path, classes: Sequence[str], say: Callable[[str], None]
) -> None:
    """Write the list of places of these classes, and the jar that notes which of them run.

    :param classes: their simple names
    :raises EnvironmentLacks: there is no JDK, or Javassist can't be fetched
    :raises HarnessError: the engine's JVM failed
    """
    _run(prepare(say), "jbod.Places", class_path, jar, listed, *classes)


def _run(engine: Sequence[Path], main: str, class_path: Sequence[Path], *arguments: Path | str) -> list[str]:
    """Run a program of the engine; return the lines that it prints."""
    own, build = (os.pathsep.join(map(str, each)) for each in (engine, class_path))
    argv = [*java_command(), *FAST_START, "-Xmx512m", "-cp", own, main, build, *map(str, arguments)]
    try:
        status, printed = run_to_end(argv, cwd=Path("/"), timeout_s=_MUTATE_S)
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"the engine that changes classes did not end within {_MUTATE_S:.0f} s") from error
    if status != 0:
        raise _failed(status, printed)
    return printed


def _failed(status: int, printed: Sequence[str]) -> HarnessError:
    thrown = (each for each in printed if "Exception" in each or "Error" in each)
    last = next(thrown, (printed or ["nothing"])[-1])
    return HarnessError(f"the engine that changes classes ended with status {status}: {last}")


def prepare(say: Callable[[str], None]) -> tuple[Path, ...]:
    """The engine's class path; compiled once for each state of its sources.

    :raises EnvironmentLacks: there is no JDK, or Javassist can't be fetched
    """

    def make(folder: Path) -> None:
        copy_dependencies([_JAVASSIST], folder, transitive=False, say=say)
        [javassist] = folder.glob("*.jar")
        compile_java(sorted(_SOURCES.glob("*.java")), folder / "classes", [javassist])

    folder = publish(cache_dir() / f"mutants-engine-{engine_sum()[:16]}", make)
    return (folder / "classes", *folder.glob("*.jar"))


@functools.cache
def engine_sum() -> str:
    """The checksum of the engine's sources; other sources may make other mutants of the same changes."""
    content = b"".join(file.read_bytes() for file in sorted(_SOURCES.glob("*.java")))
    return hashlib.sha256(_JAVASSIST.encode() + content).hexdigest()


def compile_java(sources: Sequence[Path], into: Path, class_path: Sequence[Path] = ()) -> None:
    """Compile Java sources into a folder of classes.

    :raises EnvironmentLacks: there is no ``javac``
    :raises HarnessError: they don't compile
    """
    given = ["-cp", os.pathsep.join(map(str, class_path))] if class_path else []
    argv = [javac(), "--release", _RELEASE, "-nowarn", "-d", str(into), *given, *map(str, sources)]
    status, lines = run_to_end(argv, cwd=Path("/"), timeout_s=_COMPILE_S)
    if status != 0:
        raise HarnessError(f"javac failed: {(lines or ['nothing'])[0]}")


def words_of(change: Change) -> dict[str, str]:
    """A change as the engine reads it, and as its checksum covers it."""
    words = {
        "class": change.class_,
        "method": change.method,
        "parameters": None if change.parameters is None else ",".join(change.parameters),
        "body": change.body,
        "before": change.before,
        "after": change.after,
        "call": change.call,
        "with": change.with_,
        "nth": change.nth,
        "branch": change.branch,
        "to": change.to,
        "sum": change.sum,
        "constant": _typed(change.constant),
        "to_constant": _typed(change.to_constant),
    }
    return {name: str(value) for name, value in words.items() if value is not None}


def _typed(value: bool | int | float | str | None) -> str | None:
    """A constant with the type by which the engine finds it; true is loaded as 1."""
    match value:
        case None:
            return None
        case str():
            return f"s:{value}"
        case float():
            return f"f:{value!r}"
        case _:
            return f"n:{int(value)}"


def _line(change: Change) -> str:
    return " ".join(("change", *(f"{name}={quote(value, safe='')}" for name, value in words_of(change).items())))
