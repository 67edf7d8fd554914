"""Shows what a broker does after it died during the swap of a replica with its future replica (KIP-113, 3.).

The KIP calls it "3. Handle failure that happens when broker is moving data or swapping replica". The swap ends a move.
A scenario makes the state of an interrupted swap while the broker is down, after the move: it undoes a rename. The move
must have ended because in KRaft a broker reports the new log dir before the swap. When the broker is back, it believes
the controller (KIP-858; ``LogManager.recoverAbandonedFutureLogs``).

In the KIP's order (6. and 7.) a broker that dies between the renames leaves a future replica and no replica. Kafka
renames the future replica first (``LogManager.replaceCurrentWithFutureLog``), which leaves two replicas. A broker
finds a future replica alone only after the disk with the replica was replaced by an empty one.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000, ChmodNoWrite
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.broker_log import LogLine
from harness.kafka.connection import NoAnswer
from harness.kafka.stored_log import StoredLog
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_logged, promised, refuses_to_start
from suites.deviations import (
    FAILED_SWAP_REPORTED_ONLINE,
    FUTURE_REPLICA_IGNORED,
    FUTURE_REPLICA_KNOWN_TO_CONTROLLER,
    FUTURE_REPLICA_RENAMED_FIRST,
    LONE_FUTURE_REPLICA_EMPTIED,
    OFFLINE_REPLICAS_COUNTED_LATE,
    OLD_LOG_DIR_REPORTED,
    UNTRIMMED_INDEX_EXPIRES,
)
from suites.kip_113.moving import Move, let_move_hit_fault, move_scenario, moving
from suites.log_cleaning import until_cleaning_s
from suites.moves import SMALL_FETCHES, await_moved, finish_move
from suites.observations import directories
from suites.observing import expects
from suites.on_disk import (
    check_logs_unchanged,
    check_not_created_again,
    check_topic_gone,
    ends_in_zeros,
    leaders_logs,
    segment_files,
)
from suites.steps import (
    FOUND_TWICE,
    RARE_CHECKPOINTS,
    delete_by_hand,
    leave_future_replica_alone,
    marked,
    write_untracked_records,
)


@move_scenario(
    "kip-113/restart-with-copy",
    plan="3. topicPartition.move exists but topicPartition doesn't … no bad log directory",
    deviations=(FUTURE_REPLICA_IGNORED, OLD_LOG_DIR_REPORTED),
)
def test_restart_with_copy(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker finds a future replica and no current one, all log dirs good: the future replica becomes current."""
    with moving(cluster, workload, held=False) as move:
        with move.broker_down():
            files = segment_files(leave_future_replica_alone(move.partition, move.there))
            unless = OLD_LOG_DIR_REPORTED if is_reported_in_old_log_dir(move) else FUTURE_REPLICA_IGNORED
        move.state.check(timeouts.RECOVERY_S)
        with promised(cluster, unless=unless, seen=f"^{move.broker} created {move.partition}, though"):
            check_not_created_again(move.partition, move.there, files)


def is_reported_in_old_log_dir(move: Move) -> bool:
    """Whether KRaft's controller still has the replica in its old log dir; False in ZooKeeper mode."""
    cluster, partition = move.state.cluster, move.partition
    if cluster.spec.mode is Mode.ZK:
        return False
    assigned = await_until(
        lambda: directories(cluster).assigned[partition.topic, partition.index],
        timeout_s=timeouts.REQUEST_S,
        what=f"the metadata log to have the log dirs of {partition}",
        retry_on=(NoAnswer,),
        failure=OwnPart(cluster, "tell its controller the log dirs of replicas").undone,
    )
    return assigned[move.broker.id] == move.here.directory_id()


