"""Small Java programs that the tests of the mutants' engine compile, change and run."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from harness.host.java import java_command
from harness.kafka.bytecode.engine import compile_java


def make_jar(folder: Path, source: str, main: str) -> Path:
    """Compile a class into a jar in this folder.

    :param main: its full name
    """
    simple, compiled = main.rpartition(".")[2], f"{main.replace('.', '/')}.class"
    (folder / f"{simple}.java").write_text(source)
    compile_java([folder / f"{simple}.java"], folder / "classes")
    jar = folder / "sample.jar"
    with zipfile.ZipFile(jar, "w") as made:
        made.write(folder / "classes" / compiled, compiled)
    return jar


def run_class(main: str, *class_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a class; the verifier checks it as it loads."""
    argv = [*java_command(), "-cp", ":".join(map(str, class_path)), main]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done
