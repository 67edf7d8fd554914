"""The cause of a failed Kafka tool is found in its output and log, in the forms of different builds."""

from __future__ import annotations

import io

import pytest

from harness.kafka.tools import reason

LOGGING = "log4j:WARN No appenders could be found for logger (x).\nSLF4J: Failed to load class\n"


@pytest.mark.parametrize(
    ("printed", "logged", "why"),
    [
        ("doing\nError: no such topic\nCaused by: x\n\tat y\n", "", "Error: no such topic; Caused by: x"),
        ("Error in partition(s):\nt-0: bad\n\tat y\n", "", "Error in partition(s): t-0: bad"),
        ("Could not downgrade x to 1. It is y.\n", "1 operation(s) failed.\n", "Could not downgrade x to 1. It is y."),
        ("Timed out before it could be started\n", LOGGING, "Timed out before it could be started"),
        ("", LOGGING + "kafka.X: bad\n\tat y\n", "kafka.X: bad"),
        (
            "",
            "Exception in thread y\n\tat y\nCaused by: java.lang.X: bad\n\t... 5 more\n",
            "Caused by: java.lang.X: bad",
        ),
        ("doing\n", "java.lang.X: bad\n", "java.lang.X: bad"),
        ("", "", "it printed nothing"),
    ],
)
def test_the_reason_is_the_error_that_a_tool_printed_or_logged(printed: str, logged: str, why: str) -> None:
    assert reason(io.StringIO(printed), logged) == why
