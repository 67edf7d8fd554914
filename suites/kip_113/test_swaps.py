"""KIP-113's swap of a replica with its copy, at the end of a move, cut short: "3. Handle failure that happens when
broker is moving data or swapping replica".

What a broker finds is made while it is down, out of a finished move, of which a rename is taken back. Out of a finished
one, because in KRaft a broker tells the controller where the replica will be before it swaps, and believes the
controller when it is back (KIP-858; ``LogManager.recoverAbandonedFutureLogs``).

In the KIP's order (6. and 7.) a broker that dies between the renames leaves a copy and no replica; in Kafka's, since
``LogManager.replaceCurrentWithFutureLog`` gives the copy the replica's name first, two replicas. A copy alone it finds
where the disk with the replica was replaced by an empty one.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000, ChmodNoWrite
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.broker_log import LogLine
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_says, promised, refuses_to_start
from suites.deviations import (
    COPY_KNOWN_TO_CONTROLLER,
    COPY_NAMED_FIRST,
    COPY_PASSED_OVER,
    EXPIRED_UNTRIMMED,
    LONE_COPY_EMPTIED,
    OLD_DIR_TOLD_AGAIN,
    TOLD_AS_SWAPPED,
)
from suites.kip_113.moving import Move, a_move, let_meet, moving
from suites.log_cleaning import until_at_work
from suites.observations import directories
from suites.observing import expects
from suites.on_disk import check_gone, check_kept, leaders_logs
from suites.steps import HOLDS_MOVES, TWICE, await_moved, finish_move, write_untracked_records
from suites.stored_log import StoredLog


@a_move(
    "kip-113/restart-with-copy",
    plan="3. topicPartition.move exists but topicPartition doesn't … no bad log directory",
    deviations=(COPY_PASSED_OVER, OLD_DIR_TOLD_AGAIN),
)
def test_restart_with_copy(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker finds the copy of a replica and not the replica, all log dirs being good: it becomes the replica."""
    with moving(cluster, workload, held=False) as move:
        with move.broker_down():
            files = _files(move.leave_copy_alone())
            unless = OLD_DIR_TOLD_AGAIN if is_told_where_it_was(move) else COPY_PASSED_OVER
        move.world.check(timeouts.RECOVERY_S)
        with promised(cluster, unless=unless, seen=f"^{move.broker} made {move.partition} anew"):
            check_not_made_anew(move, files)


def is_told_where_it_was(move: Move) -> bool:
    """KRaft: whether the controller has it that the replica is in the log dir that it has left."""
    cluster, partition = move.world.cluster, move.partition
    if cluster.spec.mode is Mode.ZK:
        return False
    told = await_until(
        lambda: directories(cluster).assigned[partition.topic, partition.index],
        timeout_s=timeouts.REQUEST_S,
        what=f"the metadata log to say in which log dirs {partition} is",
        retry_on=(NoAnswer,),
    )
    return told[move.broker.id] == move.here.directory_id()


def _files(folder: Path) -> set[tuple[str, int]]:
    """The segments in a replica's folder, with what makes each the same file under another path."""
    return {(path.name, path.stat().st_ino) for path in folder.glob("*.log")}


def check_not_made_anew(move: Move, files: set[tuple[str, int]]) -> None:
    """The broker has made no replica of the partition since its start: what it found is what it serves.

    :param files: what it found
    :raises PromiseBroken: it has
    """
    made = rf"Created log for partition {re.escape(str(move.partition))} in"
    if (line := move.broker.log.first(made, since=move.broker.started_at)) is not None:
        raise PromiseBroken(f"{move.broker} made {move.partition} anew, though there was a copy of it: {line.text}")
    if not files <= _files(move.folder):
        raise PromiseBroken(f"{move.broker} serves {move.partition} from other files than those of the copy: {files}")


