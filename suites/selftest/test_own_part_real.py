"""A real build that does not do its part makes a case invalid, and the case says so. A crowded machine does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.host.cache import cache_dir
from harness.kafka.distribution import from_maven
from harness.kafka.versions import KafkaVersion
from suites.selftest.changed_builds import build_from, has_entry, without_body
from suites.selftest.processes import run

pytestmark = pytest.mark.cluster

CASE = "kip-112/leader-at-runtime[kraft-chmod_000]"
LOST = "control/deleted-records[kraft-lost]"

NEVER_REGISTERS = ("org/apache/kafka/server/BrokerLifecycleManager.class", "sendBrokerRegistration")
NEVER_ASSIGNS = ("org/apache/kafka/server/AssignmentsManager.class", "maybeSendAssignments")


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        pytest.param(
            NEVER_REGISTERS,
            r"^Kafka must let every broker register|^broker-\d should keep running: ",
            id="never registers",
        ),
        pytest.param(
            NEVER_ASSIGNS,
            r"^Kafka must elect a leader for each partition, create its replicas, and assign them to log dirs: "
            r".*waited \d+\.0 s for orders to be led and replicated in full; "
            r"last seen: \[.*has not yet reported the log dirs of \d+ replicas to the controller",
            id="never assigns",
            marks=pytest.mark.weekly,
        ),
    ],
)
def test_a_build_that_does_not_do_its_part(
    open_folder: Path, tmp_path: Path, without: tuple[str, str], reason: str
) -> None:
    """One method of the broker does nothing. The case is invalid, exit code 1, and names the promise."""
    entry, method = without

    def change(name: str, content: bytes) -> tuple[str, bytes]:
        return name, without_body(content, method) if name == entry else content

    jars = from_maven(KafkaVersion.parse("4.3.1"), cache_dir()).class_path
    home = build_from(open_folder / "kafka", jars, change=change, concerns=lambda jar: has_entry(jar, entry))
    code, results = run(tmp_path, CASE, f"--kafka-home={home}")
    assert (code, results[CASE]["verdict"]) == (1, "invalid")
    assert re.search(reason, results[CASE]["reason"], re.DOTALL), results[CASE]["reason"]


BUSY = 6
SPIN = """
import os, sys
os.nice(-os.nice(0)) if os.getuid() == 0 else None
while os.getppid() == int(sys.argv[1]):  # ends with the test, also if that is killed
    for _ in range(1_000_000):
        pass
"""


@pytest.fixture
def crowded() -> Iterator[None]:
    """This test runs on one core, with busy processes that end with it; tests beside it keep the other cores."""
    cores = os.sched_getaffinity(0)
    with ExitStack() as busy:
        busy.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {max(cores)})
        for _ in range(BUSY):
            process = busy.enter_context(subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]))
            busy.callback(process.kill)
        yield


@pytest.mark.usefixtures("crowded")
def test_on_a_crowded_machine_only_harm_makes_a_case_invalid(tmp_path: Path) -> None:
    """A case without harm is valid, or unknown with the figures of the crowding; one with harm is invalid."""
    _, results = run(tmp_path, CASE, LOST)
    assert results[LOST]["verdict"] == "invalid", results[LOST]["reason"]
    assert "acked records are in no drain" in results[LOST]["reason"]
    verdict, reason = results[CASE]["verdict"], results[CASE]["reason"]
    assert verdict in ("valid", "unknown"), reason
    assert verdict == "valid" or re.search(r"on a crowded machine \(\d+\.\d threads per core", reason), reason
