"""Named time budgets, in seconds, each with what causes it.

A budget is what a wait may take before it counts as broken, several times what was measured on 2 cores; it is never
slept through.
"""

from __future__ import annotations

BOOT_S = 90.0
"""A cluster's JVMs start and register; 4 to 7 s on idle cores."""

STOP_S = 30.0
"""A broker's controlled shutdown (``controlled.shutdown.*``), then its logs are closed; after that it is killed."""

REQUEST_S = 5.0
"""One request to one broker; a broker on loopback that takes longer does not answer."""

TOOL_S = 60.0
"""One of Kafka's own programs: a JVM starts (1 s on idle cores) and asks, some ask again for what isn't there yet."""

QUESTION_S = 20.0
"""A question to one of Kafka's own programs in a JVM that stays; 10 ms on idle cores, the first one a second."""

PROBE_S = 10.0
"""One small command as the broker's own user, to prove what a fault did."""

LOG_DIR_FAILURE_S = 30.0
"""A failed log dir is noticed at the next checkpoint (``replica.high.watermark.checkpoint.interval.ms``, 0.5 s here),
then told to the controller, which elects; KRaft gives a broker ``log.dir.failure.timeout.ms`` = 30 s to do so."""

BROKER_FAILURE_S = 30.0
"""A killed broker is missed after ``broker.session.timeout.ms`` or ``zookeeper.session.timeout.ms`` (3 or 6 s, 4 s)."""

CONTROLLER_FAILURE_S = 30.0
"""A killed controller is missed after ``controller.quorum.fetch.timeout.ms`` (2 s); then others stand for election."""

MOVE_S = 60.0
"""A replica of a few MB is copied to another log dir or broker; each look at it by Kafka's tool takes a second."""

RECOVERY_S = 60.0
"""Restarted brokers load their logs, register, and catch up until every ISR is full."""

PROGRESS_S = 60.0
"""Clients get through again after a fault: at most a few of their own request time-outs."""

EMPTYING_S = 5.0
"""What deleted topics leave goes after ``log.segment.delete.delay.ms``, 1 s here; a fresh cluster takes 6 to start."""

CLEANING_S = 20.0
"""What is dirty is compacted; the cleaner looks each ``log.cleaner.backoff.ms``, 15 s unless a case says less."""

FIRST_TASKS_S = 30.0
"""A broker's first look at what has expired and at what is to be deleted, after its start: fixed before Kafka 3.8."""
