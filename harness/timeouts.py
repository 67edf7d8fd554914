"""Named time-outs in seconds, each with its reason.

A wait that takes longer than its time-out counts as failed. A time-out is several times the time measured on 2 cores;
no wait sleeps for all of it. With other settings of brokers than the fast ones, each wait for Kafka may take longer by
what they add (:attr:`harness.cluster.spec.ClusterSpec.delay_s`).
"""

from __future__ import annotations

BOOT_S = 90.0
"""A cluster's JVMs start and register; 4 to 7 s on idle cores."""

STOP_S = 30.0
"""A broker shuts down (``controlled.shutdown.*``) and closes its logs; after this it is killed."""

REQUEST_S = 5.0
"""One request to one broker; on loopback, a broker that takes longer counts as not answering."""

TOOL_S = 60.0
"""One of Kafka's tools: a JVM starts (1 s on idle cores) and sends its requests, some of them again and again."""

QUESTION_S = 20.0
"""One of Kafka's tools in their shared JVM: 10 ms on idle cores, a second for the first call."""

PROBE_S = 10.0
"""One small command as the broker's own user, to prove what a fault did."""

LOG_DIR_FAILURE_S = 30.0
"""A broker notices a failed log dir at its next checkpoint (``replica.high.watermark.checkpoint.interval.ms``, 0.5 s
here) and tells the controller, which elects leaders; KRaft gives it ``log.dir.failure.timeout.ms``, 30 s, to do so."""

BROKER_FAILURE_S = 30.0
"""A killed broker's session ends: ``broker.session.timeout.ms`` (3 or 6 s), ``zookeeper.session.timeout.ms`` (4 s)."""

CONTROLLER_FAILURE_S = 30.0
"""Other controllers stand for election ``controller.quorum.fetch.timeout.ms`` (2 s) after the active one is killed."""

MOVE_S = 60.0
"""A replica of a few MB moves to another log dir or broker; each check by Kafka's tool takes a second."""

RECOVERY_S = 60.0
"""Restarted brokers load their logs, register, and catch up until every ISR is full."""

PROGRESS_S = 60.0
"""Clients make progress again after a fault: at most a few of their own request time-outs."""

EMPTYING_S = 5.0
"""Deleted topics' files go after ``log.segment.delete.delay.ms``, 1 s here; a new cluster takes 6 s to start."""

SETTLED_S = 30.0
"""At the end of a case, brokers report their last log dirs to the controller, in tens of milliseconds. After a failed
report a broker waits for up to 10 s, or longer before 3.9, before it sends it again (``AssignmentsManager``)."""

CLEANING_S = 20.0
"""The log cleaner compacts a dirty log; it checks every ``log.cleaner.backoff.ms``, 15 s unless a case sets less."""

FIRST_TASKS_S = 30.0
"""The delay of a broker's first retention and deletion tasks after its start, which is fixed before Kafka 3.8."""
