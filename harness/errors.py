"""The errors that jbod raises, and the exit code of each.

::

    JbodError
    ├── PromiseBroken          1  Kafka, or the build under test, did not do what a KIP promises
    ├── Inconclusive           2  the run could not show whether a promise held; never reported as a pass
    │   └── FaultNotProven     2  no effect of an injected fault could be shown from outside Kafka
    ├── HarnessError           3  the harness or its environment failed
    │   ├── EnvironmentLacks   3  this machine lacks a program, privilege or service
    │   │   └── EngineGone     3  the Docker engine answered earlier and no longer does
    │   ├── DistributionError  3  the file or folder exists but is not a usable Kafka build
    │   ├── HistoryError       3  a stored run cannot be judged: table missing, truncated, or with other columns
    │   ├── NodeDied           3  a broker, controller or ZooKeeper process ended unexpectedly
    │   ├── AwaitTimeout       3  a wait of the harness itself timed out
    │   ├── ToolFailed         3  one of Kafka's own programs failed or timed out
    │   └── PipelineError      3  the PySpark producer, consumer or drain failed, not Kafka
    └── UsageError             4  unknown option, selector, version or file
        └── BuildLacks         4  this Kafka build has no such tool, request or MBean; the case is skipped

A message says what happened, to what, which value was seen, and where to look next, in one line where possible. The
exit code follows from the class alone. :data:`EXIT_NOTHING_RAN` has no error class.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_VALID = 0
EXIT_INVALID = 1
EXIT_INCONCLUSIVE = 2
EXIT_HARNESS = 3
EXIT_USAGE = 4
EXIT_NOTHING_RAN = 5

# Where several apply, the first of these wins.
EXIT_PRECEDENCE = (EXIT_USAGE, EXIT_INVALID, EXIT_HARNESS, EXIT_INCONCLUSIVE, EXIT_NOTHING_RAN, EXIT_VALID)


class JbodError(Exception):
    """Base class of all errors that jbod raises on purpose."""

    exit_code: ClassVar[int] = EXIT_HARNESS


class PromiseBroken(JbodError):
    """Kafka, or the build under test, broke a guarantee."""

    exit_code = EXIT_INVALID


class Inconclusive(JbodError):
    """The run could not show whether a guarantee held."""

    exit_code = EXIT_INCONCLUSIVE


class FaultNotProven(Inconclusive):
    """The effect of a fault could not be shown from outside Kafka, as the broker's own user."""


class HarnessError(JbodError):
    """The harness or its environment failed. Says nothing about Kafka."""

    exit_code = EXIT_HARNESS


class EnvironmentLacks(HarnessError):
    """This machine lacks a program, privilege or service. The message says how to get it."""


class EngineGone(EnvironmentLacks):
    """The Docker engine answered earlier and no longer does. The state of its containers is unknown."""


class DistributionError(HarnessError):
    """The file or folder exists but is not a usable Kafka build."""


class HistoryError(HarnessError):
    """A stored run cannot be judged: a table is missing, truncated, or has other columns."""


class NodeDied(HarnessError):
    """A process of the cluster ended although the harness did not end it. The message has its last log lines."""


class AwaitTimeout(HarnessError):
    """A wait of the harness timed out."""


class ToolFailed(HarnessError):
    """One of Kafka's own programs failed or timed out. The message has its output."""


class PipelineError(HarnessError):
    """The PySpark producer, consumer or drain failed by itself."""


class UsageError(JbodError):
    """The option, selector, version or file does not exist, or the combination is not possible."""

    exit_code = EXIT_USAGE


class BuildLacks(UsageError):
    """The Kafka build has no such tool, request or MBean. A case that raises it is skipped with this reason."""


def worst(codes: list[int]) -> int:
    """Return the one exit code for many; :data:`EXIT_NOTHING_RAN` for an empty list.

    :raises ValueError: a code is not one of :data:`EXIT_PRECEDENCE`
    """
    return min(codes, key=EXIT_PRECEDENCE.index, default=EXIT_NOTHING_RAN)
