"""Profiles: the settings that the nodes and clients of all cases have in common.

``fast`` shows in seconds what takes a minute with Kafka's defaults. ``production`` has the settings that people run:
Kafka's defaults, two replicas that must be in sync, segments that roll, and compressed records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.kafka.versions import Mode

# The port of an ended process refuses a connection at once. The address of an ended container does not answer. A node
# that connects to it, such as to a former controller, would wait for 10 to 30 s. Builds before 2.7 still wait.
SHORT_CONNECT_TIMEOUTS: Mapping[str, str] = {
    "socket.connection.setup.timeout.ms": "1000",
    "socket.connection.setup.timeout.max.ms": "1000",
}
_EVERYWHERE: Mapping[str, str] = {
    # Only a scenario creates topics.
    "auto.create.topics.enable": "false",
    # Many JVMs on few cores: fewer threads and partitions, less memory.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    **SHORT_CONNECT_TIMEOUTS,
}
_SESSION = {Mode.KRAFT: "broker.session.timeout.ms", Mode.ZK: "zookeeper.session.timeout.ms"}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Settings that all cases of a run have in common.

    :ivar settings: the broker settings in both metadata modes
    :ivar of_mode: those of one mode
    :ivar zookeeper_tick_ms: ZooKeeper's ``tickTime``; a session may last 2 to 20 ticks
    :ivar compression: ``compression.type`` of producers; None: librdkafka's default, which is none
    """

    name: str
    settings: Mapping[str, str]
    of_mode: Mapping[Mode, Mapping[str, str]] = field(default_factory=dict)
    zookeeper_tick_ms: int
    compression: str | None = None

    def session_ms(self, mode: Mode) -> int:
        """The time after which a dead broker's session ends."""
        return int(self.of_mode[mode][_SESSION[mode]])


# The comments say why a value is not Kafka's default.
BROKER_SETTINGS: Mapping[str, str] = {
    **_EVERYWHERE,
    # A broker notices a failed log dir at the next write of a checkpoint: 5 to 60 s by default.
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    # In KRaft a leader waits this long for a follower whose log dir failed, although the controller has removed it from
    # the ISR: its broker is alive, so it is still "eligible" (Partition.maybeIncrementLeaderHW,
    # shouldWaitForReplicaToJoinIsr). Meanwhile no client gets an ack or a record: 30 s by default.
    "replica.lag.time.max.ms": "5000",
    # Only a scenario moves leaders.
    "auto.leader.rebalance.enable": "false",
    # A single broker with a failed log dir must be able to serve clients.
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A cluster must be empty before the next case. The first setting delays the deletion of files, after a topic is
    # deleted or a move ends (60 s by default). The second is the least time from a broker's start to its first deletion
    # (30 s; a setting since 3.8).
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}
FAST = Profile(
    name="fast",
    settings=BROKER_SETTINGS,
    of_mode={
        # A dead broker is fenced after 3 s (default: 9 s).
        Mode.KRAFT: {_SESSION[Mode.KRAFT]: "3000", "broker.heartbeat.interval.ms": "500"},
        Mode.ZK: {
            # With 2 s, one start in a few hundred ended with SessionExpiredException on two busy cores.
            _SESSION[Mode.ZK]: "4000",
            "controlled.shutdown.retry.backoff.ms": "500",  # 5 s by default; KRaft brokers ask with each heartbeat
        },
    },
    zookeeper_tick_ms=500,
)
PRODUCTION = Profile(
    name="production",
    settings={
        **_EVERYWHERE,
        # Kafka's defaults.
        "replica.high.watermark.checkpoint.interval.ms": "5000",
        "log.flush.offset.checkpoint.interval.ms": "60000",
        "log.flush.start.offset.checkpoint.interval.ms": "60000",
        "replica.lag.time.max.ms": "30000",
        "auto.leader.rebalance.enable": "true",
        "transaction.state.log.min.isr": "2",
        "group.initial.rebalance.delay.ms": "3000",
        "log.segment.delete.delay.ms": "60000",
        # Records with acks=all survive a failed log dir and a disk that comes back empty.
        "min.insync.replicas": "2",
        # A case writes too little for segments to roll by size.
        "log.roll.ms": "10000",
    },
    of_mode={
        Mode.KRAFT: {_SESSION[Mode.KRAFT]: "9000", "broker.heartbeat.interval.ms": "2000"},
        Mode.ZK: {_SESSION[Mode.ZK]: "18000"},
    },
    zookeeper_tick_ms=2000,
    compression="lz4",
)
PROFILES: Mapping[str, Profile] = {each.name: each for each in (FAST, PRODUCTION)}

_DELAYS = (
    "replica.high.watermark.checkpoint.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "replica.lag.time.max.ms",
    "group.initial.rebalance.delay.ms",
    "log.segment.delete.delay.ms",
    *_SESSION.values(),
)
"""The settings in milliseconds that delay what a case waits for. :mod:`harness.timeouts` allows for those of FAST."""


def delay_s(settings: Mapping[str, str], mode: Mode) -> float:
    """Return how much longer Kafka may take with these broker settings than with those of :data:`FAST`.

    A step may wait for several of them in turn, so this is their sum.
    """
    fast = {**FAST.settings, **FAST.of_mode[mode]}
    late = (int(settings[name]) - int(fast[name]) for name in _DELAYS if name in settings and name in fast)
    return sum(max(0, each) for each in late) / 1000