@move_scenario(
    "kip-113/restart-with-lone-copy",
    plan="3. topicPartition.move exists but topicPartition doesn't … no bad log directory: of one replica",
    deviations=(LONE_FUTURE_REPLICA_EMPTIED,),
)
def test_restart_with_lone_copy(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker finds the only replica of a partition as a future replica: it becomes current, with every record."""
    with moving(cluster, workload, held=False) as move:
        [refunds] = cluster.create_topics(NewTopic(name="refunds", replicas=1, assignment={0: [move.broker.id]}))
        write_untracked_records(refunds, 800, size=1000)
        kept = leaders_logs(refunds.partitions)
        # A broker creates a replica in the log dir with the fewest replicas. That must not be the log dir of the future
        # replica: 2.8.2 then fails to rename one over the other, and takes the log dir offline with all its replicas.
        place = max(move.broker.log_dirs, key=lambda log_dir: len(move.state.replicas_in(log_dir)))
        refunds[0].move_to(place)
        await_moved(refunds[0], place)
        move.state.add_topic(refunds)
        with move.broker_down():
            leave_future_replica_alone(refunds[0], place)
        cluster.await_healthy(failure=PromiseBroken)
        with promised(cluster, unless=LONE_FUTURE_REPLICA_EMPTIED, seen=emptied(refunds[0])):
            check_logs_unchanged(kept, timeouts.REQUEST_S)
            finish_move(move.state, refunds[0], place)
            move.state.check()
        move.state.remove_topic(refunds)
        cluster.delete_topics(refunds)
        check_topic_gone(cluster, "refunds")


def emptied(partition: Partition) -> str:
    """A pattern of the error for a log that has lost everything: it has no byte, and its segment starts at offset 0.

    A log that was cut off, or has other records, is not emptied.
    """
    log = re.escape(f"the same logs as before; last seen: ['{partition} has 0 bytes in segments from offset 0 on, and ")
    return rf"{log}had [1-9]\d* bytes'\]"


@move_scenario(
    "kip-113/restart-with-copy-and-bad-dir",
    plan="3. topicPartition.move exists but topicPartition doesn't … and if there is bad log directory",
    log_dirs=3,
    deviations=(FUTURE_REPLICA_KNOWN_TO_CONTROLLER, OFFLINE_REPLICAS_COUNTED_LATE),
)
def test_restart_with_copy_and_bad_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker finds a future replica and no current one, another log dir bad: the replica counts as offline.

    The replica might be in the bad log dir, so the future replica must stay as it is.
    """
    with moving(cluster, workload, held=False) as move:
        bad = move.third
        with move.broker_down(), injected(Chmod000(bad)):
            future = leave_future_replica_alone(move.partition, move.there)
            log = StoredLog(future).fingerprint()
            move.state.log_dir_failed(bad)
            move.broker.start()
            if not expects(FUTURE_REPLICA_KNOWN_TO_CONTROLLER, cluster, partial(becomes_replica, move)):
                move.state.assumed_on_failed_dir(move.partition, bad)
            move.state.broker_back(move.broker)
            move.state.check(timeouts.RECOVERY_S)
            served = f"{move.broker} serves {move.partition} from its future replica in {move.there}, and {bad} is bad"
            with promised(cluster, unless=FUTURE_REPLICA_KNOWN_TO_CONTROLLER, seen=f"^{re.escape(served)}$"):
                if move.broker.find_replica(move.partition.topic, move.partition.index) is not None:
                    raise PromiseBroken(served)
                if StoredLog(future).fingerprint() != log:
                    raise PromiseBroken(f"{future.name} in {move.there} changed while {bad} was bad")
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.state.broker_gone(move.broker)
        move.state.moved(move.partition, move.there)
        move.state.log_dirs_healed(move.broker)
        move.state.check(timeouts.RECOVERY_S)


def becomes_replica(move: Move) -> bool:
    """Whether a broker that was just started turns the future replica into the replica; else it counts it as offline.

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


@move_scenario("kip-113/restart-with-deleted", plan="3. If topicPartition.delete exists")
def test_restart_with_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker is killed before it deletes the ``-delete`` folder of a finished move: it deletes it when it is back."""
    with moving(cluster, workload, held=False) as move:
        with move.broker_down():
            left = move.here.path / marked(move.partition, "delete")
            move.broker.node.run_as_user(["cp", "-r", str(move.folder), str(left)])
            if not left.is_dir():
                raise Inconclusive(f"{left} could not be created")
            move.broker.journal.write("move.deleted_left", partition=str(move.partition), folder=str(left))
        check_logged(
            move.broker,
            rf"Deleted log for partition {move.partition} in {re.escape(str(left))}",
            move.broker.started_at,
            timeouts.LOG_DIR_FAILURE_S + until_cleaning_s(cluster),
        )
        move.state.check(timeouts.RECOVERY_S)


FREQUENT_RETENTION = {"log.retention.check.interval.ms": "500"}


@move_scenario(
    "kip-113/source-fails-amid-swap",
    plan="6. … renames directory topicPartition to topicPartition.delete on the source log directory",
    overrides=SMALL_FETCHES | RARE_CHECKPOINTS | FREQUENT_RETENTION,
    deviations=(FUTURE_REPLICA_RENAMED_FIRST, FAILED_SWAP_REPORTED_ONLINE, UNTRIMMED_INDEX_EXPIRES),
)
def test_source_fails_amid_swap(cluster: Cluster, workload: CaseWorkload) -> None:
    """The source log dir fails during the swap: another broker leads; with the log dir back, the broker starts."""
    with moving(cluster, workload, leader_of, rare_checkpoints=True) as move:
        with injected(ChmodNoWrite(move.here)) as fault:
            let_move_hit_fault(move, fault, f"Error while renaming dir for {move.partition} in log dir")
            if twice := move.folder.is_dir():
                move.state.swap_interrupted(move.partition, move.there)
            move.state.log_dir_failed(move.here)
            check_offline(move)
            move.pair.await_progress(after=now())
            check_offline(move)  # it stays offline
            move.broker.stop()
            move.state.broker_gone(move.broker)
        start_after_swap(cluster, move, twice=twice)


@move_scenario(
    "kip-113/restart-amid-swap",
    plan="6. … renames directory topicPartition …, 7. … renames directory topicPartition.move: dies in between",
    overrides=SMALL_FETCHES | RARE_CHECKPOINTS | FREQUENT_RETENTION,
    deviations=(FUTURE_REPLICA_RENAMED_FIRST, UNTRIMMED_INDEX_EXPIRES),
)
def test_restart_amid_swap(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies between the two renames of the swap, in Kafka's order: it starts, and has one replica.

    While the broker is down, a copy of the moved replica is put back into the old log dir, under the replica's name.
    """
    with moving(cluster, workload, held=False, rare_checkpoints=True) as move, injected(BrokerKilled(move.broker)):
        move.state.broker_gone(move.broker)
        move.state.check()
        left = move.here.replica_dir(move.partition.topic, move.partition.index)
        move.broker.node.run_as_user(["cp", "-r", str(move.folder), str(left)])
        move.pair.await_progress(after=now())
        start_after_swap(cluster, move, twice=left.is_dir())


def start_after_swap(cluster: Cluster, move: Move, *, twice: bool) -> None:
    """The broker starts, also if it has the replica in two log dirs.

    On builds that are known to refuse, one replica is deleted by hand, as the broker's error asks for.

    :param twice: the broker has the replica in both log dirs
    """
    refuses = f"{move.broker} finds {move.partition} in {move.here} and in {move.there}, and refuses to start"
    passed_over = False
    with promised(cluster, unless=FUTURE_REPLICA_RENAMED_FIRST, seen=re.escape(refuses)):
        if twice:
            move.broker.start()
            if line := refuses_to_start(move.broker, saying=FOUND_TWICE):
                passed_over = f" and {move.folder}." in line.text
                delete_by_hand(move.broker, move.here.replica_dir(move.partition.topic, move.partition.index))
                move.state.moved(move.partition, move.there)
                raise PromiseBroken(refuses)
    untrimmed = passed_over and has_untrimmed_index(move)
    if not move.broker.is_running:
        move.broker.start()
    breaks = rf"^{move.broker} (?:deletes records|stops fetching records) of {move.partition}"
    with promised(cluster, unless=UNTRIMMED_INDEX_EXPIRES, seen=breaks) if passed_over else nullcontext():
        await_caught_up(move, untrimmed=untrimmed)
        move.state.log_dirs_healed(move.broker)
        move.state.check(timeouts.RECOVERY_S)
        if untrimmed:
            check_records_kept_by(move)


def await_caught_up(move: Move, *, untrimmed: bool) -> None:
    """Wait until the cluster is healthy with the broker.

    Its replica may have a time index that is full of zeros. If the leader's next records reach it before retention
    does, the follower rolls the segment, cannot append to the index, and gives the partition up. The replica is then
    recreated.

    :raises PromiseBroken: the cluster is not healthy in time, or the broker has given the partition up
    """
    cluster, broker = move.state.cluster, move.broker
    pattern = rf"processing data for partition {move.partition} at offset (?s:.*)java\.nio\.BufferOverflowException"

    def look() -> tuple[LogLine | None, list[str]]:
        line = broker.log.first(pattern, since=broker.started_at) if untrimmed else None
        return line, [] if line else cluster.health_problems()

    given_up, _ = await_until(
        look,
        lambda seen: not seen[1],
        timeout_s=timeouts.RECOVERY_S,
        what="a healthy cluster",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    if given_up:
        move.state.log_dirs_healed(broker)
        remake(move)
        raise PromiseBroken(f"{broker} stops fetching records of {move.partition}: {given_up.text.splitlines()[0]}")


def has_untrimmed_index(move: Move) -> bool:
    """Whether the new log dir is marked as cleanly shut down while the replica's time index ends in zeros.

    A broker that starts with it believes the last entry (KAFKA-10207): the segment's last record is from 1970.
    """
    *_, index = sorted(move.folder.glob("*.timeindex"))
    untrimmed = ends_in_zeros(index)
    marked = (move.there.path / ".kafka_cleanshutdown").exists()
    move.broker.journal.write("index.left", log_dir=str(move.there), untrimmed=untrimmed, marked_clean=marked)
    return untrimmed and marked


def check_records_kept_by(move: Move) -> None:
    """The broker keeps the records of the moved replica, although its time index is bad.

    Builds that leave such an index delete them. So this waits until the broker does, and then recreates the replica
    from the other brokers, which have all records.

    :raises PromiseBroken: always: the broker deletes them, or does not delete them in time
    """
    expired = found_expired(move.partition)
    line = await_until(
        lambda: move.broker.log.first(expired, since=move.broker.started_at),
        timeout_s=timeouts.RECOVERY_S + until_cleaning_s(move.state.cluster),
        what=f"{move.broker} to delete segments of {move.partition} because of its index",
        failure=PromiseBroken,
    )
    assert line is not None
    remake(move)
    raise PromiseBroken(f"{move.broker} deletes records of {move.partition} that were acked just now: {line.text}")


def remake(move: Move) -> None:
    """Delete the moved replica by hand while its broker is down, so that the broker recreates it."""
    move.broker.stop()
    move.state.broker_gone(move.broker)
    delete_by_hand(move.broker, move.there.replica_dir(move.partition.topic, move.partition.index))
    move.broker.start()
    move.state.replicas_recreated(move.there)
    move.ends[move.partition] = move.state.log_dir_of(move.partition, move.broker)


def found_expired(partition: Partition) -> str:
    """A regular expression of the log line for a segment that is deleted because its time index has timestamp 0.

    Builds before 3.7 log "Some(0)" (LogSegment was Scala), builds before 3.6 "due to retention".
    """
    timestamp, reason = r"largestRecordTimestamp=(?:0|Some\(0\))\)", r"due to (?:log )?retention"
    return rf"partition={partition}, .*Deleting segment .*{timestamp}.* {reason}"


def check_offline(move: Move) -> None:
    """Another broker leads, and all sources show the replica as offline, with its old log dir.

    On builds with :data:`FAILED_SWAP_REPORTED_ONLINE`, metadata must show it as online, and nothing else may differ.
    """
    cluster, id = move.state.cluster, move.broker.id
    await_until(
        move.partition.describe,
        lambda seen: seen.leader not in (None, id),
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"another broker than {id}, whose replica is offline, to lead {move.partition}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    timeout_s = timeouts.LOG_DIR_FAILURE_S
    if expects(FAILED_SWAP_REPORTED_ONLINE, cluster, partial(is_reported_online, move)):
        timeout_s = timeouts.REQUEST_S
        await_reported_online(move)
    missing = f"sees {move.partition}: offline_replicas set() instead of {{{id}}}"
    shown = str([f"broker {broker.id} {missing}" for broker in cluster.brokers])
    with promised(cluster, unless=FAILED_SWAP_REPORTED_ONLINE, seen=rf"last seen: {re.escape(shown)}$"):
        move.state.check(timeout_s)


def await_reported_online(move: Move) -> None:
    """Wait until the replica is not in the ISR and metadata shows it as online; at first it shows it as offline.

    :raises PromiseBroken: that does not happen
    """
    await_until(
        move.partition.describe,
        lambda seen: move.broker.id not in seen.isr and not seen.offline_replicas,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{move.partition} to have no offline_replicas, as on the builds with the deviation",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def is_reported_online(move: Move) -> bool:
    """Whether metadata comes to show the replica as online."""
    try:
        await_reported_online(move)
    except PromiseBroken:
        return False
    return True
