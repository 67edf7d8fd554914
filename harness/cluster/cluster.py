"""The cluster under test: topics, reassignments, controllers and health.

Starting, stopping and changing its nodes is in :mod:`harness.cluster.lifecycle`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.lifecycle import ClusterLifecycle
from harness.cluster.nodes.node import ClusterContext, Node
from harness.cluster.own_part import OwnPart
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Partition, Topic
from harness.errors import EngineGone, JbodError, PromiseBroken
from harness.host.undo import UndoLog
from harness.journal import Journal, now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.distribution import Distribution
from harness.kafka.metadata import ClusterState, PartitionState, Reassignment
from harness.kafka.points import with_points
from harness.kafka.versions import Mode
from harness.waiting import await_until

_REPLICATE = "elect a leader for each partition, create its replicas, and assign them to log dirs"


def topic_created_pattern(topic: str) -> str:
    """A regular expression for the line that the KRaft controller logs when it creates the topic.

    ``ReplicationControlManager.createTopics`` writes it.
    """
    name = re.escape(topic)
    return rf"\] CreateTopics result\(s\): .*CreatableTopic\(name='{name}',(?:(?!CreatableTopic\().)*\): SUCCESS"


class Cluster(ClusterLifecycle):
    """A cluster of real brokers; :func:`boot` starts one.

    :ivar topics: the topics that the harness created and has not deleted, by name
    """

    def __init__(self, context: ClusterContext) -> None:
        super().__init__(context)
        self.topics: dict[str, Topic] = {}
        self.metadata_read_until = 0  # the records before this offset belong to earlier cases

    def attach_case(self, journal: Journal, record_dir: Path) -> None:
        """Use the cluster, which must have no topics, for another case; see :meth:`ClusterLifecycle.attach_case`."""
        super().attach_case(journal, record_dir)
        self.topics.clear()

    def describe(self, via: Broker | None = None) -> ClusterState:
        """The cluster as ``via`` sees it, or as the first live broker that answers.

        :raises NoAnswer: no broker answers
        """
        if via is not None:
            return via.describe_cluster()
        error = NoAnswer("no broker is alive")
        for broker in self.live_brokers():
            try:
                return broker.describe_cluster()
            except NoAnswer as no_answer:
                error = no_answer
        raise error

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 3,
        configs: Mapping[str, str] | None = None,
        failure: type[JbodError] | None = None,
    ) -> Topic:
        """Create a topic and wait until it is ready; see :meth:`create_topics`."""
        [topic] = self.create_topics(
            NewTopic(name=name, partitions=partitions, replicas=replicas, configs=configs or {}), failure=failure
        )
        return topic

    def create_topics(self, *topics: NewTopic, failure: type[JbodError] | None = None) -> list[Topic]:
        """Create topics in one request and wait until they are ready.

        A topic is ready when every live broker sees a leader and a full ISR for each partition, and each replica has a
        log. The log is checked because a new partition has a full ISR before any broker has created its log. In KRaft,
        the controller must also know the log dir of each replica. If a broker is killed before it reports that, and
        returns without the log dir, the controller takes the replica for a new one (KIP-858). The brokers' MBeans show
        what is not yet reported, if the spec has MBeans.

        :param failure: the error for a time-out. PromiseBroken under a fault: Kafka must be able to create replicas
            despite it, so a refusal breaks the promise too. None: it is :class:`~harness.cluster.own_part.OwnPart`
        :raises Refused: Kafka returns an error for a topic
        """
        own_part = OwnPart(self, "create topics")
        try:
            self.request_topics(*topics)
        except Refused as refusal:
            raise PromiseBroken(str(refusal)) if failure is PromiseBroken else own_part.refused(refusal) from refusal
        counts = {new.name: len(new.assignment) or new.partitions for new in topics}
        created = self.await_topics(counts, failure=failure)
        for new, topic in zip(topics, created, strict=True):
            self.journal.write("topic.created", topic=new.name, partitions=len(topic), replicas=new.replicas)
        return created

    def request_topics(self, *topics: NewTopic) -> None:
        """Ask for topics in one request and do not wait for them; :meth:`await_topics` waits.

        A KRaft broker forwards the request, and forwards it again if the controller resigns before it answers. The
        second controller answers ``TOPIC_ALREADY_EXISTS`` for topics that the first one created. This is no error if a
        controller logged that it created the topics after the request.

        :raises Refused: Kafka returns an error for a topic
        """
        since = now()
        try:
            self._controller_or_any().admin.create_topics(topics)
        except Refused as refusal:
            if refusal.error != "TOPIC_ALREADY_EXISTS" or not all(self._was_created(new.name, since) for new in topics):
                raise
            self.journal.write("topic.asked_twice", topics=[new.name for new in topics], says=str(refusal))

    def _was_created(self, topic: str, since: datetime) -> bool:
        """Whether a KRaft controller has logged since then that it created the topic."""
        return any(node.log.first(topic_created_pattern(topic), since=since) is not None for node in self.nodes)

    def create_partitions(self, counts: Mapping[str, int]) -> list[Topic]:
        """Increase the number of partitions of topics to these totals, and wait as :meth:`create_topics` does.

        :raises Refused: Kafka returns an error for a topic
        """
        for name, count in counts.items():
            with OwnPart(self, "create partitions").served():
                self._controller_or_any().admin.create_partitions(name, count)
        topics = self.await_topics(counts)
        self.journal.write("partitions.created", topics=dict(counts))
        return topics

    def await_topics(self, counts: Mapping[str, int], *, failure: type[JbodError] | None = None) -> list[Topic]:
        """Wait until these topics, with these numbers of partitions, are ready; then add them to :attr:`topics`.

        :param failure: the error for a time-out; None: it is :class:`~harness.cluster.own_part.OwnPart`
        """

        def missing() -> list[str]:
            found = []
            for broker in self.live_brokers():
                seen = broker.admin.describe_cluster(topics=counts).partitions
                found += [str(s) for s in seen if s.leader is None or s.under_replicated]
                found += self._missing_replicas(broker, seen)
                if len(seen) < sum(counts.values()):
                    found.append(f"{broker} sees {len(seen)} of {sum(counts.values())} partitions")
            return found

        await_until(
            missing,
            lambda found: not found,
            timeout_s=timeouts.RECOVERY_S,
            what=f"{', '.join(counts)} to be led and replicated in full",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=failure or OwnPart(self, _REPLICATE).undone,
        )
        self.topics |= {name: Topic(self, name, partitions) for name, partitions in counts.items()}
        return [self.topics[name] for name in counts]

    def await_replicas_created(self) -> None:
        """Wait until every online replica of every topic is created, as in :meth:`create_topics`.

        Kafka's internal topics need this: a client's request creates them, and may be answered long before that.

        :raises JbodError: not within :data:`harness.timeouts.RECOVERY_S` (:class:`~harness.cluster.own_part.OwnPart`)
        """
        await_until(
            lambda: [
                each for b in self.live_brokers() for each in self._missing_replicas(b, b.describe_cluster().partitions)
            ],
            lambda found: not found,
            timeout_s=timeouts.RECOVERY_S,
            what="all replicas to have a log, and the controller to know in which log dir",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=OwnPart(self, _REPLICATE).undone,
        )

    def _missing_replicas(self, broker: Broker, seen: Iterable[PartitionState]) -> list[str]:
        """The replicas that the broker has not created, and the number that it has not reported to the controller."""
        made = {(r.topic, r.partition) for d in broker.describe_log_dirs() for r in d.replicas}
        found = [
            f"{broker} has no log of {state}"
            for state in seen
            if broker.id in set(state.replicas) - set(state.offline_replicas)
            and (state.topic, state.partition) not in made
        ]
        if self.spec.mode is Mode.KRAFT and broker.mbeans is not None and (queued := broker.mbeans.unassigned()):
            found.append(f"{broker} has not yet reported the log dirs of {queued} replicas to the controller")
        return found

    def reassign(self, partition: Partition, brokers: Sequence[Broker]) -> None:
        """Begin to reassign a partition to these brokers, in this order; :meth:`reassignments` shows the progress.

        :raises RefusedOwnPart: Kafka returns an error
        """
        ids = [broker.id for broker in brokers]
        with self._reassigning():
            self._controller_or_any().admin.alter_partition_reassignment(partition.topic, partition.index, ids)
        self.journal.write("reassignment.asked", partition=str(partition), replicas=ids)

    def cancel_reassignment(self, partition: Partition) -> None:
        """Cancel the reassignment of a partition: the replicas that it adds are removed, and the old ones stay.

        :raises RefusedOwnPart: Kafka returns an error, such as NO_REASSIGNMENT_IN_PROGRESS
        """
        with self._reassigning():
            self._controller_or_any().admin.alter_partition_reassignment(partition.topic, partition.index, None)
        self.journal.write("reassignment.cancel_asked", partition=str(partition))

    def _reassigning(self) -> contextlib.AbstractContextManager[None]:
        return OwnPart(self, "begin and cancel reassignments", needs_all=False).served()

    def reassignments(self) -> tuple[Reassignment, ...]:
        """The reassignments in progress.

        :raises NoAnswer: the controller has just changed, and the broker that was asked is none any more
        """
        try:
            return self._controller_or_any().admin.describe_reassignments()
        except Refused as refused:
            if refused.error != "NOT_CONTROLLER":
                raise
            raise NoAnswer(f"the controller has just changed: {refused}") from refused

    def delete_topics(self, *topics: Topic) -> None:
        """Delete topics in one request and wait until no live broker lists them. Brokers delete the data later."""
        names = [topic.name for topic in topics]
        with OwnPart(self, "delete topics", needs_all=False).served():
            self._controller_or_any().admin.delete_topics(names)
        await_until(
            lambda: [
                broker
                for broker in self.live_brokers()
                if not {p.topic for p in broker.describe_cluster().partitions}.isdisjoint(names)
            ],
            lambda listing: not listing,
            timeout_s=timeouts.LOG_DIR_FAILURE_S,
            what=f"every broker's metadata to drop {', '.join(names)}",
            retry_on=(NoAnswer,),
            failure=PromiseBroken,
        )
        for name in names:
            self.topics.pop(name, None)
            self.journal.write("topic.deleted", topic=name)

    def offline_partitions(self) -> int:
        """The active controller's OfflinePartitionsCount.

        :raises NoAnswer: no node that answers is the active controller
        """
        _, count = self._active_controller()
        return count

    def active_controller(self) -> Node:
        """The node of the active controller: a dedicated controller or a broker.

        Without MBeans it is the only controller, whether that is active or not.

        :raises NoAnswer: no node that answers is the active controller, or more than one is
        """
        if not self.spec.mbeans and self.spec.mode is Mode.KRAFT:
            [only] = self.quorum_nodes
            return only
        node, _ = self._active_controller()
        return node

    def _active_controller(self) -> tuple[Node, int]:
        """The node whose MBeans say that it is the active controller, and its count of offline partitions.

        In ZooKeeper mode this is a broker, also while KRaft controllers wait for a migration.
        """
        found = []
        in_zk = self.spec.mode is Mode.ZK
        for node in (*self.quorum_nodes, *(broker.node for broker in self.live_brokers())):
            mbeans, roles = self.mbeans.get(node.spec.name), node.spec.properties.get("process.roles", "")
            if mbeans is not None and node.is_alive() and (not roles if in_zk else "controller" in roles):
                with contextlib.suppress(NoAnswer):
                    if (count := mbeans.offline_partitions()) is not None:
                        found.append((node, count))
        if len(found) == 1:
            return found[0]
        names = [node.spec.name for node, _ in found]
        raise NoAnswer(f"one node should say that it is the active controller, not {len(names)}: {names}")

    def controller_broker(self) -> Broker | None:
        """The broker that is the controller; None in KRaft with dedicated controllers."""
        controller = self.quorum.controller(self.live_brokers()[0].admin)
        return next((broker for broker in self.brokers if broker.id == controller), None)

    def _controller_or_any(self) -> Broker:
        """The broker that is the controller if there is one, else any live broker; admin requests go to it."""
        controller = self.describe().controller
        alive = {broker.id: broker for broker in self.live_brokers()}
        return alive[controller] if controller in alive else self.live_brokers()[0]

    def end_offsets(self, topics: Iterable[Topic]) -> dict[tuple[str, int], int]:
        """The high watermark of every partition of these topics, from its leader."""
        return {
            (topic.name, partition.index): partition.leader().admin.end_offset(topic.name, partition.index)
            for topic in topics
            for partition in topic.partitions
        }

    # --- health -----------------------------------------------------------------------------------------------------

    def health_problems(self) -> list[str]:
        """One phrase for each problem: a missing broker, leader or replica, or an offline log dir.

        A broker that has just started may know all brokers and no topic: in ZooKeeper mode, a new controller first
        sends the list of brokers alone (``KafkaController.onControllerFailover``). So each broker must also know every
        topic of :attr:`topics`.
        """
        made = {(topic.name, index) for topic in self.topics.values() for index in range(len(topic))}
        found = [f"{broker} does not run" for broker in self.brokers if not broker.is_running]
        for broker in self.live_brokers():
            seen = broker.describe_cluster()
            if seen.brokers != self._broker_ids():
                found.append(f"{broker} sees brokers {list(seen.brokers)}")
            if unseen := sorted(made - {(state.topic, state.partition) for state in seen.partitions}):
                found.append(f"{broker} does not know {', '.join(f'{name}-{index}' for name, index in unseen)}")
            found += [
                f"{broker} sees {state}"
                for state in seen.partitions
                if state.leader is None or state.under_replicated or state.offline_replicas
            ]
            found += [f"{broker} has {d.path}: {d.error}" for d in broker.describe_log_dirs() if d.error]
        return found

    def await_healthy(self, timeout_s: float = timeouts.RECOVERY_S, failure: type[JbodError] | None = None) -> None:
        """Wait until there are no :meth:`health_problems`.

        :param failure: the error for a time-out. PromiseBroken after a fault was undone: Kafka must recover. None: it
            is :class:`~harness.cluster.own_part.OwnPart`
        """
        await_until(
            self.health_problems,
            lambda found: not found,
            timeout_s=timeout_s,
            what="a healthy cluster",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=failure or OwnPart(self, "bring back all brokers and replicas").undone,
        )
        self.journal.write("cluster.healthy")


def boot(
    spec: ClusterSpec,
    distribution: Distribution,
    *,
    run_id: str,
    record_dir: Path,
    journal: Journal,
    outlives_harness: bool = False,
    jvm_options: tuple[str, ...] | None = None,
) -> Cluster:
    """Start a cluster and wait until it is ready. On any error, remove everything that was started.

    If the container engine is gone, its containers stay until a later clean-up; the error says so.

    :param outlives_harness: the nodes may keep running after the harness ends
    :param jvm_options: for every node, instead of the options for fast starts (:mod:`harness.host.class_data`)
    """
    undo_log = UndoLog(run_id)
    cluster = None
    try:
        context = ClusterContext(
            spec=spec,
            distribution=with_points(distribution, spec.mode) if spec.holds else distribution,
            record_dir=record_dir / "brokers",
            journal=journal,
            undo_log=undo_log,
            outlives_harness=outlives_harness,
            jvm_options=jvm_options,
        )
        cluster = Cluster(context)
        cluster.start()
        cluster.await_ready()
    except BaseException as error:
        try:
            if cluster is None:
                undo_log.close()
            else:
                cluster.stop()
        except EngineGone:
            if isinstance(error, EngineGone):
                raise EngineGone(f"{error} When it does, jbod clean removes what is left of {run_id}") from error
            raise
        raise
    return cluster
