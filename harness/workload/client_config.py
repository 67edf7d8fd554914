"""The settings of all librdkafka clients; each comment says why a setting is not librdkafka's default."""

from __future__ import annotations

from collections.abc import Mapping

ClientConfig = Mapping[str, str | int | float | bool]

_EVERY_CLIENT: ClientConfig = {
    # Reconnect soon to a broker that is down, to find it as soon as it is back.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 3000,
    # Give up a broker that hangs with open connections (SIGSTOP). The default, a minute, is as long as the harness
    # waits for progress: clients stalled for 62 s, though a new leader was elected after 3.4 s.
    "socket.timeout.ms": 10000,
    # Learn of a new leader quickly.
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.sparse": False,
}

PRODUCER_CONFIG: ClientConfig = {
    **_EVERY_CLIENT,
    "acks": "all",
    "enable.idempotence": True,
    # With more in flight, librdkafka up to 2.16 may write records twice (its issue 4953): it takes a new producer epoch
    # when a request behind a refused one comes back out of order. Then it sends again what the broker had appended.
    # control/not-enough-replicas shows it with five in flight. With one in flight, duplicates are Kafka's.
    "max.in.flight.requests.per.connection": 1,
    # The leader's log dir fails while an acks=all request waits for followers: it gets no answer before this time-out.
    # Yet a new leader is elected within a second. The default caused 30 s of silence in half of the runs.
    "request.timeout.ms": 3000,
    # A record that can't be written is indeterminate after a minute, not after five.
    "message.timeout.ms": 60000,
    "linger.ms": 5,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    # A fault must not fill the client's own queue.
    "queue.buffering.max.messages": 200000,
}
"""A producer's settings. A scenario can replace them, and those below."""

TRANSACTION_CONFIG: ClientConfig = {
    # How long an abandoned transaction holds read_committed readers back, and how long a coordinator waits for its own
    # log (TransactionStateManager.appendTransactionToLog). The default is 60 s.
    "transaction.timeout.ms": 10000,
    # The client insists that a record does not outlive its transaction.
    "message.timeout.ms": 10000,
    # A coordinator whose log dir fails may never answer. The client then asks the next coordinator.
    "socket.timeout.ms": 3000,
}
"""A transactional producer's settings over :data:`PRODUCER_CONFIG`."""

CONSUMER_CONFIG: ClientConfig = {
    **_EVERY_CLIENT,
    # The client requires a name. It never joins the group, and commits nothing.
    "group.id": "jbod",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    # Shows how far a partition was read where it ends with a transaction's marker and not with a record.
    "enable.partition.eof": True,
    # The client fetches from a new leader only after the pending fetch was answered: 500 ms by default.
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
}
"""A consumer's settings."""

MEMBER_CONFIG: ClientConfig = {
    # See harness.workload.group.
    "partition.assignment.strategy": "cooperative-sticky",
    # The least that brokers accept by default: it frees a dead member's partitions soon.
    "session.timeout.ms": 6000,
    # A member learns of a rebalance from a heartbeat's answer: 3 s by default.
    "heartbeat.interval.ms": 500,
}
"""A group member's settings over :data:`CONSUMER_CONFIG`."""