@a_move(
    "kip-113/restart-with-lone-copy",
    plan="3. topicPartition.move exists but topicPartition doesn't … no bad log directory: of one replica",
    deviations=(LONE_COPY_EMPTIED,),
)
def test_restart_with_lone_copy(cluster: Cluster, workload: CaseWorkload) -> None:
    """As before, of a partition of one replica: no other broker has its records, and all of them are there again."""
    with moving(cluster, workload, held=False) as move:
        [refunds] = cluster.create_topics(NewTopic(name="refunds", replicas=1, assignment={0: [move.broker.id]}))
        write_untracked_records(refunds, 800, size=1000)
        kept = leaders_logs(refunds.partitions)
        # A broker makes a replica anew in the log dir that has the fewest. If that is the copy's, as by where refunds
        # comes itself, there is no other log dir to swap with: 2.8.2 then fails to rename one over the other, and takes
        # the log dir offline, with the others that are in it.
        place = max(move.broker.log_dirs, key=lambda log_dir: len(move.world.replicas_in(log_dir)))
        refunds[0].move_to(place)
        await_moved(refunds[0], place)
        move.world.learn(refunds)
        with move.broker_down():
            replace(move, partition=refunds[0], there=place).leave_copy_alone()
        cluster.await_healthy(failure=PromiseBroken)
        emptied = re.escape(f"the logs that they had; last seen: ['{refunds[0]}']")
        with promised(cluster, unless=LONE_COPY_EMPTIED, seen=emptied):
            check_kept(kept, timeouts.REQUEST_S)
            finish_move(move.world, refunds[0], place)
            move.world.check()
        move.world.forget(refunds)
        cluster.delete_topic(refunds)
        check_gone(cluster, "refunds")


@a_move(
    "kip-113/restart-with-copy-and-bad-dir",
    plan="3. topicPartition.move exists but topicPartition doesn't … and if there is bad log directory",
    log_dirs=3,
    deviations=(COPY_KNOWN_TO_CONTROLLER,),
)
def test_restart_with_copy_and_bad_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """As before, but another log dir is bad, where the replica might be: it is offline, and its copy not touched."""
    with moving(cluster, workload, held=False) as move:
        bad = move.third
        with move.broker_down(), injected(Chmod000(bad)):
            copy = move.leave_copy_alone()
            log = StoredLog(copy).fingerprint()
            move.world.log_dir_failed(bad)
            move.broker.start()
            if not expects(COPY_KNOWN_TO_CONTROLLER, cluster, partial(becomes_replica, move)):
                move.world.taken_for_lost(move.partition, bad)
            move.world.broker_back(move.broker)
            move.world.check(timeouts.RECOVERY_S)
            served = f"{move.broker} serves {move.partition} from its copy in {move.there}, and {bad} is bad"
            with promised(cluster, unless=COPY_KNOWN_TO_CONTROLLER, seen=f"^{re.escape(served)}$"):
                if move.broker.find_replica(move.partition.topic, move.partition.index) is not None:
                    raise PromiseBroken(served)
                if StoredLog(copy).fingerprint() != log:
                    raise PromiseBroken(f"{copy.name} in {move.there} was touched while {bad} was bad")
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.world.broker_gone(move.broker)
        move.world.moved(move.partition, move.there)
        move.world.log_dirs_back(move.broker)
        move.world.check(timeouts.RECOVERY_S)


def becomes_replica(move: Move) -> bool:
    """Whether the broker, started just now, makes the copy that it finds the replica; else it has the replica offline.

    :raises PromiseBroken: it does neither
    """
    broker, key = move.broker, (move.partition.topic, move.partition.index)

    def outcome() -> bool | None:
        if broker.find_replica(*key) is not None:
            return True
        seen = broker.describe_cluster()
        return False if broker.id in seen.brokers and broker.id in seen[key].offline_replicas else None

    served = await_until(
        outcome,
        lambda served: served is not None,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{move.partition} to be served by {broker}, or to be offline there",
        watch=broker.node.check_alive,
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )
    return served is True


@a_move("kip-113/restart-with-deleted", plan="3. If topicPartition.delete exists")
def test_restart_with_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies before it has deleted what a finished move left: it does when it is back."""
    with moving(cluster, workload, held=False) as move:
        with move.broker_down():
            left = move.here.path / move.marked("delete")
            move.broker.node.run_as_user(["cp", "-r", str(move.folder), str(left)])
            if not left.is_dir():
                raise Inconclusive(f"{left} could not be made")
            move.broker.journal.write("move.deleted_left", partition=str(move.partition), folder=str(left))
        check_says(
            move.broker,
            rf"Deleted log for partition {move.partition} in {re.escape(str(left))}",
            move.broker.started_at,
            timeouts.LOG_DIR_FAILURE_S + until_at_work(cluster),
        )
        move.world.check(timeouts.RECOVERY_S)


# Only the swap itself is to notice that nothing can be renamed in a log dir.
LOOKS_LATE = dict.fromkeys(
    (
        "replica.high.watermark.checkpoint.interval.ms",
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
    ),
    "600000",
)
TIME_INDEX_ENTRY = 12  # bytes
EXPIRES_SOON = {"log.retention.check.interval.ms": "500"}


@a_move(
    "kip-113/source-fails-amid-swap",
    plan="6. … renames directory topicPartition to topicPartition.delete on the source log directory",
    overrides=HOLDS_MOVES | LOOKS_LATE | EXPIRES_SOON,
    deviations=(COPY_NAMED_FIRST, TOLD_AS_SWAPPED, EXPIRED_UNTRIMMED),
)
def test_source_fails_amid_swap(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir that the leader's replica leaves fails as it is to leave: with the dir back, the broker starts."""
    with moving(cluster, workload, leader_of, looks_late=True) as move:
        with injected(ChmodNoWrite(move.here)) as fault:
            let_meet(move, fault, f"Error while renaming dir for {move.partition} in log dir")
            if twice := move.folder.is_dir():
                move.world.half_swapped(move.partition, move.there)
            move.world.log_dir_failed(move.here)
            check_offline(move)
            move.pair.await_progress(after=now())
            check_offline(move)  # it lasts
            move.broker.stop()
            move.world.broker_gone(move.broker)
        start_on_what_is_there(cluster, move, twice=twice)


