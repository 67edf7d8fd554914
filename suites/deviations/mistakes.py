"""Deviations that show as an exception in a node's log, which only a mistake in the code throws.

They do no harm that the checks see, and depend on timing, so they may show in any case.
"""

from __future__ import annotations

from functools import partial

from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation

_mistake = partial(Deviation, deterministic=False, pollutes=False)

MOVE_FORGOTTEN = _mistake(
    kip=113,
    promised="a broker handles the controller's acknowledgement of a move without an error",
    actual="a NullPointerException, if the move has ended or was called off meanwhile",
    issue="none found; ReplicaAlterLogDirsThread.updateReassignmentState and reassignmentState",
    builds=VersionRange.parse(">=3.7.1"),
    modes=(Mode.KRAFT,),
    failures=r"(?s)NullPointerException.*?at kafka\.server\.ReplicaAlterLogDirsThread\.(?:updateR|r)eassignmentState\(",
)

ASKED_BEFORE_START = _mistake(
    kip=853,
    promised="a controller that starts answers requests, or refuses them",
    actual="a NullPointerException for a request that comes before its part of the quorum has started",
    issue="none found; ControllerServer.startup opens its listener before KafkaRaftManager is there",
    builds=VersionRange.parse(">=3.9.0"),
    modes=(Mode.KRAFT,),
    failures=r"(?s)^\[ControllerApis nodeId=\d+\] Unexpected error handling request .*KafkaRaftManager\.client\(\)",
)

WATCHED_AFTER_CLOSE = _mistake(
    kip=112,
    promised="a broker closes its connection to ZooKeeper without an error",
    actual="a NullPointerException in a watcher that is called as the connection is opened or closed",
    issue="none found; ZooKeeperClient.connectionState",
    modes=(Mode.ZK,),
    failures=r"(?s)^Error while calling watcher.*NullPointerException.*at kafka\.zookeeper\.ZooKeeperClient\.",
)

STATE_CHANGE_REFUSED = _mistake(
    kip=112,
    promised="a controller changes the state of a replica by the steps that it knows",
    actual="an IllegalStateException, which it logs, as a replica is removed or its topic deleted",
    issue="none found; ReplicaStateMachine.logInvalidTransition",
    modes=(Mode.ZK,),
    failures=r"(?s)initiated state change of replica .*ReplicaStateMachine\.logInvalidTransition\(",
)

REMOTE_METADATA_NOT_READY = _mistake(
    kip=405,
    promised="a broker waits until it can ask for the metadata of remote segments",
    actual="an IllegalStateException, which it logs, and it tries again",
    issue="none found; TopicBasedRemoteLogMetadataManager.ensureInitializedAndNotClosed",
    builds=VersionRange.parse("<4.1"),
    failures=r"(?s)IllegalStateException.*?at \S+\.TopicBasedRemoteLogMetadataManager\.ensureInitialized",
)

REMOTE_INDEX_GONE = _mistake(
    kip=405,
    promised="a segment that is deleted meanwhile is not copied to remote storage",
    actual="a NullPointerException, which the broker logs, for its missing index",
    issue="none found; LogSegmentData, RemoteLogManager.copyLogSegment",
    failures=r"(?s)NullPointerException.*?at \S+\.LogSegmentData\.<init>\(",
)
