"""Shows what brokers answer to AlterReplicaLogDirs and DescribeLogDirs (KIP-113, "Public interface").

One request names several replicas, some of which are refused. The lags are compared with the segments on disk, and each
answer during a swap must show one current replica.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from faults.targets import follower_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.crowding import Crowding, Deadline
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import LogDirState
from harness.kafka.stored_log import StoredLog
from harness.kafka.tool_answers import describe_log_dirs
from harness.kafka.versions import VersionRange
from harness.waiting import CROWDED, await_until
from suites.background import in_background
from suites.checks import check_promised_or_known
from suites.deviations import (
    LAG_OF_FOLLOWER_HIDDEN,
    MOVE_ANSWERED_WITHOUT_ERROR,
    MOVE_THROTTLE_RENAMED,
    TWICE_AMID_SWAP,
    UNKNOWN_TOPIC_ANSWERED,
)
from suites.moves import MOVE_THROTTLE, SMALL_FETCHES, await_moved, begin_move, check_under_way, moves_held
from suites.observing import observe
from suites.reassignments import RATES, await_no_reassignment, check_reassigning, throttle_replication
from suites.scenario import NO_FAULT, scenario
from suites.steps import write_untracked_records

KIPS_MOVE_THROTTLE = "intra.broker.throttled.rate"
SWAPS = 12
LEAST_LOOKS = 20  # per swap: answers that show the replica during the swap or shortly before
TWICE_AT_MOST = 0.2  # of all answers; up to 0.02 were seen
RECORDS = 1000
DESCRIBES_VOLUMES = VersionRange.parse(">=3.3")
"""The builds with KIP-827."""
VOLUME_MARGIN = 64 << 20
"""The bytes that programs may write or free on a volume between two looks at it."""

Lags = dict[tuple[int, str, bool], int]
"""The offset lag of each replica of a partition: by broker, log dir, and whether it is a future replica."""


@scenario(
    "kip-113/requests",
    kip=113,
    plan="Public interface: Protocol, Broker Config, AdminClient",
    judged=False,
    floors=NO_FAULT,
    overrides=SMALL_FETCHES,  # the settings of similar scenarios, so that they share a cluster
    deviations=(
        MOVE_ANSWERED_WITHOUT_ERROR,
        UNKNOWN_TOPIC_ANSWERED,
        LAG_OF_FOLLOWER_HIDDEN,
        MOVE_THROTTLE_RENAMED,
        TWICE_AMID_SWAP,
    ),
)
def test_requests(cluster: Cluster) -> None:
    """A request for several moves is answered for each; lags and bytes are right, and a swap is atomic in answers."""
    check_each_answered(cluster)
    held = cluster.create_topic("held", replicas=2)[0]
    write_untracked_records(cluster.topics["held"], RECORDS, size=1000)
    check_lags_shown(held)
    check_throttle_named(held)
    check_swaps_atomic(cluster.create_topic("swapped", replicas=1)[0])
    if cluster.distribution.version in DESCRIBES_VOLUMES:
        check_volumes_described(cluster.brokers[0])


def check_each_answered(cluster: Cluster) -> None:
    """One request names seven replicas: each gets its own answer, and the accepted moves end."""
    one, two, three = cluster.brokers
    assignment = {0: (one, two), 1: (one, three), 2: (two, one), 3: (three, one), 4: (two, three)}
    ids = {index: [broker.id for broker in brokers] for index, brokers in assignment.items()}
    several, long_name = cluster.create_topics(
        NewTopic(name="several", replicas=2, assignment=ids), NewTopic(name="s" * 220, assignment={0: [one.id]})
    )
    here = {index: several[index].log_dir_on(one) for index in range(4)}
    there = {index: other_dir(log_dir) for index, log_dir in here.items()}
    answers = one.admin.alter_replica_log_dirs(
        {
            ("several", 0): str(there[0].path),
            ("several", 1): str(there[1].path),
            ("several", 2): "/nowhere",
            ("several", 3): there[3].path.name,
            ("several", 4): str(one.log_dirs[0].path),
            (long_name.name, 0): str(other_dir(long_name[0].log_dir_on(one)).path),
            ("several-later", 0): str(one.log_dirs[0].path),
        }
    )
    cluster.journal.write("moves.answered", answers={f"{t}-{p}": error for (t, p), error in answers.items()})
    begun = {answers.pop(("several", index)) for index in (0, 1)}
    check_promised_or_known(MOVE_ANSWERED_WITHOUT_ERROR, cluster, begun, promised={"MOVE_IN_PROGRESS"}, known={None})
    unknown = answers.pop(("several-later", 0))
    check_promised_or_known(
        UNKNOWN_TOPIC_ANSWERED, cluster, unknown, promised="REPLICA_NOT_AVAILABLE", known="UNKNOWN_TOPIC_OR_PARTITION"
    )
    wanted = {
        ("several", 2): "LOG_DIR_NOT_FOUND",
        ("several", 3): "LOG_DIR_NOT_FOUND",
        ("several", 4): "REPLICA_NOT_AVAILABLE",
        (long_name.name, 0): "INVALID_TOPIC",
    }
    if answers != wanted:
        raise PromiseBroken(f"one request for several moves is answered with {answers} instead of {wanted}")
    for index in (0, 1):
        await_moved(several[index], there[index])
    if strayed := {i: str(several[i].log_dir_on(one)) for i in (2, 3) if several[i].log_dir_on(one) != here[i]}:
        raise PromiseBroken(f"refused moves of partitions of several were carried out: {strayed}")
    if future := one.find_replicas(is_future=True):
        raise PromiseBroken(f"{one} has future replicas after all accepted moves have ended: {sorted(future)}")


def check_lags_shown(held: Partition) -> None:
    """The lags of a held future replica, of a replica that is being added, and of others are as on disk.

    Every source of lags is compared: DescribeLogDirs of each broker, and kafka-log-dirs.
    """
    cluster, mover = held.cluster, follower_of(held)
    [coming] = cluster.others(*map(cluster.broker, held.describe().replicas))
    there = other_dir(held.log_dir_on(mover))
    with moves_held(mover):
        begin_move(held, there)
        throttle_replication(cluster.topics[held.topic], rate=1)
        cluster.reassign(held, [held.leader(), mover, coming])
        await_until(
            lambda: coming.log_dir_of(held.topic, held.index),
            timeout_s=timeouts.REQUEST_S,
            what=f"{coming} to create its replica of {held}",
            retry_on=(NoAnswer,),
            failure=PromiseBroken,
        )
        check_lags(held, coming)
        check_reassigning(cluster, held)
        for broker in cluster.brokers:
            broker.configure(dict.fromkeys(RATES))
        await_no_reassignment(cluster)
    await_moved(held, there)


def check_lags(held: Partition, behind: Broker) -> None:
    """All sources show the lags that follow from the segments on disk.

    :param behind: the broker whose replica is not in sync
    :raises Inconclusive: no future replica or no follower is behind, or a log changes all the while
    """
    cluster = held.cluster

    def stable() -> tuple[Lags, Lags, Lags] | None:
        before = lags_on_disk(held)
        shown = lags_by_protocol(held), lags_by_tool(held)
        return (before, *shown) if before == lags_on_disk(held) else None

    found = await_until(
        stable,
        lambda found: found is not None,
        timeout_s=timeouts.REQUEST_S,
        what=f"the logs of {held} not to change while lags are read",
        retry_on=(NoAnswer, OSError),
        failure=Inconclusive,
    )
    assert found is not None
    disk, protocol, tool = found
    cluster.journal.write("lags.shown", disk=list(disk.items()), protocol=list(protocol.items()))
    [late] = [key for key in disk if key[0] == behind.id]
    future = [lag for key, lag in disk.items() if key[2]]
    if not disk[late] or not future or not all(future):
        raise Inconclusive(f"the replicas of {held} are not as far behind as they should be: {disk}")
    if protocol != tool:
        raise PromiseBroken(f"kafka-log-dirs shows the lags of {held} as {tool}, and DescribeLogDirs as {protocol}")
    hidden = {**disk, late: 0}
    check_promised_or_known(LAG_OF_FOLLOWER_HIDDEN, cluster, protocol, promised=disk, known=hidden)


def lags_on_disk(partition: Partition) -> Lags:
    """The right lags, according to the segments of all replicas.

    A future replica lags behind the replica on its broker. A replica lags behind the high watermark, which is the
    lowest log end offset in the ISR.
    """
    ends: Lags = {}
    for broker in partition.cluster.brokers:
        for log_dir in broker.log_dirs:
            for folder in log_dir.path.glob(f"{partition}*"):
                if folder.name == str(partition) or folder.name.endswith("-future"):
                    future = folder.name != str(partition)
                    ends[broker.id, str(log_dir.path), future] = StoredLog(folder).ends()
    isr = partition.describe().isr
    watermark = min(end for (broker, _, future), end in ends.items() if broker in isr and not future)
    current = {broker: end for (broker, _, future), end in ends.items() if not future}
    return {key: current[key[0]] - end if key[2] else max(0, watermark - end) for key, end in sorted(ends.items())}


def lags_by_protocol(partition: Partition) -> Lags:
    """The lags that each broker shows in DescribeLogDirs."""
    key = (partition.topic, partition.index)
    return _lags(partition, {broker.id: broker.admin.describe_log_dirs(key) for broker in partition.cluster.brokers})


def lags_by_tool(partition: Partition) -> Lags:
    """The lags that kafka-log-dirs shows."""
    cluster, ids = partition.cluster, [broker.id for broker in partition.cluster.brokers]
    topics = ("--topic-list", partition.topic)
    return _lags(partition, describe_log_dirs(cluster.distribution, cluster.bootstrap, ids, *topics))


def _lags(partition: Partition, shown: Mapping[int, tuple[LogDirState, ...]]) -> Lags:
    found = {
        (id, log_dir.path, replica.is_future): replica.offset_lag
        for id, log_dirs in shown.items()
        for log_dir in log_dirs
        for replica in log_dir.replicas
        if (replica.topic, replica.partition) == (partition.topic, partition.index)
    }
    return dict(sorted(found.items()))


def check_volumes_described(broker: Broker) -> None:
    """DescribeLogDirs has the total and the usable bytes of each log dir's volume (KIP-827)."""

    def differences() -> list[str]:
        described = {each.path: each for each in broker.describe_log_dirs()}
        return [*filter(None, (volume_difference(described[str(log_dir.path)]) for log_dir in broker.log_dirs))]

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to describe the volumes of its log dirs",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def volume_difference(described: LogDirState) -> str | None:
    """How the described bytes of a log dir's volume differ from what the file system says; None if they do not."""
    volume = os.statvfs(described.path)
    total, usable = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
    if described.total_bytes == total and abs(described.usable_bytes - usable) <= VOLUME_MARGIN:
        return None
    return (
        f"{described.path} has {described.total_bytes} bytes in total and {described.usable_bytes} usable ones "
        f"instead of {total} and {usable}"
    )


