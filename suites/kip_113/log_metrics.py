"""Compares a broker's MBeans of a replica with its segments on disk; without a replica there must be none."""

from __future__ import annotations

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.stored_log import StoredLog
from harness.waiting import await_until


def check_log_measured(partition: Partition, log_dir: LogDir, *, is_future: bool = False) -> None:
    """The MBeans of the replica in this log dir are as its segments, and no future replica has any.

    No client may write to the partition meanwhile.

    :param is_future: compare the future replica in this log dir. The replica must have MBeans, too
    """
    mbeans, key = log_dir.broker.mbeans, (partition.topic, partition.index)
    assert mbeans is not None

    def difference() -> str | None:
        should = _on_disk(partition, log_dir, is_future=is_future)
        seen, other = mbeans.log(*key, is_future=is_future), mbeans.log(*key, is_future=not is_future)
        if seen == should and bool(other) == is_future:
            return None
        return (
            f"the MBeans are {seen} instead of {should}; those of the {'' if is_future else 'future '}replica: {other}"
        )

    await_until(
        difference,
        lambda differs: not differs,
        timeout_s=timeouts.REQUEST_S,
        what=f"the MBeans of {log_dir.broker} to show {partition} as it is in {log_dir}",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )


def check_not_measured(partition: Partition, *brokers: Broker) -> None:
    """These brokers have no MBeans of a log of the partition, nor of a future replica's."""

    def left() -> list[str]:
        found = []
        for broker in brokers:
            assert broker.mbeans is not None
            for is_future in (False, True):
                if seen := broker.mbeans.log(partition.topic, partition.index, is_future=is_future):
                    found.append(f"{broker} has {seen} of {'a future replica' if is_future else 'the replica'}")
        return found

    await_until(
        left,
        lambda found: not found,
        timeout_s=timeouts.REQUEST_S,
        what=f"{', '.join(map(str, brokers))} to have no MBeans of a log of {partition}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def _on_disk(partition: Partition, log_dir: LogDir, *, is_future: bool) -> dict[str, int]:
    """What the MBeans of the replica in this log dir should show, by their names."""
    [folder] = log_dir.path.glob(f"{partition}.*-future" if is_future else str(partition))
    log = StoredLog(folder)
    return {"Size": log.size, "NumLogSegments": len([*folder.glob("*.log")]), "LogEndOffset": log.ends()}
