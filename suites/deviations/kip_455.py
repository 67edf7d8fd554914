"""The known deviations of Kafka builds from KIP-455, as data."""

from __future__ import annotations

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

GROWTH_NOT_CANCELLED = Deviation(
    kip=455,
    promised="kafka-reassign-partitions --cancel cancels a reassignment that is under way",
    actual="it says that one which only adds replicas is not active, and removes its throttle: the replicas are added",
    issue="https://github.com/apache/kafka/pull/20003",
    builds=VersionRange.parse(">=3.7.0,<4.0.1"),
    pollutes=False,
)

CANCELLED_REPLICA_STAYS = Deviation(
    kip=455,
    promised="when a reassignment is cancelled, the replicas that it was adding are deleted",
    actual="their broker ignores the request to delete them, since it has no new leader epoch: they stay",
    issue="KAFKA-13972",
    builds=VersionRange.parse(">=2.6.0,<3.4.1"),
    modes=(Mode.ZK,),
)

STAYING_REPLICA_AWAITED = Deviation(
    kip=455,
    promised="a reassignment ends when the replicas that it adds are in the ISR, unless the ISR would shrink",
    actual="it never ends while a replica that stays is not in the ISR, for example on a failed log dir",
    issue="KAFKA-19975",
    builds=VersionRange.parse(">=3.8.0,<4.3.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,  # it ends when the replica is back
)

LEADER_REMOVED = Deviation(
    kip=455,
    promised="a partition with a replica in the ISR on a good log dir has a leader",
    actual="if a reassignment replaces another one that was adding the leader, the partition has no leader",
    issue="KAFKA-14808",
    builds=VersionRange.parse(">=2.4.0"),
    modes=(Mode.ZK,),
    pollutes=False,  # a leader is elected when the reassignment is cancelled
)

REVERSED_NEVER_ENDS = Deviation(
    kip=455,
    promised="a reassignment that is under way can be replaced by another one, also by one to the old replicas",
    actual="a replica that was being added and shall be removed again stays, and the reassignment never ends",
    issue="none known; fixed by KAFKA-15665, and back since KAFKA-19975",
    builds=VersionRange.parse("<3.8.0 | >=4.3.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

ENDS_ON_FAILED_LOG_DIR = Deviation(
    kip=455,
    promised="a reassignment ends when its new replicas are in sync; until then the old ones stay and serve",
    actual="it ends although the new replica's log dir has failed and the controller knows of it: no replica leads, "
    "and the old replica is deleted",
    issue="none found; ReplicationControlManager.ineligibleReplicasForIsr checks the broker, not the log dir",
    builds=VersionRange.parse(">=3.7.0"),
)