@a_move(
    "kip-113/restart-amid-swap",
    plan="6. … renames directory topicPartition …, 7. … renames directory topicPartition.move: dies in between",
    overrides=HOLDS_MOVES | LOOKS_LATE | EXPIRES_SOON,
    deviations=(COPY_NAMED_FIRST, EXPIRED_UNTRIMMED),
)
def test_restart_amid_swap(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies between the two renames, in the order that it has them in: it starts, and has one replica.

    Made while it is down, as the others: what a finished move left is there again, under the replica's name.
    """
    with moving(cluster, workload, held=False, looks_late=True) as move, injected(BrokerKilled(move.broker)):
        move.world.broker_gone(move.broker)
        move.world.check()
        left = move.here.replica_dir(move.partition.topic, move.partition.index)
        move.broker.node.run_as_user(["cp", "-r", str(move.folder), str(left)])
        move.pair.await_progress(after=now())
        start_on_what_is_there(cluster, move, twice=left.is_dir())


def start_on_what_is_there(cluster: Cluster, move: Move, *, twice: bool) -> None:
    """The broker starts, and where it has the replica in two log dirs does so with one of them.

    On builds known to refuse that, one is deleted by hand, as the broker asks for.

    :param twice: it has it in both
    """
    refuses = f"{move.broker} finds {move.partition} in {move.here} and in {move.there}, and refuses to start"
    passed_over = False
    with promised(cluster, unless=COPY_NAMED_FIRST, seen=re.escape(refuses)):
        if twice:
            move.broker.start()
            if line := refuses_to_start(move.broker, exit_code=1, saying=TWICE):
                passed_over = f" and {move.folder}." in line.text
                delete_by_hand(move.partition, move.here)
                move.world.moved(move.partition, move.there)
                raise PromiseBroken(refuses)
    untrimmed = passed_over and left_untrimmed(move)
    if not move.broker.is_running:
        move.broker.start()
    breaks = rf"^{move.broker} (?:deletes records|stops fetching records) of {move.partition}"
    with promised(cluster, unless=EXPIRED_UNTRIMMED, seen=breaks) if passed_over else nullcontext():
        await_caught_up(move, untrimmed=untrimmed)
        move.world.log_dirs_back(move.broker)
        move.world.check(timeouts.RECOVERY_S)
        if untrimmed:
            check_kept_by(move)


def await_caught_up(move: Move, *, untrimmed: bool) -> None:
    """Wait until the cluster is healthy with the broker.

    Its replica may have a time index that is full of zeros. If the leader's next records reach it before retention
    does, the follower rolls the segment, cannot append to the index, and gives the partition up. The replica is then
    made anew.

    :raises PromiseBroken: the cluster is not healthy in time, or the broker has given the partition up
    """
    cluster, broker = move.world.cluster, move.broker
    pattern = rf"processing data for partition {move.partition} at offset (?s:.*)java\.nio\.BufferOverflowException"
    given_up: LogLine | None = None

    def look() -> list[str]:
        nonlocal given_up
        given_up = broker.log.first(pattern, since=broker.started_at) if untrimmed else None
        return [] if given_up else cluster.health_problems()

    await_until(
        look,
        lambda problems: not problems,
        timeout_s=timeouts.RECOVERY_S,
        what="a healthy cluster",
        retry_on=(NoAnswer,),
        watch=partial(cluster.check_nodes, promised=True),
        failure=PromiseBroken,
    )
    if given_up:
        move.world.log_dirs_back(broker)
        remake(move)
        raise PromiseBroken(f"{broker} stops fetching records of {move.partition}: {given_up.text.splitlines()[0]}")


def left_untrimmed(move: Move) -> bool:
    """Whether the log dir that a move went to is marked as cleanly shut down, and the replica's index ends in zeros.

    A broker that starts on it believes the last entry (KAFKA-10207): the segment's last record is of the year 1970.
    """
    *_, index = sorted(move.folder.glob("*.timeindex"))
    untrimmed = index.read_bytes().endswith(b"\0" * TIME_INDEX_ENTRY)
    marked = (move.there.path / ".kafka_cleanshutdown").exists()
    move.broker.journal.write("index.left", log_dir=str(move.there), untrimmed=untrimmed, marked_clean=marked)
    return untrimmed and marked


def check_kept_by(move: Move) -> None:
    """The broker keeps the records of the moved replica, though its time index is bad.

    Where it doesn't, the replica is made anew afterwards: the others have all of it.

    :raises PromiseBroken: it deletes them
    """
    expired = found_expired(move.partition)
    line = await_until(
        lambda: move.broker.log.first(expired, since=move.broker.started_at),
        timeout_s=timeouts.RECOVERY_S + until_at_work(move.world.cluster),
        what=f"{move.broker} to find {move.partition} expired, since its index says so",
        failure=PromiseBroken,
    )
    assert line is not None
    remake(move)
    raise PromiseBroken(f"{move.broker} deletes records of {move.partition} that were acked just now: {line.text}")


def remake(move: Move) -> None:
    """Delete the moved replica by hand while its broker is down, so that the broker makes it anew."""
    move.broker.stop()
    move.world.broker_gone(move.broker)
    delete_by_hand(move.partition, move.there)
    move.broker.start()
    move.world.remade(move.there)
    move.ends[move.partition] = move.world.log_dir_of(move.partition, move.broker)


def found_expired(partition: Partition) -> str:
    """What a broker says that deletes a segment of which its time index says 1970; a regular expression.

    Builds before 3.7 write "Some(0)" (LogSegment was Scala), builds before 3.6 "due to retention".
    """
    timestamp, reason = r"largestRecordTimestamp=(?:0|Some\(0\))\)", r"due to (?:log )?retention"
    return rf"partition={partition}, .*Deleting segment .*{timestamp}.* {reason}"


def check_offline(move: Move) -> None:
    """Another leads, and all sources say that the replica is offline with the log dir that it was leaving.

    :raises PromiseBroken: it isn't so; on builds known for it, ``offline_replicas`` has the replica after all, or any
        source says anything else
    """
    cluster, id = move.world.cluster, move.broker.id
    await_until(
        move.partition.describe,
        lambda seen: seen.leader not in (None, id),
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"another broker than {id} to lead {move.partition}, of which that one's replica is offline",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    timeout_s = timeouts.LOG_DIR_FAILURE_S
    if expects(TOLD_AS_SWAPPED, cluster, partial(is_told_as_swapped, move)):
        timeout_s = timeouts.REQUEST_S
        await_told_as_swapped(move)
    missing = f"sees {move.partition}: offline_replicas set() instead of {{{id}}}"
    told = str([f"broker {broker.id} {missing}" for broker in cluster.brokers])
    with promised(cluster, unless=TOLD_AS_SWAPPED, seen=rf"last seen: {re.escape(told)}$"):
        move.world.check(timeout_s)


def await_told_as_swapped(move: Move) -> None:
    """The replica is out of the ISR, and told as online; for a moment it is told as it should be.

    :raises PromiseBroken: it isn't so
    """
    await_until(
        move.partition.describe,
        lambda seen: move.broker.id not in seen.isr and not seen.offline_replicas,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{move.partition} to have no offline_replicas, as is known of other builds",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def is_told_as_swapped(move: Move) -> bool:
    """Whether that comes."""
    try:
        await_told_as_swapped(move)
    except PromiseBroken:
        return False
    return True


def delete_by_hand(partition: Partition, log_dir: LogDir) -> None:
    """What a broker that found a replica twice asks its operator for: the one in the log dir that failed goes."""
    folder = log_dir.replica_dir(partition.topic, partition.index)
    log_dir.broker.node.run_as_user(["rm", "-r", str(folder)])
    log_dir.broker.journal.write("replica.deleted_by_hand", partition=str(partition), log_dir=str(log_dir))
