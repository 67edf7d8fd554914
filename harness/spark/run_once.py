"""Each task runs once: the second attempt of the same task fails loudly.

Spark runs a task again when an executor is lost, and some of these losses it doesn't count as failures
(``spark.task.maxFailures``). A producer that ran twice in silence would send its records twice, and the run would
blame Kafka. So a task's first act is to create a file that must not exist yet.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from harness.errors import PipelineError


def claim(run_dir: Path, task: str) -> None:
    """Take the only right to run this task in this run.

    :raises PipelineError: somebody has it already; says who and since when
    """
    path = run_dir / "history" / ".claims" / task
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x") as file:  # O_EXCL: exactly one succeeds
            file.write(f"process {os.getpid()}, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")
    except FileExistsError as error:
        raise PipelineError(
            f"task {task} was started a second time (the first: {path.read_text().strip()}); not run again: it would "
            "send or read the same records once more"
        ) from error
