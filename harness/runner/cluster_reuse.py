"""A cluster that has served one case serves the next that wants one like it.

The start of three brokers and the warming of their JVMs are half of what a case costs, and test no promise (measured on
2 cores, two cases of KIP-112 at once: 28 s each with clusters of their own, 16 s with one that stands). But a green run
must not owe anything to what was there before, so:

* a cluster is handed on only after a case that came out valid and showed no deviation that lasts (a cleaner that
  stopped for good, say, stops for a partition's name), to one of an equal spec, of the same build; and not for ever;
* it is emptied first, by Kafka's own means: every topic is deleted, Kafka's own too, and every dynamic config; and then
  *shown* to be as it was made: every node runs, with the settings that it was made with; all that was done to the
  machine is undone; every broker sees all others and a controller; no log dir is offline, and none holds anything but
  what an empty one does; ZooKeeper knows of no topic, no deletion, no reassignment;
* the high watermarks of a log dir are written down as long as it has a replica, and those of its last ones stay in the
  file (``ReplicaManager.checkpointHighWatermarks``), where a topic of the same name would find them: so a topic that
  no case has comes last, with a replica in each log dir, and nothing but its own stay;
* what can't be shown in a few seconds is not looked into: the cluster is stopped, and the next case gets a fresh one;
* nodes' logs begin anew with each case, the journal too, and what happens in between is in neither (``emptied/`` of the
  run folder has those logs). The run folder says whom the cluster has served before (``served``). A red case is red
  whatever it followed; ``jbod repro`` shows it on a fresh cluster.

A scenario that must have the first of everything declares ``fresh``: one that looks at what was logged at a start, at
Kafka's own topics, or at what a cold JVM takes. With ``jbod run --clusters own`` all have.
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
"""So many cases are served by one cluster, and no more."""
_NOT_SHOWN = (JbodError, OSError, subprocess.SubprocessError)
"""What asking a cluster and this machine may come to; anything else is a mistake of the harness, and is seen."""
_LAST = "jbod-handed-on"
_CHECKPOINTS = {RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED}
_OF_AN_EMPTY_LOG_DIR = _CHECKPOINTS | {
    "meta.properties",
    "bootstrap.checkpoint",
    "__cluster_metadata-0",
    ".lock",
    *(f"{name}.tmp" for name in _CHECKPOINTS),  # each is written anew, and a disk may fail before it has its name
}


class ClusterPool:
    """The cluster that stands between two cases of a run, where one does.

    :ivar wanted: by the case after this; None where nobody wants one that served others
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.wanted: ClusterSpec | None = None
        self._say = say
        self._cluster: Cluster | None = None
        self._served: list[str] = []

    def take(self, spec: ClusterSpec, case: Case) -> Cluster | None:
        """The one that stands, for this case; None where none does that fits: another is stopped then."""
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
            shutil.rmtree(case.run_dir / "brokers", ignore_errors=True)  # what is in it is of no use to the case
            if isinstance(error, _NOT_SHOWN):
                return None
            raise
        cluster, self._cluster = self._cluster, None
        return cluster

    def leave(self, cluster: Cluster, case: Case) -> bool:
        """Have a cluster stand for the next case, if that wants it and it can be emptied; False where it can go."""
        served = [*self._served, case.id.selector]
        if cluster.spec != self.wanted or len(served) == AT_MOST or not try_to_empty(cluster, case):
            return False
        self._cluster, self._served = cluster, served
        return True

    def stop(self) -> None:
        """Nobody wants it any more. What of it can't be undone now is undone by the next run, as for all runs."""
        cluster, self._cluster = self._cluster, None
        self._served = []
        if cluster is not None:
            try:
                cluster.stop()
            except (JbodError, OSError) as error:
                self._say(f"a cluster that served others could not be taken away: {error}")


def try_to_empty(cluster: Cluster, case: Case) -> bool:
    """Take everything out of a cluster that is to serve another case; whether it could be shown to be as it was made.

    That it was, or why not, is the last that the case's journal has of it (``cluster.handed_on``,
    ``cluster.not_handed_on``): what else happens from here on is no part of the case, and is written down apart.
    """
    cluster.stop_watching()
    seen = [event.does for event in case.journal.of(DeviationSeen) if event.lasts]
    try:
        if why := "; ".join([*cluster.drift(), *(f"seen in it: {deviation}" for deviation in seen)]):
            raise HarnessError(why)
        cluster.switch_logs(Journal(None), case.run_dir / "emptied")
        _empty(cluster)
    except _NOT_SHOWN as error:
        case.journal.write("cluster.not_handed_on", why=str(error) or repr(error))
        return False
    case.journal.write("cluster.handed_on")
    return True


def _empty(cluster: Cluster) -> None:
    """:raises JbodError: it can't be done, or be shown"""
    cluster.reset_configs()
    counts: dict[str, int] = {}
    for state in cluster.describe().partitions:
        counts[state.topic] = counts.get(state.topic, 0) + 1
    if counts:
        cluster.delete_topics(*(Topic(cluster, name, count) for name, count in counts.items()))
    cluster.await_members()
    last = cluster.create_topic(_LAST, partitions=cluster.spec.log_dirs, replicas=len(cluster.brokers))
    _await_none(lambda: list(_watermarks(cluster)), cluster)
    cluster.delete_topic(last)
    _await_none(lambda: list(leftovers(cluster)), cluster)
    cluster.sync()


def _await_none(find: Callable[[], list[str]], cluster: Cluster) -> None:
    """Wait until nothing is found.

    :raises HarnessError: something is, and will be for longer
    """
    found = await_until(
        find,
        lambda found: not found or any("-stray" in each for each in found),  # which Kafka keeps
        timeout_s=timeouts.EMPTYING_S,
        what="an empty cluster",
        retry_on=(NoAnswer, FileNotFoundError),  # files that are written anew
        watch=cluster.check_nodes,
    )
    if found:
        raise HarnessError("; ".join(found))


def leftovers(cluster: Cluster) -> Iterator[str]:
    """What there is in a cluster that was not there when it was made, a phrase each."""
    yield from cluster.drift()
    yield from cluster.configs_changed()
    for broker in cluster.brokers:
        yield from _remains_of(broker)
    yield from cluster.quorum.leftovers()


def _watermarks(cluster: Cluster) -> Iterator[str]:
    for broker in cluster.brokers:
        for log_dir in broker.log_dirs:
            yield from _others_in(log_dir, HIGH_WATERMARKS)


def _others_in(log_dir: LogDir, checkpoint: str) -> Iterator[str]:
    """A phrase where a checkpoint file names other partitions than those that stay in it."""
    if others := sorted(name for name in log_dir.named_in(checkpoint) if name.rpartition("-")[0] != _LAST):
        yield f"{checkpoint} in {log_dir} names {', '.join(others)}"


def _remains_of(broker: Broker) -> Iterator[str]:
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
