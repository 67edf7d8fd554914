"""The cluster under test: booted from a spec, asked, healed, and taken away without a trace.

Everything that can start side by side does: ZooKeeper or the controller and all brokers are spawned at once and find
each other; what is waited for is the outcome, seen through Kafka's own protocol from every broker.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import timeouts
from harness.broker import Broker
from harness.doors.admin import NewTopic, Refused
from harness.doors.mbeans import MBeans, agent_options
from harness.doors.metadata import ClusterState, PartitionState, Reassignment
from harness.doors.wire import NoAnswer
from harness.errors import AwaitTimeout, EngineGone, Inconclusive, JbodError, NodeDied, PromiseBroken
from harness.journal import Journal
from harness.machine import class_data
from harness.machine.cache import cache_dir
from harness.machine.ports import PortBlock
from harness.machine.undo import UndoLog
from harness.machine.volume import Volume, make_volumes, sync
from harness.nodes.backends import backend_kind
from harness.nodes.base import AGENT, SERVICE, Node, NodeSpec, Site
from harness.quorum.base import Quorum
from harness.quorum.bootstrap import bootstrap_checkpoint
from harness.quorum.kraft import KRaftQuorum
from harness.quorum.zookeeper import ZooKeeperQuorum
from harness.releases.builds import BuildOptions
from harness.releases.distribution import Distribution, jolokia_agent
from harness.releases.tools import tool_output
from harness.releases.versions import Mode, Tool
from harness.runs.subrun import arguments_of
from harness.spec import BROKER_SETTINGS, ClusterSpec
from harness.topic import Partition, Topic
from harness.waiting import await_until
from harness.watcher import MBeanWatcher, Watcher

_KAFKA = "kafka.Kafka"


class Cluster:
    """A cluster of real brokers; build it with :func:`boot`."""

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        distribution: Distribution,
        record_dir: Path,
        journal: Journal,
        undo_log: UndoLog,
        outlives: bool = False,
        jvm_options: tuple[str, ...] | None = None,
    ) -> None:
        self.spec = spec
        self.distribution = distribution
        self.journal = journal
        self.undo_log = undo_log
        self._ports = PortBlock()
        work_dir = undo_log.dir
        self._site = Site(
            spec=spec,
            distribution=distribution,
            work_dir=work_dir,
            record_dir=record_dir / "brokers",
            journal=journal,
            undo_log=undo_log,
            ports=self._ports,
            outlives=outlives,
        )
        self._backend = backend_kind(spec.backend).make(self._site)
        self._jvm_options = self._fast_start() if jvm_options is None else jvm_options
        self.quorum: Quorum = (
            ZooKeeperQuorum(work_dir=work_dir, backend=self._backend)
            if spec.mode is Mode.ZK
            else KRaftQuorum(
                spec=spec,
                work_dir=work_dir,
                backend=self._backend,
                bootstrap_checkpoint=bootstrap_checkpoint(distribution, spec.metadata_version),
            )
        )
        self.mbeans: dict[str, MBeans] = {}
        self.quorum_nodes: list[Node] = [self._node(node_spec) for node_spec in self.quorum.node_specs()]
        self.brokers = [self._broker(id) for id in spec.broker_ids]
        self.topics: dict[str, Topic] = {}
        self._reshaped = False
        self._make_watchers()

    def _nodes(self) -> list[Node]:
        return [*self.quorum_nodes, *(broker.node for broker in self.brokers)]

    def _make_watchers(self) -> None:
        self._watcher, self._mbean_watcher = Watcher(self.brokers, self.journal), MBeanWatcher(self.journal)
        for node in self._nodes():
            self._watch_mbeans(node)

    def _watch_mbeans(self, node: Node) -> None:
        if (mbeans := self.mbeans.get(node.spec.name)) is not None:
            self._mbean_watcher.watch(node.spec.name, mbeans, node.is_alive)

    def _fast_start(self) -> tuple[str, ...]:
        archive = self._backend.runtime.classes(self.spec.mode)
        return class_data.use_options(self._backend.file(archive)) if archive.exists() else ()

    def _broker(self, id: int) -> Broker:
        name, work_dir = f"broker-{id}", self.undo_log.dir
        log_dirs: dict[Path, Volume | None] = {}
        for n in range(1, self.spec.log_dirs + 1):
            if self.spec.volumes is None:
                log_dirs[work_dir / f"broker-{id}-log-dir-{n}"] = None
            else:
                # A folder in the volume, as on real disks: Kafka refuses a log dir with a lost+found in it.
                at = work_dir / f"broker-{id}-volume-{n}"
                volume = Volume(at, kind=self.spec.volumes, size_mb=self.spec.volume_mb, undo_log=self.undo_log)
                log_dirs[at / f"log-dir-{n}"] = volume
        rack = self.spec.racks[id - 1] if self.spec.racks else None
        properties = {
            **BROKER_SETTINGS,
            "log.dirs": ",".join(map(str, log_dirs)),
            **({"broker.rack": rack} if rack else {}),
            **self.quorum.broker_settings(id, self._backend.listeners(name)),
            **self.spec.overrides,
        }
        return Broker(
            id=id,
            node=self._node(NodeSpec(name=name, main_class=_KAFKA, properties=properties)),
            mbeans=self.mbeans.get(name),
            port=self._backend.endpoint(name, SERVICE).port,
            log_dirs=log_dirs,
            journal=self.journal,
            undo_log=self.undo_log,
            registration_outlives_s=self.quorum.registration_outlives_s,
        )

    def _node(self, node_spec: NodeSpec) -> Node:
        """A node with an agent in it that answers for its MBeans, where it is Kafka's and that is wanted."""
        options = (*self._jvm_options, *node_spec.jvm_options)
        if self.spec.mbeans and node_spec.main_class == _KAFKA:
            agent = self._backend.endpoint(node_spec.name, AGENT)
            self.mbeans[node_spec.name] = MBeans(agent.port)
            options += agent_options(self._backend.file(jolokia_agent(cache_dir())), agent.address)
        return self._backend.node(replace(node_spec, jvm_options=options))

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make and format all folders, spawn all nodes, and return without waiting."""
        volumes = self._volumes()
        make_volumes(volumes)
        dirs = {broker.id: self._dirs(broker) for broker in self.brokers}
        for path in (*self.quorum.dirs(), *(path for paths in dirs.values() for path in paths)):
            self.brokers[0].node.make_dir(path)
        self.quorum.format(dirs)
        sync(volumes)
        self._backend.start(self._nodes())

    def _volumes(self) -> list[Volume]:
        return [log_dir.volume for b in self.brokers for log_dir in b.log_dirs if log_dir.volume is not None]

    def sync(self) -> None:
        """A power cut takes only what is written from now on."""
        sync(self._volumes())

    def await_ready(self) -> None:
        """Wait until every broker sees every broker and an elected controller.

        :raises NodeDied: a node ended while it started; the error has its last log lines
        :raises AwaitTimeout: not within :data:`harness.timeouts.BOOT_S`
        """
        self.await_members()
        self._owed = self.undo_log.due()
        self._configs = {broker.id: broker.admin.dynamic_configs(broker.id) for broker in self.brokers}
        self._begin()

    def _begin(self) -> None:
        self.journal.write("cluster.ready", bootstrap=self.bootstrap)
        self._watcher.start()
        self._mbean_watcher.start()

    def serve(self, journal: Journal, record_dir: Path) -> None:
        """Be another case's cluster from now on, and write into its folder; see :mod:`harness.handing_on`."""
        self.turn_page(journal, record_dir / "brokers")
        self.topics.clear()
        self._make_watchers()
        self._begin()

    def turn_page(self, journal: Journal, record_dir: Path) -> None:
        """Have what happens written down elsewhere from now on, nodes' logs too.

        :raises OSError: it can't be done; some logs are written there, some where they were
        """
        self.journal = self._site.journal = journal
        self._site.record_dir = record_dir
        for broker in self.brokers:
            broker.journal = journal
        for node in self._nodes():
            node.turn_page()

    def reset_configs(self) -> None:
        """Take all dynamic configs away that its brokers did not have when it was ready.

        :raises Refused: with Kafka's error
        """
        for broker in self.brokers:
            broker.configure_as(self._configs[broker.id])

    def configs_changed(self) -> list[str]:
        """In which dynamic configs its brokers are not as they were when it was ready, a phrase each."""
        has = {broker: broker.admin.dynamic_configs(broker.id) for broker in self.brokers}
        return [
            f"{broker} has {configs}, and had {self._configs[broker.id]}"
            for broker, configs in has.items()
            if configs != self._configs[broker.id]
        ]

    def changes(self) -> list[str]:
        """In what it is not as it was made, beside what is in it, a phrase each: nodes, what is done to the machine."""
        found = [f"{node.spec.name} is set up differently" for node in self._nodes() if not node.is_as_made()]
        found += [f"{node.spec.name} does not run" for node in self._nodes() if not node.is_alive() or node.is_paused()]
        if self._reshaped:
            found.append("brokers were added or removed")
        if due := self.undo_log.due() ^ self._owed:
            found.append(f"{len(due)} things done to the machine are yet to be undone, or are undone already")
        return found

    def await_members(self) -> None:
        """Wait until every live broker sees every broker and an elected controller.

        :raises NodeDied: a node ended meanwhile
        :raises AwaitTimeout: not within :data:`harness.timeouts.BOOT_S`
        """

        def unready() -> list[str]:
            missing = []
            for broker in self.live_brokers():
                seen = broker.describe_cluster().brokers
                if seen != self._ids():
                    missing.append(f"{broker} sees brokers {list(seen)}")
            if self.quorum.controller(self.brokers[0].admin) is None:
                missing.append("no controller elected")
            return missing

        await_until(
            unready,
            lambda missing: not missing,
            timeout_s=timeouts.BOOT_S,
            what=f"{len(self.brokers)} brokers and a controller",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            hint=lambda: "; ".join(f"{node.spec.name} logged last: {node.log.tail(1)}" for node in self._nodes()),
        )

    def _dirs(self, broker: Broker) -> tuple[Path, ...]:
        return (*self.quorum.broker_dirs(broker.id), *(log_dir.path for log_dir in broker.log_dirs))

    def _ids(self) -> tuple[int, ...]:
        return tuple(broker.id for broker in self.brokers)

    def add_broker(self) -> Broker:
        """Start one more broker, an empty one with the next id, and wait until every broker sees it.

        Like the others, but for a rack; its log dirs are in one folder, as where the spec names no volumes.
        """
        if self.spec.racks or self.spec.volumes is not None or self.spec.combined:
            raise ValueError("a broker can't be added to a cluster with racks, volumes or combined nodes")
        self._reshaped = True
        broker = self._broker(max(self._ids()) + 1)
        for path in self._dirs(broker):
            broker.node.make_dir(path)
        self.quorum.format_broker(broker.id, self._dirs(broker))
        self._backend.start([broker.node])
        self.brokers.append(broker)
        self.await_members()
        self._watcher.watch(broker)
        self._watch_mbeans(broker.node)
        self.journal.write("broker.added", broker=broker.id, bootstrap=broker.bootstrap)
        return broker

    def remove_broker(self, broker: Broker) -> None:
        """Stop a broker for good, so that nobody expects it any more: neither the cluster (KRaft) nor the harness."""
        self._reshaped = True
        broker.stop()
        self.brokers.remove(broker)
        self.unregister(broker)
        self.await_members()
        self.journal.write("broker.removed", broker=broker.id)

    def unregister(self, *brokers: Broker) -> None:
        """Have the cluster forget brokers that don't run (KRaft; in ZooKeeper mode it has), until they are started."""
        if self.spec.mode is Mode.KRAFT:
            for broker in brokers:
                arguments = ("unregister", "--bootstrap-server", self.bootstrap, "--id", str(broker.id))
                with tool_output(self.distribution, Tool.CLUSTER, *arguments, timeout_s=timeouts.TOOL_S):
                    self.journal.write("broker.unregistered", broker=broker.id)

    def check_nodes(self, *, promised: bool = False) -> None:
        """See that no node ended that nobody had ended.

        :param promised: Kafka promises that its brokers go on; SIGKILL is the kernel's, out of memory, all the same
        :raises NodeDied: one did
        :raises PromiseBroken: a broker did, against its promise
        """
        for broker in self.brokers:
            try:
                broker.node.check_alive()
            except NodeDied as error:
                if not promised or broker.node.exit_code() == -signal.SIGKILL:
                    raise
                raise PromiseBroken(f"{broker} should go on, wounded or not: {error}") from error
        for node in self.quorum_nodes:
            node.check_alive()

    def note_ends(self) -> None:
        """Write into the journal which nodes ended by themselves: a scenario may have looked at none of them since."""
        for node in self._nodes():
            node.note_end()

    def stop_watching(self) -> None:
        """Nothing more of what it does is written down."""
        self._watcher.stop()
        self._mbean_watcher.stop()

    def stop(self) -> None:
        """End all nodes at once (their data is about to go) and undo everything that the run did to the machine."""
        self.stop_watching()
        for node in self._nodes():
            with contextlib.suppress(EngineGone):  # the undo log knows what is left of it
                node.kill()
        try:
            self.undo_log.close()
        finally:
            self._ports.release()

    def keep(self) -> None:
        """Leave the cluster standing when the harness ends; ``jbod cluster down`` takes it away."""
        self.stop_watching()
        self.undo_log.keep()

    def how_to_reach(self) -> list[str]:
        """For people: where its brokers and log dirs are, and the commands to look at it and to take it down."""
        build = shlex.join(arguments_of(vars(BuildOptions.of(self.distribution.to_json()))))
        return [
            f"Kafka {self.distribution.version}, {self.spec.mode}, bootstrap {self.bootstrap}",
            *(
                f"  {broker}: {broker.bootstrap} {' '.join(str(d.path) for d in broker.log_dirs)}"
                for broker in self.brokers
            ),
            f"look at it:   jbod tool {build} topics --bootstrap-server {self.brokers[0].bootstrap} --describe",
            f"take it down: jbod cluster down {self.undo_log.run_id}",
        ]

    # --- what is in it ----------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Every broker's address, comma separated."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def broker(self, id: int) -> Broker:
        """The broker with this id."""
        return next(broker for broker in self.brokers if broker.id == id)

    def live_brokers(self) -> list[Broker]:
        """The brokers whose process runs, and is not paused."""
        return [broker for broker in self.brokers if broker.is_running]

    def others(self, *than: Broker) -> list[Broker]:
        """All brokers but these."""
        return [broker for broker in self.brokers if broker not in than]

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
            self.begin_topics(*topics)
        except Refused as refusal:
            if failure is not PromiseBroken:
                raise
            raise PromiseBroken(str(refusal)) from refusal
        counts = {new.name: len(new.assignment) or new.partitions for new in topics}
        created = self.await_topics(counts, failure=failure)
        for new, topic in zip(topics, created, strict=True):
            self.journal.write("topic.created", topic=new.name, partitions=len(topic), replicas=new.replicas)
        return created

    def begin_topics(self, *topics: NewTopic) -> None:
        """Have topics created, in one request, and wait for nothing more; :meth:`await_topics` does.

        :raises Refused: with Kafka's error for one of them
        """
        self._controlling().admin.create_topics(topics)

    def create_partitions(self, counts: Mapping[str, int]) -> list[Topic]:
        """Give topics so many partitions in all, and wait until they are there, as :meth:`create_topics` does.

        :raises Refused: with Kafka's error for one of them
        """
        for name, count in counts.items():
            self._controlling().admin.create_partitions(name, count)
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
                found += self._unmade(broker, seen)
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

    def await_made(self) -> None:
        """Wait until all replicas are made, of all topics, as :meth:`create_topics` has it; but not offline ones.

        For Kafka's own topics, which nobody creates: the first client that asks for them may be answered long before.

        :raises Inconclusive: they are not, in :data:`harness.timeouts.RECOVERY_S`
        """
        await_until(
            lambda: [each for b in self.live_brokers() for each in self._unmade(b, b.describe_cluster().partitions)],
            lambda found: not found,
            timeout_s=timeouts.RECOVERY_S,
            what="all replicas to have a log, and the controller to know in which log dir",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=Inconclusive,
        )

    def _unmade(self, broker: Broker, seen: Iterable[PartitionState]) -> list[str]:
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
        self._controlling().admin.alter_partition_reassignment(partition.topic, partition.index, ids)
        self.journal.write("reassignment.asked", partition=str(partition), replicas=ids)

    def reassignments(self) -> tuple[Reassignment, ...]:
        """Those that are under way."""
        return self._controlling().admin.describe_reassignments()

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and wait until no live broker shows it; its data goes later."""
        self.delete_topics(topic)

    def delete_topics(self, *topics: Topic) -> None:
        """Delete topics, in one request, and wait until no live broker shows them; their data goes later."""
        names = [topic.name for topic in topics]
        self._controlling().admin.delete_topics(names)
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

    def _controlling(self) -> Broker:
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

    def ailments(self) -> list[str]:
        """What is not healthy, a phrase each: brokers, leaders, replicas missing; log dirs offline."""
        found = [f"{broker} does not run" for broker in self.brokers if not broker.is_running]
        for broker in self.live_brokers():
            seen = broker.describe_cluster()
            if seen.brokers != self._ids():
                found.append(f"{broker} sees brokers {list(seen.brokers)}")
            found += [
                f"{broker} sees {state}"
                for state in seen.partitions
                if state.leader is None or state.under_replicated or state.offline_replicas
            ]
            found += [f"{broker} has {d.path}: {d.error}" for d in broker.describe_log_dirs() if d.error]
        return found

    def await_healthy(self, timeout_s: float = timeouts.RECOVERY_S, failure: type[JbodError] = AwaitTimeout) -> None:
        """Wait until there are no :meth:`ailments`.

        :param failure: what a time-out means, and a broker that ends by itself: after healing a fault, that Kafka does
            not recover
        """
        await_until(
            self.ailments,
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
    outlives: bool = False,
    jvm_options: tuple[str, ...] | None = None,
) -> Cluster:
    """Start a cluster and wait until it is ready; on any error nothing is left behind.

    :param jvm_options: for every node, in place of those for fast starts (:mod:`harness.machine.class_data`)
    """
    undo_log = UndoLog(run_id)
    cluster = None
    try:
        cluster = Cluster(
            spec=spec,
            distribution=distribution,
            record_dir=record_dir,
            journal=journal,
            undo_log=undo_log,
            outlives=outlives,
            jvm_options=jvm_options,
        )
        cluster.start()
        cluster.await_ready()
    except BaseException:
        if cluster is None:
            undo_log.close()
        else:
            cluster.stop()
        raise
    return cluster
