"""The known deviations of Kafka builds from KIP-36, as data."""

from __future__ import annotations

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

LEADERS_OVER_RACKS = Deviation(
    kip=36,
    promised="if the partitions are a multiple of the brokers, all brokers have as many leaders and as many replicas",
    actual="KRaft's placer spreads leaders evenly over racks, so brokers of one rack may have more leaders or replicas",
    issue="KAFKA-15354",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

RACKS_PASSED_OVER = Deviation(
    kip=36,
    promised="leaders are chosen from the racks round-robin; if the partitions are a multiple of the brokers, all "
    "brokers have as many leaders and as many replicas",
    actual="from the second round on, KRaft's placer skips racks of one broker, which it considers used up, so brokers "
    "may have more leaders or replicas than others",
    issue="none found: StripedReplicaPlacer.BrokerList keeps its position when a new epoch begins",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

GENERATED_IN_STRIPES = Deviation(
    kip=36,
    promised="kafka-reassign-partitions assigns replicas along the rack-alternated broker list",
    actual="--generate uses KRaft's placer",
    issue="KAFKA-18798",
    builds=VersionRange.parse(">=4.1.0"),
    pollutes=False,
)

ADDED_ELSEWHERE = Deviation(
    kip=36,
    promised="if the partitions are a multiple of the brokers, all brokers have as many leaders",
    actual="the placement of partitions that are added to a topic does not continue where its first ones ended",
    issue="KAFKA-17198, in KRaft KAFKA-14437",
    builds=VersionRange.parse(">=1.0.0"),
    pollutes=False,
)

EMPTY_RACKS = Deviation(
    kip=36,
    promised="a broker whose rack is not available has none in metadata",
    actual="with an inter.broker.protocol.version below 0.10.0, every broker has an empty rack in metadata",
    issue='none found; the generated UpdateMetadataRequest has "" where its version has no rack',
    builds=VersionRange.parse(">=2.4.0,<4.0.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

TOOL_REFUSES_WITHOUT_REASON = Deviation(
    kip=36,
    promised="if some brokers have no rack, kafka-topics refuses, and says so",
    actual="it reports an unexpected server error, and only the broker's log has the reason",
    issue="none found",
    builds=VersionRange.parse(">=3.0.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

AUTOMATIC_REFUSED = Deviation(
    kip=36,
    promised="if some brokers have no rack, automatic topic creation ignores racks",
    actual="the topics are not created",
    issue="none found; since AutoTopicCreationManager assigns as CreateTopics does (KIP-590)",
    builds=VersionRange.parse(">=2.8.0"),
    modes=(Mode.ZK,),
    pollutes=False,
)

NO_RACK_IS_A_RACK = Deviation(
    kip=36,
    promised="if some brokers have no rack, kafka-topics refuses, and says so",
    actual="it creates the topic, and treats the brokers without a rack as one more rack",
    issue="none found; StripedReplicaPlacer treats an empty rack as a rack",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

AUTOMATIC_BY_RACKS = Deviation(
    kip=36,
    promised="if some brokers have no rack, automatic topic creation ignores racks",
    actual="replicas are spread over the racks, and the brokers without a rack count as one more rack",
    issue="none found; StripedReplicaPlacer treats an empty rack as a rack",
    builds=VersionRange.parse(">=3.7.0"),
    modes=(Mode.KRAFT,),
    pollutes=False,
)

NO_OPTION_TO_IGNORE_RACKS = Deviation(
    kip=36,
    promised="if some brokers have no rack, an option of kafka-topics makes it ignore racks",
    actual="it has no such option: the broker places the replicas",
    issue="KAFKA-12596, which removed --zookeeper",
    builds=VersionRange.parse(">=3.0.0"),
    pollutes=False,
)
