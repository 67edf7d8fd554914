"""The known deviations of Kafka builds in a migration from ZooKeeper to KRaft (KIP-866), as data."""

from __future__ import annotations

from dataclasses import replace

from harness.kafka.versions import VersionRange
from harness.runner.deviation import Deviation

DEAD_SHOWN_ALIVE = Deviation(
    kip=866,
    promised="a broker in migration mode shows which brokers are alive, and which replicas are offline",
    actual="under the KRaft controller it shows every registered broker as alive, and no replica as offline",
    issue="none found; MigrationControllerChannelContext takes each registered broker for a live one",
    builds=VersionRange.parse(">=3.9.0,<4.0.0"),
    pollutes=False,  # it only shows in a response
)

REPLICAS_MADE_AGAIN = Deviation(
    kip=112,
    promised="a replica that is on no good log dir is created on one only if it is new, or if no log dir is bad",
    actual="in migration mode under the KRaft controller, a broker that starts with a bad log dir creates its replicas "
    "anew, empty, on a good one, leads those without other replicas, and refuses to start when the bad one is back",
    issue="none found; MigrationPropagator asks for every replica as a new one (isNew)",
    builds=VersionRange.parse(">=3.9.0,<4.0.0"),
)

ISR_CHANGE_LOST = Deviation(
    kip=866,
    promised="as a KRaft controller takes over, leaders go on changing their ISRs: a replica that catches up joins",
    actual="a leader whose request for its ISRs is in flight as its channel changes to the KRaft controller loses it, "
    "waits for its answer for good, and changes no ISR until it restarts",
    issue="KAFKA-14811",
    builds=VersionRange.parse(">=3.9.0,<4.0.0"),
    floods=r"Failed to alter partition to PendingExpandIsr\(.* OPERATION_NOT_ATTEMPTED",
)

ISR_CHANGE_LOST_AT_TIMES = replace(
    ISR_CHANGE_LOST,
    deterministic=False,  # without a hold, in one run of seven
)
