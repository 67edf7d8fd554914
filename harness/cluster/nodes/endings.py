"""Finds out whether a node that ended by itself was ended by its environment.

Kafka must keep its brokers and controllers running. So an end is Kafka's fault, except in two cases. SIGKILL ended the
node: the kernel sends it when memory runs out. Or the node's errors since its start name a cause outside Kafka. Some
errors can also be a bug of Kafka, such as a leak. They name such a cause only if the environment allows it: open files
only if this machine allows few, memory only if this machine has little, a setting that is refused (jbod or its user
chose it) only until the node has been up, and a missing class only in a build of the user's own.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping

from harness.host.limits import files_are_few, memory_is_low

_FULL_DISK = "the disk is full"
_FEW_FILES = "too few open files are allowed"
_LOW_MEMORY = "this machine has too little memory"
_REFUSED = "this build refuses a setting"
_NO_CLASS = "the build lacks a class"
_CAUSES: Mapping[str, str] = {
    "a port is in use": r"Address already in use|\bBindException\b",
    _FULL_DISK: r"No space left on device|Disk quota exceeded",
    _FEW_FILES: r"Too many open files",
    "too little memory": r"insufficient memory for the Java Runtime|Cannot allocate memory"
    r"|Could not reserve enough space|\bOutOfMemoryError: [Uu]nable to create (new )?native thread",
    _LOW_MEMORY: r"\bOutOfMemoryError\b",
    "this Java cannot run the build": r"\bUnsupportedClassVersionError\b|Unrecognized (VM )?option"
    r"|Could not create the Java Virtual Machine|Error occurred during initialization of VM"
    r"|Error opening zip file or JAR manifest|processing of -javaagent failed",
    "the node could not be executed": r"^setpriv: ",
    _REFUSED: r"\bConfigException\b",
    "the build has no such main class": r"Could not find or load main class",
    _NO_CLASS: r"\bNoClassDefFoundError\b|\bClassNotFoundException\b",
}
_UP = re.compile(r"\] (?:Kafka Server )?started \(kafka\.server\.Kafka")
"""The line of a node whose start has ended."""
_NEW_EVENT = re.compile(r"\n(?=\[\d{4}-\d\d-\d\d )")
_EVENT = re.compile(r"\[\d{4}-\d\d-\d\d [^\]]*\] (\w+) ")
_OF_THE_JVM = re.compile(
    r"Error: |Error occurred |Exception in thread |FATAL ERROR |There is insufficient |#|Unrecognized "
)
"""Beginnings of lines without a time that the JVM prints after an event of the log."""
_KILLED = "SIGKILL, which the kernel sends when memory runs out"


def cause_in_environment(
    exit_code: int | None, printed: str, *, may_be_full: bool, starting: bool, own_build: bool
) -> str | None:
    """Return the cause outside Kafka for which a node ended, with the line that names it; None if there is none.

    :param printed: the node's log and output since its last start
    :param may_be_full: a fault can have filled a log dir, so that a full disk is no cause outside Kafka
    :param starting: ``printed`` has the whole start, or its beginning
    :param own_build: the build is a folder or a source tree of the user
    """
    if exit_code == -signal.SIGKILL:
        return _KILLED
    is_possible = {
        _FULL_DISK: not may_be_full,
        _FEW_FILES: files_are_few(),
        _LOW_MEMORY: memory_is_low(),
        _REFUSED: starting and not _UP.search(printed),
        _NO_CLASS: own_build,
    }
    errors = [*_errors(printed)]
    for cause, pattern in _CAUSES.items():
        if is_possible.get(cause, True) and (line := next((line for line in errors if re.search(pattern, line)), None)):
            return f"{cause}: {line[:300]}"
    return None


def _errors(printed: str) -> Iterator[str]:
    """Yield the lines of errors, with their stack traces, and what the JVM printed."""
    for text in _NEW_EVENT.split(printed):
        event = _EVENT.match(text)
        is_error = event is None or event[1] in ("ERROR", "FATAL")
        yield from (line.strip() for line in text.splitlines() if is_error or _OF_THE_JVM.match(line))