def check_throttle_named(partition: Partition) -> None:
    """A throttle under the KIP's name holds a move.

    No throttle is set under the name that releases use.

    :raises Inconclusive: the move does not end, for another reason than a throttle
    """
    broker = follower_of(partition)
    broker.configure({MOVE_THROTTLE: None, KIPS_MOVE_THROTTLE: "1"})
    there = other_dir(partition.log_dir_on(broker))
    partition.move_to(there)
    try:
        await_moved(partition, there)
    except PromiseBroken as held:
        check_under_way(partition, there)
        observe(MOVE_THROTTLE_RENAMED, partition.cluster, deviates=False, seen=held)
    else:
        text = f"{partition} moved, though {KIPS_MOVE_THROTTLE} is 1"
        observe(MOVE_THROTTLE_RENAMED, partition.cluster, deviates=True, seen=text, broken=PromiseBroken(text))
    broker.configure({KIPS_MOVE_THROTTLE: None})


def check_swaps_atomic(partition: Partition) -> None:
    """Each answer to DescribeLogDirs during moves shows one current replica.

    :raises Inconclusive: there were too few answers; or on a crowded machine, too many answers during swaps
    """
    since_begin = Deadline(0.0)  # for its measurement of the crowding
    broker, key = partition.leader(), (partition.topic, partition.index)
    connections = [broker.new_connection() for _ in range(2)]
    seen: dict[tuple[str, ...], int] = {}

    def look(admin: Admin) -> None:
        answer = admin.describe_log_dirs(key)
        shown = tuple(sorted(d.path for d in answer for replica in d.replicas if not replica.is_future))
        seen[shown] = seen.get(shown, 0) + 1

    with in_background(*(partial(look, Admin(each)) for each in connections), every_s=0) as errors:
        for _ in range(SWAPS):
            there = other_dir(partition.log_dir_on(broker))
            partition.move_to(there)
            await_moved(partition, there)
    for each in connections:
        each.close()
    if errors:
        raise errors[0]
    broker.journal.write("swaps.watched", partition=str(partition), swaps=SWAPS, answers=list(seen.items()))
    check_one_at_a_time(partition.cluster, broker.log_dirs, seen, since_begin.crowding)


