"""The errors that jbod raises, and their exit codes.

::

    JbodError
    ├── PromiseBroken          1
    ├── Inconclusive           2
    │   └── FaultNotProven     2
    ├── HarnessError           3
    │   ├── EnvironmentLacks   3
    │   │   └── EngineGone     3
    │   ├── DistributionError  3
    │   ├── HistoryError       3
    │   ├── NodeDied           3
    │   ├── AwaitTimeout       3
    │   ├── ToolFailed         3
    │   │   └── ToolTooLate    3
    │   └── PipelineError      3
    │       └── NotServed      3
    └── UsageError             4
        └── BuildLacks         4

A message says what happened, to what, the value seen, and what to do, in one line if it can. The exit code follows from
the class. :data:`EXIT_NOTHING_RAN` has no class: nothing failed. Some packages derive errors of their own from these,
such as ``NoAnswer`` and ``Refused`` in :mod:`harness.kafka`.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_VALID = 0
EXIT_INVALID = 1
EXIT_INCONCLUSIVE = 2
EXIT_HARNESS = 3
EXIT_USAGE = 4
EXIT_NOTHING_RAN = 5

# If several apply, the first of these wins.
EXIT_PRECEDENCE = (EXIT_USAGE, EXIT_INVALID, EXIT_HARNESS, EXIT_INCONCLUSIVE, EXIT_NOTHING_RAN, EXIT_VALID)


class JbodError(Exception):
    """Base class of all errors that jbod raises on purpose."""

    exit_code: ClassVar[int] = EXIT_HARNESS


class PromiseBroken(JbodError):
    """Kafka, or the build under test, did not do what a KIP promises or relies on."""

    exit_code = EXIT_INVALID


class Inconclusive(JbodError):
    """The run could not show whether a promise was kept; never reported as a pass."""

    exit_code = EXIT_INCONCLUSIVE


class FaultNotProven(Inconclusive):
    """The effect of a fault could not be shown from outside Kafka, as the broker's own user."""


class HarnessError(JbodError):
    """The harness or its environment failed. Says nothing about Kafka."""


class EnvironmentLacks(HarnessError):
    """This machine lacks a program, privilege or service; the message says how to get it."""


class EngineGone(EnvironmentLacks):
    """The Docker engine no longer answers; what containers did since then is unknown."""


class DistributionError(HarnessError):
    """A folder, file or image is not a usable Kafka build."""


class HistoryError(HarnessError):
    """A stored run can't be judged: a table is missing, cut off, or has other columns."""


class NodeDied(HarnessError):
    """A node ended, and Kafka is not to blame; the message has the cause and the last log lines."""


class AwaitTimeout(HarnessError):
    """The harness waited for something, and it did not come in time."""


class ToolFailed(HarnessError):
    """One of Kafka's command-line tools ended with an error or too late; the message has its reason."""


class ToolTooLate(ToolFailed):
    """One of Kafka's command-line tools did not end in time."""


class PipelineError(HarnessError):
    """The PySpark producer, consumer or drain failed by itself."""


class NotServed(PipelineError):
    """A client runs, and Kafka does not serve it. :mod:`harness.cluster.own_part` decides who is to blame."""


class UsageError(JbodError):
    """An option, selector, version or file that doesn't exist, or options that exclude each other."""

    exit_code = EXIT_USAGE


class BuildLacks(UsageError):
    """The Kafka build has no such tool, request or MBean; a case that needs it is skipped with this reason."""


def worst(codes: list[int]) -> int:
    """The one exit code for many outcomes; :data:`EXIT_NOTHING_RAN` for none."""
    return min(codes, key=EXIT_PRECEDENCE.index, default=EXIT_NOTHING_RAN)
