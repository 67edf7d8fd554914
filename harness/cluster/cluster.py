"""The cluster under test, as Kafka's users have it: topics, reassignments, controllers, health; its members are
:mod:`harness.cluster.lifecycle`'s.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.lifecycle import ClusterLifecycle
from harness.cluster.nodes.node import Node, ClusterContext
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, EngineGone, Inconclusive, JbodError, PromiseBroken
from harness.host.undo import UndoLog
from harness.journal import Journal, now
from harness.kafka.admin import NewTopic, Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.distribution import Distribution
from harness.kafka.metadata import ClusterState, PartitionState, Reassignment
from harness.kafka.versions import Mode
from harness.waiting import await_until

_MADE = r"\] CreateTopics result\(s\): .*CreatableTopic\(name='{topic}',(?:(?!CreatableTopic\().)*\): SUCCESS"
"""What ``ReplicationControlManager.createTopics`` logs of a topic that it has made."""


def topic_created_pattern(topic: str) -> str:
    """A regular expression of what KRaft's controller logs that has made the topic."""
    return _MADE.format(topic=re.escape(topic))


class Cluster(ClusterLifecycle):
    """A cluster of real brokers; build it with :func:`boot`.

    :ivar topics: those that the harness made and that are still there, by name
    """

    def __init__(self, context: ClusterContext, jvm_options: tuple[str, ...] | None = None) -> None:
        super().__init__(context, jvm_options)
        self.topics: dict[str, Topic] = {}

    def attach_case(self, journal: Journal, record_dir: Path) -> None:
        """Be another case's cluster from now on, as :meth:`ClusterLifecycle.attach_case` has it, with no topics in it."""
        super().attach_case(journal, record_dir)
        self.topics.clear()

    def describe(self, via: Broker | None = None) -> ClusterState:
        """The cluster as ``via`` sees it, or else the first live broker that answers.

        :raises NoAnswer: nobody answers
        """
        if via is not None:
            return via.describe_cluster()
        error = NoAnswer("no broker is alive")
        for broker in self.live_brokers():
            try:
                return broker.describe_cluster()
            except NoAnswer as silence:
                error = silence
        raise error

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 3,
        configs: Mapping[str, str] | None = None,
        failure: type[JbodError] = AwaitTimeout,
    ) -> Topic:
        """Create a topic and wait until it is there, as :meth:`create_topics` has it."""
        [topic] = self.create_topics(
            NewTopic(name=name, partitions=partitions, replicas=replicas, configs=configs or {}), failure=failure
        )
        return topic

    def create_topics(self, *topics: NewTopic, failure: type[JbodError] = AwaitTimeout) -> list[Topic]:
        """Create topics, in one request, and wait until they are there.

        That is: every live broker sees a leader and a full ISR for each partition, and each replica has its log. The
        last is not implied: a new partition's ISR is full by decree before any broker has made a log for it. In KRaft
        the controller also knows by then in which log dir each is (brokers tell it a little later; it is asked of their
        MBeans, where the spec has them): of one that is killed before and comes back without that log dir it takes the
        replica for a new one (KIP-858).

        :param failure: what a time-out means; with PromiseBroken a refusal means no less, and a broker that ends: under
            a fault, that Kafka doesn't make new replicas where it can
        :raises Refused: with Kafka's error for one of them
        """
        try:
            self.request_topics(*topics)
        except Refused as refusal:
            if failure is not PromiseBroken:
                raise
            raise PromiseBroken(str(refusal)) from refusal
        counts = {new.name: len(new.assignment) or new.partitions for new in topics}
        created = self.await_topics(counts, failure=failure)
        for new, topic in zip(topics, created, strict=True):
            self.journal.write("topic.created", topic=new.name, partitions=len(topic), replicas=new.replicas)
        return created

    def request_topics(self, *topics: NewTopic) -> None:
        """Have topics created, in one request, and wait for nothing more; :meth:`await_topics` does.

        In KRaft a broker forwards the request, and again where the controller resigns before it has answered; the
        second is told that what the first made is there already (``TOPIC_ALREADY_EXISTS``, as any client's retry is).
        That is no refusal where a controller says that it made them since.

        :raises Refused: with Kafka's error for one of them
        """
        since = now()
        try:
            self._controller_or_any().admin.create_topics(topics)
        except Refused as refusal:
            if refusal.error != "TOPIC_ALREADY_EXISTS" or not all(self._was_created(new.name, since) for new in topics):
                raise
            self.journal.write("topic.asked_twice", topics=[new.name for new in topics], says=str(refusal))

    def _was_created(self, topic: str, since: datetime) -> bool:
        """Whether a controller of KRaft's logged since then that it made the topic."""
        return any(node.log.first(topic_created_pattern(topic), since=since) is not None for node in self._nodes())

    def create_partitions(self, counts: Mapping[str, int]) -> list[Topic]:
        """Give topics so many partitions in all, and wait until they are there, as :meth:`create_topics` does.

        :raises Refused: with Kafka's error for one of them
        """
        for name, count in counts.items():
            self._controller_or_any().admin.create_partitions(name, count)
        topics = self.await_topics(counts)
        self.journal.write("partitions.created", topics=dict(counts))
        return topics

    def await_topics(self, counts: Mapping[str, int], *, failure: type[JbodError] = AwaitTimeout) -> list[Topic]:
        """Wait until topics with so many partitions are led and replicated in full; they are known from then on.

        :param failure: what a time-out means, and a broker that ends by itself
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
            watch=partial(self.check_nodes, promised=failure is PromiseBroken),
            failure=failure,
        )
        self.topics |= {name: Topic(self, name, partitions) for name, partitions in counts.items()}
        return [self.topics[name] for name in counts]

    def await_replicas_created(self) -> None:
        """Wait until all replicas are made, of all topics, as :meth:`create_topics` has it; but not offline ones.

        For Kafka's own topics, which nobody creates: the first client that asks for them may be answered long before.

        :raises Inconclusive: they are not, in :data:`harness.timeouts.RECOVERY_S`
        """
        await_until(
            lambda: [each for b in self.live_brokers() for each in self._missing_replicas(b, b.describe_cluster().partitions)],
            lambda found: not found,
            timeout_s=timeouts.RECOVERY_S,
            what="all replicas to have a log, and the controller to know in which log dir",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=Inconclusive,
        )

    def _missing_replicas(self, broker: Broker, seen: Iterable[PartitionState]) -> list[str]:
        """A phrase for each replica that the broker has yet to make, and for those that it has yet to tell of."""
        made = {(r.topic, r.partition) for d in broker.describe_log_dirs() for r in d.replicas}
        found = [
            f"{broker} has no log of {state}"
            for state in seen
            if broker.id in set(state.replicas) - set(state.offline_replicas)
            and (state.topic, state.partition) not in made
        ]
        if self.spec.mode is Mode.KRAFT and broker.mbeans is not None and (queued := broker.mbeans.unassigned()):
            found.append(f"the controller has yet to hear from {broker} in which log dir {queued} replicas are")
        return found

    def reassign(self, partition: Partition, brokers: Sequence[Broker]) -> None:
        """Begin to move a partition to these brokers, in this order; :meth:`reassignments` tells how far it is.

        :raises Refused: with Kafka's error
        """
        ids = [broker.id for broker in brokers]
        self._controller_or_any().admin.alter_partition_reassignment(partition.topic, partition.index, ids)
        self.journal.write("reassignment.asked", partition=str(partition), replicas=ids)

    def reassignments(self) -> tuple[Reassignment, ...]:
        """Those that are under way."""
        return self._controller_or_any().admin.describe_reassignments()

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and wait until no live broker shows it; its data goes later."""
        self.delete_topics(topic)

    def delete_topics(self, *topics: Topic) -> None:
        """Delete topics, in one request, and wait until no live broker shows them; their data goes later."""
        names = [topic.name for topic in topics]
        self._controller_or_any().admin.delete_topics(names)
        await_until(
            lambda: [
                broker
                for broker in self.live_brokers()
                if not {p.topic for p in broker.describe_cluster().partitions}.isdisjoint(names)
            ],
            lambda knowing: not knowing,
            timeout_s=timeouts.LOG_DIR_FAILURE_S,
            what=f"{', '.join(names)} to be gone from every broker's metadata",
            retry_on=(NoAnswer,),
            failure=PromiseBroken,
        )
        for name in names:
            self.topics.pop(name, None)
            self.journal.write("topic.deleted", topic=name)

    def offline_partitions(self) -> int:
        """OfflinePartitionsCount as the active controller has it.

        :raises NoAnswer: no node that answers is the active controller
        """
        _, count = self._active_controller()
        return count

    def active_controller(self) -> Node:
        """The active controller's node: a controller's of its own, or a broker's.

        Where the spec does without MBeans: the only one, whether it is active or not.

        :raises NoAnswer: no node that answers is the active controller, or more than one is
        """
        if not self.spec.mbeans and self.spec.mode is Mode.KRAFT:
            [only] = self.quorum_nodes
            return only
        node, _ = self._active_controller()
        return node

    def _active_controller(self) -> tuple[Node, int]:
        """Who says that it is, by its MBeans, and how many partitions are offline to it."""
        found = []
        for node in (*self.quorum_nodes, *(broker.node for broker in self.live_brokers())):
            mbeans = self.mbeans.get(node.spec.name)
            if mbeans is not None and node.is_alive() and node.spec.properties.get("process.roles") != "broker":
                with contextlib.suppress(NoAnswer):
                    if (count := mbeans.offline_partitions()) is not None:
                        found.append((node, count))
        if len(found) == 1:
            return found[0]
        names = [node.spec.name for node, _ in found]
        raise NoAnswer(f"one node should say that it is the active controller, not {len(names)}: {names}")

    def controller_broker(self) -> Broker | None:
        """The broker that is the controller; None in KRaft, where a node of its own is, unless nodes are combined."""
        controller = self.quorum.controller(self.live_brokers()[0].admin)
        return next((broker for broker in self.brokers if broker.id == controller), None)

    def _controller_or_any(self) -> Broker:
        """The controller's broker where there is one, else any that lives: whom to ask for changes."""
        controller = self.describe().controller
        alive = {broker.id: broker for broker in self.live_brokers()}
        return alive[controller] if controller in alive else self.live_brokers()[0]

    def end_offsets(self, topics: Iterable[Topic]) -> dict[tuple[str, int], int]:
        """The high watermark of every partition of these topics, asked of its leader."""
        return {
            (topic.name, partition.index): partition.leader().admin.end_offset(topic.name, partition.index)
            for topic in topics
            for partition in topic.partitions
        }

    # --- health -----------------------------------------------------------------------------------------------------

    def health_problems(self) -> list[str]:
        """What is not healthy, a phrase each: brokers, leaders, replicas missing; log dirs offline.

        A broker that has just started may know of all brokers and of no topic yet: ZooKeeper's controller sends brokers
        first when it begins (``KafkaController.onControllerFailover``). So it must know every topic of :attr:`topics`.
        """
        made = {(topic.name, index) for topic in self.topics.values() for index in range(len(topic))}
        found = [f"{broker} does not run" for broker in self.brokers if not broker.is_running]
        for broker in self.live_brokers():
            seen = broker.describe_cluster()
            if seen.brokers != self._ids():
                found.append(f"{broker} sees brokers {list(seen.brokers)}")
            if unseen := sorted(made - {(state.topic, state.partition) for state in seen.partitions}):
                found.append(f"{broker} knows nothing of {', '.join(f'{name}-{index}' for name, index in unseen)}")
            found += [
                f"{broker} sees {state}"
                for state in seen.partitions
                if state.leader is None or state.under_replicated or state.offline_replicas
            ]
            found += [f"{broker} has {d.path}: {d.error}" for d in broker.describe_log_dirs() if d.error]
        return found

    def await_healthy(self, timeout_s: float = timeouts.RECOVERY_S, failure: type[JbodError] = AwaitTimeout) -> None:
        """Wait until there are no :meth:`health_problems`.

        :param failure: what a time-out means, and a broker that ends by itself: after healing a fault, that Kafka does
            not recover
        """
        await_until(
            self.health_problems,
            lambda found: not found,
            timeout_s=timeout_s,
            what="a healthy cluster",
            retry_on=(NoAnswer,),
            watch=partial(self.check_nodes, promised=failure is PromiseBroken),
            failure=failure,
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
    """Start a cluster and wait until it is ready; on any error nothing is left behind.

    What only an engine that has gone away could remove is left for a later clean-up, and the error says so.

    :param jvm_options: for every node, in place of those for fast starts (:mod:`harness.host.class_data`)
    """
    undo_log = UndoLog(run_id)
    cluster = None
    try:
        context = ClusterContext(
            spec=spec,
            distribution=distribution,
            record_dir=record_dir / "brokers",
            journal=journal,
            undo_log=undo_log,
            outlives_harness=outlives_harness,
        )
        cluster = Cluster(context, jvm_options)
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
                raise EngineGone(f"{error} Once it does, jbod clean removes what there is of {run_id}") from error
            raise
        raise
    return cluster
