"""Reuses the cluster of one case for the next case that needs an equal one.

Starting three brokers and warming up their JVMs is half of the cost of a case and tests nothing. On 2 cores, two cases
of KIP-112 at once took 28 s each with clusters of their own, and 16 s with a shared one. A valid verdict must not
depend on earlier cases, so these rules apply:

* A cluster is reused only for an equal spec and the same build, and for at most :data:`AT_MOST` cases.
* The case before must have been valid, and must not have shown a deviation that pollutes the cluster. An example is a
  log cleaner that has stopped for good for one partition name.
* The cluster is emptied first, through Kafka: all topics, also Kafka's internal ones, and all dynamic configs are
  deleted.
* Then it is checked that the cluster is as after its creation. Every node runs with its original settings, and all
  changes to the machine are undone. Every broker sees all others and a controller. No log dir is offline, and each has
  only the files of an empty log dir. ZooKeeper has no topic, deletion or reassignment.
* When a log dir has no replica left, Kafka does not write its high watermarks again
  (``ReplicaManager.checkpointHighWatermarks``). A later topic of the same name would find the old ones. So the emptying
  ends with a topic that has a replica in each log dir and a name that no case uses. Only its high watermarks stay.
* If a check does not succeed within a few seconds, the cluster is stopped, and the next case gets a new one.
* Node logs and the journal start anew with each case. They do not contain the emptying: its logs are in ``emptied/`` of
  the run folder. The run folder lists the cases that the cluster served before (``served``). ``jbod repro`` runs a
  case on a new cluster.

A scenario declares ``fresh`` if it needs a new cluster. Such scenarios check log lines of a start, Kafka's internal
topics, or the cost of a cold JVM. ``jbod run --clusters own`` gives every case a new one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, LogDir
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Topic
from harness.errors import HarnessError, JbodError
from harness.events import DeviationSeen
from harness.journal import Journal
from harness.kafka.connection import NoAnswer
from harness.runner.case import Case
from harness.waiting import await_until

AT_MOST = 20
"""The number of cases after which a cluster is not reused any more."""
_NOT_SHOWN = (JbodError, OSError, subprocess.SubprocessError)
"""Expected errors while a cluster is emptied and checked. Any other error is a bug of the harness and is raised."""
_LAST = "jbod-handed-on"  # the topic that the emptying creates and deletes last
_CHECKPOINTS = {RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED}
_OF_AN_EMPTY_LOG_DIR = _CHECKPOINTS | {
    "meta.properties",
    "bootstrap.checkpoint",
    "__cluster_metadata-0",
    ".lock",
    *(f"{name}.tmp" for name in _CHECKPOINTS),  # a disk may fail before the new file is renamed
}


class ClusterPool:
    """Holds the cluster between two cases of a run, if there is one.

    :ivar wanted: the spec of the next case; None if there is none, or if it does not accept a reused cluster
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.wanted: ClusterSpec | None = None
        self._say = say
        self._cluster: Cluster | None = None
        self._served: list[str] = []

    def take(self, spec: ClusterSpec, case: Case) -> Cluster | None:
        """Return the held cluster for this case, or None. A cluster that does not fit is stopped."""
        if self._cluster is None or spec != self.wanted or spec != self._cluster.spec:
            self.stop()
            return None
        try:
            if why := "; ".join(leftovers(self._cluster)):
                raise HarnessError(why)
            self._cluster.attach_case(case.journal, case.run_dir)
            case.journal.write("cluster.taken_over", served=self._served)
            case.record(served=self._served)
        except Exception as error:
            case.journal.write("cluster.not_handed_on", why=str(error) or repr(error))
            self.stop()
            shutil.rmtree(case.run_dir / "brokers", ignore_errors=True)  # logs of a cluster that the case did not get
            if isinstance(error, _NOT_SHOWN):
                return None
            raise
        cluster, self._cluster = self._cluster, None
        return cluster

    def leave(self, cluster: Cluster, case: Case) -> bool:
        """Hold the cluster for the next case. Returns False if it does not fit or could not be emptied."""
        served = [*self._served, case.id.selector]
        if cluster.spec != self.wanted or len(served) == AT_MOST or not try_to_empty(cluster, case):
            return False
        self._cluster, self._served = cluster, served
        return True

    def stop(self) -> None:
        """Stop the held cluster, if there is one. The next run undoes whatever cannot be undone now."""
        cluster, self._cluster = self._cluster, None
        self._served = []
        if cluster is not None:
            try:
                cluster.stop()
            except (JbodError, OSError) as error:
                self._say(f"a shared cluster could not be stopped: {error}; jbod clean removes it")