def check_one_at_a_time(
    cluster: Cluster, log_dirs: tuple[LogDir, ...], seen: Mapping[tuple[str, ...], int], crowding: Crowding
) -> None:
    """All answers name one log dir of the current replica; with :data:`TWICE_AMID_SWAP` a few may name both.

    :param seen: how many answers named these log dirs
    :param crowding: of the machine meanwhile; it may hold up a swap half-way, or all answers
    :raises Inconclusive: there were too few answers; or on a crowded machine, too many name both
    """
    paths = sorted(str(log_dir.path) for log_dir in log_dirs)
    looks = sum(seen.values())
    if looks < (least := SWAPS * LEAST_LOOKS):
        few = f"only {looks} answers show the replica during {SWAPS} swaps, at least {least} wanted"
        raise Inconclusive(f"{few}; {crowding}")
    wrong = {shown: count for shown, count in seen.items() if len(shown) != 1}
    twice = wrong.keys() == {tuple(paths)}
    text = "; ".join(f"{count} of {looks} answers have it in {list(shown)}" for shown, count in wrong.items())
    broken = PromiseBroken(f"the current replica should be in one log dir during a swap: {text}")
    too_many = sum(wrong.values()) > TWICE_AT_MOST * looks
    if twice and too_many and crowding.stretch > 1.0:
        raise Inconclusive(f"{CROWDED} ({crowding}): {text}, at most {TWICE_AT_MOST:.0%} expected")
    if wrong and (not twice or too_many):
        raise broken
    if twice:
        observe(TWICE_AMID_SWAP, cluster, deviates=True, seen=text, broken=broken)
