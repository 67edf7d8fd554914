"""Every command answers the same bad inputs alike: the contract's exit code, and one line on standard error.

What does not exist is a usage error (4). What exists and cannot be used is an error of the environment (3). An error is
never on standard output, and never a traceback.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.errors import EXIT_HARNESS, EXIT_USAGE
from harness.host.broker_user import broker_user
from suites.selftest.forked_commands import Answer, Commands

ANOTHER_UID = broker_user().uid if os.getuid() == 0 else None
"""Whom folders can be closed to; None if this test may not change its user."""


@pytest.fixture
def commands(commands: Commands, open_folder: Path) -> Commands:
    """The commands, and a folder with what they are given."""
    (open_folder / "file.tgz").write_text("no tarball\n")
    (open_folder / "empty").mkdir()
    (open_folder / "closed").mkdir(mode=0)
    (open_folder / "cut-off").mkdir()
    (open_folder / "cut-off" / "run.json").write_text('{"case": "kip')
    return commands


RUN_DIR_COMMANDS = ("repro {}", "shrink {}", "pin {}", "check {}", "explain {}", "explain {} p0 17")
RUNS_DIR_COMMANDS = ("report {} --no-allure", "ledger {}")
BUILD_COMMANDS = (
    "run kip-36 {}",
    "list {}",
    "ledger {}",
    "nightly --budget 1s {}",
    "bench --rounds 0 {}",
    "tool {} topics",
    "cluster up {}",
)
INPUTS = [
    *(
        (command.format(given), code, says)
        for command in RUN_DIR_COMMANDS
        for given, code, says in (
            ("HERE/nowhere", EXIT_USAGE, "no such run folder: HERE/nowhere"),
            ("HERE/file.tgz", EXIT_HARNESS, "HERE/file.tgz is a file, not a run folder"),
            ("HERE/empty", EXIT_HARNESS, "HERE/empty/run.json is missing"),
            ("HERE/cut-off", EXIT_HARNESS, "HERE/cut-off/run.json"),
        )
    ),
    *(
        (command.format(given), code, says)
        for command in RUNS_DIR_COMMANDS
        for given, code, says in (
            ("HERE/nowhere", EXIT_USAGE, "no such runs folder: HERE/nowhere"),
            ("HERE/file.tgz", EXIT_HARNESS, "HERE/file.tgz is a file, not a runs folder"),
        )
    ),
    ("report HERE/cut-off --no-allure", EXIT_HARNESS, "HERE/cut-off is damaged"),
    *(
        (command.format(given), code, says)
        for command in BUILD_COMMANDS
        for given, code, says in (
            ("--kafka four", EXIT_USAGE, "'four' is not a Kafka version"),
            ("--kafka-home HERE/nowhere", EXIT_USAGE, "HERE/nowhere: there is no such folder"),
            ("--kafka-home HERE/empty", EXIT_HARNESS, "HERE/empty is not a Kafka build"),
            ("--kafka-home HERE/file.tgz", EXIT_HARNESS, "HERE/file.tgz is a file; a tarball goes to --kafka-tarball"),
            ("--kafka-tarball HERE/nowhere", EXIT_USAGE, "HERE/nowhere: there is no such file"),
            ("--kafka-tarball HERE/file.tgz", EXIT_HARNESS, "HERE/file.tgz is not a tarball"),
            ("--kafka-tarball HERE/empty", EXIT_HARNESS, "HERE/empty is not a file; a folder goes to --kafka-home"),
            ("--mode both", EXIT_USAGE, "unknown mode 'both': zk or kraft"),
        )
    ),
    *(
        (f"{command} {given}", code, says)
        for command in ("probe", "qualify --candidate")
        for given, code, says in (
            ("four", EXIT_USAGE, "'four' is not a Kafka version"),
            ("HERE/empty", EXIT_HARNESS, "HERE/empty is not a Kafka build"),
            ("HERE/file.tgz", EXIT_HARNESS, "HERE/file.tgz is not a tarball"),
            ("HERE/nowhere", EXIT_USAGE, "HERE/nowhere: there is no such folder"),
        )
    ),
    *(
        (command, EXIT_USAGE, "unknown selector 'kip-1122'")
        for command in (
            "run kip-1122",
            "run kip-1122 --jobs 2",
            "list kip-1122",
            "qualify kip-1122 --candidate 4.3.1",
            "bisect kip-1122 --good 3.7.0 --bad 3.9.2",
        )
    ),
    ("run kip-36 --jobs -1", EXIT_USAGE, "-1 is neither a number from 1 to 64 nor auto"),
    ("run kip-36 --jobs many", EXIT_USAGE, "many is neither a number from 1 to 64 nor auto"),
    ("run kip-36 --schedules -1", EXIT_USAGE, "--schedules -1: not a whole number above 0"),
    ("run kip-36 --stop-after -1", EXIT_USAGE, "--stop-after -1: not a number of seconds"),
    ("run kip-36 --seed x", EXIT_USAGE, "--seed x: not a whole number"),
    ("run kip-36 --clusters some", EXIT_USAGE, "--clusters some: choose shared or own"),
    ("run kip-36 --keep-cluster some", EXIT_USAGE, "--keep-cluster some: choose never or on-failure or always"),
    ("run kip-36 --schedule HERE/empty", EXIT_HARNESS, "--schedule HERE/empty can't be read"),
    ("run kip-36 --hold nowhere@struck", EXIT_USAGE, "--hold nowhere@struck: there is no point nowhere; jbod points"),
    ("run kip-36 --hold move-reads@here", EXIT_USAGE, "--hold move-reads@here: not POINT@struck|others|controllers"),
    ("run kip-36 --set x", EXIT_USAGE, "--set 'x': not KEY=VALUE"),
    ("run kip-36 --set =1", EXIT_USAGE, "--set '=1': not KEY=VALUE"),
    ("run kip-36 --set node.id=7", EXIT_USAGE, "--set node.id=7: jbod itself sets node.id"),
    ("run kip-36 --set log.dirs=/mnt/a --jobs 2", EXIT_USAGE, "--set log.dirs=/mnt/a: jbod itself sets log.dirs"),
    ("run kip-36 --set num.io.threads=2 --set num.io.threads=3", EXIT_USAGE, "num.io.threads has two values, 2 and 3"),
    ("run kip-36 --kafka 4.4.0,4.3.1 --set listeners=x", EXIT_USAGE, "jbod itself sets listeners"),
    ("points --kafka four", EXIT_USAGE, "'four' is not a Kafka version"),
    ("points --check", EXIT_USAGE, "--check needs --kafka VERSION"),
    ("run kip-36 --probe HERE/file.tgz", EXIT_HARNESS, "--probe HERE/file.tgz is not a file of jbod probe --json"),
    ("nightly --budget -5m", EXIT_USAGE, "'-5m' is not a time"),
    ("nightly --every x", EXIT_USAGE, "'x' is not a time"),
    ("ledger --every x", EXIT_USAGE, "'x' is not a time"),
    ("bisect kip-36 --good 3.9.2 --bad 3.9.2", EXIT_USAGE, "--good and --bad are both 3.9.2"),
    ("bisect kip-36 --good four --bad 3.9.2", EXIT_USAGE, "'four' is not a Kafka version"),
    ("bisect kip-36 --good 3.7.0 --bad 3.9.2 --repeats -1", EXIT_USAGE, "-1 is not in the range"),
    ("qualify --candidate 4.3.1 --repeats -1", EXIT_USAGE, "-1 is not in the range"),
    ("bench --rounds -1", EXIT_USAGE, "-1 is not in the range"),
    ("bench --only cases", EXIT_USAGE, "'cases' is not one of"),
    ("bench --json HERE/nowhere/out.json", EXIT_USAGE, "there is no folder HERE/nowhere"),
    ("cluster up --brokers -1", EXIT_USAGE, "-1 is not in the range"),
    ("cluster down nowhere", EXIT_USAGE, "no cluster 'nowhere' is running"),
    ("tool nothing", EXIT_USAGE, "no tool 'nothing'"),
    ("image build --kafka four", EXIT_USAGE, "'four' is not a Kafka version"),
    ("cluster status --nothing", EXIT_USAGE, "No such option"),
    ("clean --nothing", EXIT_USAGE, "No such option"),
    ("doctor --nothing", EXIT_USAGE, "No such option"),
    ("image base --nothing", EXIT_USAGE, "No such option"),
]


@pytest.mark.parametrize(("line", "code", "says"), INPUTS, ids=[line for line, _, _ in INPUTS])
def test_one_line_on_standard_error(commands: Commands, line: str, code: int, says: str) -> None:
    answer = commands.run(*line.replace("HERE", str(commands.folder)).split())
    check_error(answer, code, says.replace("HERE", str(commands.folder)))


@pytest.mark.skipif(ANOTHER_UID is None, reason="only root can call a command as another user")
@pytest.mark.parametrize("command", [*RUN_DIR_COMMANDS, *RUNS_DIR_COMMANDS])
def test_a_folder_that_this_user_cannot_read(commands: Commands, command: str) -> None:
    closed = commands.folder / "closed"
    answer = commands.run(*command.format(closed).split(), uid=ANOTHER_UID)
    check_error(answer, EXIT_HARNESS, f"folder {closed} can't be read")


def check_error(answer: Answer, code: int, says: str) -> None:
    """The error is one line on standard error, and nowhere on standard output."""
    assert answer.code == code, answer
    assert [line.partition(":")[0] for line in answer.err] == ["jbod"], answer
    assert says in answer.err[0]
    assert says not in answer.out
    assert "Traceback" not in answer.out
    assert "rror" not in answer.out
