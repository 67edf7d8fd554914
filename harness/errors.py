"""Every error that jbod raises, and the exit code that it stands for.

::

    JbodError
    ├── PromiseBroken          1  Kafka, or the build under test, did not do what a KIP promises
    ├── Inconclusive           2  nothing was shown, either way; never reported as a pass
    │   └── FaultNotProven     2  a fault was injected and its effect could not be shown from outside Kafka
    ├── HarnessError           3  the harness or its environment failed
    │   ├── EnvironmentLacks   3  a program, privilege or service that this machine doesn't have
    │   │   └── EngineGone     3  the Docker engine answered, and no longer does
    │   ├── DistributionError  3  something is there and is no usable Kafka build
    │   ├── HistoryError       3  a stored run that can't be judged: missing, cut off, of other columns
    │   ├── NodeDied           3  a broker, controller or ZooKeeper process ended that nobody had ended
    │   ├── AwaitTimeout       3  something that the harness itself waited for did not come
    │   ├── ToolFailed         3  one of Kafka's own programs ended with an error, or not in time
    │   └── PipelineError      3  the PySpark pair, not Kafka, failed
    └── UsageError             4  unknown option, selector, version, file
        └── BuildLacks         4  this Kafka build has no such tool, request or MBean; a case that needs it is skipped

A message says what happened, to what, the value seen, and where to look next, in one line where it can;
the process's exit code follows from the class alone (:data:`EXIT_NOTHING_RAN` has no error: it is an absence).
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
    """Base of all errors that jbod raises on purpose."""

    exit_code: ClassVar[int] = EXIT_HARNESS


class PromiseBroken(JbodError):
    """A guarantee was broken: Kafka, or the build under test, is at fault."""

    exit_code = EXIT_INVALID


class Inconclusive(JbodError):
    """Neither held nor broken: what was needed to tell did not happen."""

    exit_code = EXIT_INCONCLUSIVE


class FaultNotProven(Inconclusive):
    """A fault's effect could not be shown from outside Kafka, as the broker's own user."""


class HarnessError(JbodError):
    """The harness or its environment failed; says nothing about Kafka."""

    exit_code = EXIT_HARNESS


class EnvironmentLacks(HarnessError):
    """A program, privilege or service that is needed and not here; says how to get it."""


class EngineGone(EnvironmentLacks):
    """The Docker engine answered, and no longer does; what containers did since is not known."""


class DistributionError(HarnessError):
    """Something is there and is no usable Kafka build."""


class HistoryError(HarnessError):
    """A stored run that can't be judged: a table missing, cut off, or of other columns."""


class NodeDied(HarnessError):
    """A process of the cluster ended that nobody had ended; carries its last log lines."""


class AwaitTimeout(HarnessError):
    """Something that the harness waited for did not come in time."""


class ToolFailed(HarnessError):
    """One of Kafka's own programs ended with an error, or did not end in time; carries what it said."""


class PipelineError(HarnessError):
    """The PySpark producer, consumer or drain failed by itself."""


class UsageError(JbodError):
    """What was asked for doesn't exist or can't be: option, selector, version, file, combination."""

    exit_code = EXIT_USAGE


class BuildLacks(UsageError):
    """The Kafka build has no such tool, request or MBean; a case that meets it is skipped, with this as its reason."""


def worst(codes: list[int]) -> int:
    """The one exit code for many outcomes; of none, :data:`EXIT_NOTHING_RAN`."""
    return min(codes, key=EXIT_PRECEDENCE.index, default=EXIT_NOTHING_RAN)