def try_to_empty(cluster: Cluster, case: Case) -> bool:
    """Empty a cluster for the next case. Returns whether it was shown to be as after its creation.

    The last event of the case's journal has the result (``cluster.handed_on``, ``cluster.not_handed_on``). Later events
    do not belong to the case and are not in its journal.
    """
    cluster.stop_watching()
    pollutes = [f"the case showed {each.does!r}" for each in case.journal.of(DeviationSeen) if each.lasts]
    try:
        if why := "; ".join([*cluster.drift(), *pollutes]):
            raise HarnessError(why)
        cluster.switch_logs(Journal(None), case.run_dir / "emptied")
        _empty(cluster)
    except _NOT_SHOWN as error:
        case.journal.write("cluster.not_handed_on", why=str(error) or repr(error))
        return False
    case.journal.write("cluster.handed_on")
    return True


def _empty(cluster: Cluster) -> None:
    """Delete all topics and dynamic configs, and wait until the cluster is as after its creation.

    :raises JbodError: the cluster could not be emptied, or not be shown to be empty
    """
    cluster.reset_configs()
    counts: dict[str, int] = {}
    for state in cluster.describe().partitions:
        counts[state.topic] = counts.get(state.topic, 0) + 1
    if counts:
        cluster.delete_topics(*(Topic(cluster, name, count) for name, count in counts.items()))
    cluster.await_members()
    last = cluster.create_topic(_LAST, partitions=cluster.spec.log_dirs, replicas=len(cluster.brokers))
    _await_none(lambda: list(_watermarks(cluster)), cluster)
    cluster.delete_topics(last)
    _await_none(lambda: list(leftovers(cluster)), cluster)
    cluster.sync()


def _await_none(find: Callable[[], list[str]], cluster: Cluster) -> None:
    """Wait until nothing is found.

    :raises HarnessError: something remains that will not go away
    """
    found = await_until(
        find,
        lambda found: not found or any("-stray" in each for each in found),  # Kafka never deletes stray replicas
        timeout_s=timeouts.EMPTYING_S,
        what="an empty cluster",
        retry_on=(NoAnswer, FileNotFoundError),  # Kafka replaces checkpoint files
        watch=cluster.check_nodes,
    )
    if found:
        raise HarnessError("; ".join(found))


def leftovers(cluster: Cluster) -> Iterator[str]:
    """Yield one phrase for each difference between the cluster and its state after creation."""
    yield from cluster.drift()
    yield from cluster.configs_changed()
    for broker in cluster.brokers:
        yield from _leftovers_of(broker)
    yield from cluster.quorum.leftovers()


def _watermarks(cluster: Cluster) -> Iterator[str]:
    for broker in cluster.brokers:
        for log_dir in broker.log_dirs:
            yield from _others_in(log_dir, HIGH_WATERMARKS)


def _others_in(log_dir: LogDir, checkpoint: str) -> Iterator[str]:
    """Yield a phrase if a checkpoint file has partitions other than those of the last topic."""
    if others := sorted(
        name for name in log_dir.partitions_in_checkpoint(checkpoint) if name.rpartition("-")[0] != _LAST
    ):
        yield f"{checkpoint} in {log_dir} names {', '.join(others)}"


def _leftovers_of(broker: Broker) -> Iterator[str]:
    if states := broker.describe_cluster().partitions:
        yield f"{broker} knows {states[0]}"
    described = broker.describe_log_dirs()
    yield from (f"{broker} has {d.path}: {d.error}" for d in described if d.error)
    if len(described) != len(broker.log_dirs):
        yield f"{broker} describes {len(described)} of its {len(broker.log_dirs)} log dirs"
    for log_dir in broker.log_dirs:
        if strange := sorted({path.name for path in log_dir.path.iterdir()} - _OF_AN_EMPTY_LOG_DIR):
            yield f"{log_dir} holds {', '.join(strange)}"
        for checkpoint in sorted(_CHECKPOINTS):
            yield from _others_in(log_dir, checkpoint)
