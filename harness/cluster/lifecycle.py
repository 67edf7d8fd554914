"""The lifecycle of a cluster: create its nodes from a spec, start them, stop them, and leave nothing behind.

All nodes start at the same time and find each other. Kafka's protocol shows, for every broker, when they are ready.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.nodes.backends import backend_kind
from harness.cluster.nodes.node import AGENT, SERVICE, ClusterContext, Node, NodeSpec
from harness.cluster.own_part import OwnPart
from harness.cluster.quorum.dynamic import DynamicQuorum
from harness.cluster.quorum.format_template import FormatTemplate, format_template, template_with_users
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.quorum.quorum import Quorum
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.cluster.security import ACLS, ClusterSecurity, User
from harness.cluster.spec import ClusterSpec
from harness.cluster.watcher import MBeanWatcher, Watcher
from harness.errors import EngineGone, HarnessError
from harness.host.cache import cache_dir
from harness.host.volume import Volume, make_volumes, sync
from harness.journal import Journal
from harness.kafka.acl_requests import Acl
from harness.kafka.connection import NoAnswer
from harness.kafka.distribution import Distribution, jolokia_agent
from harness.kafka.mbeans import MBeans, agent_options
from harness.kafka.points import HOLDS_OPTION
from harness.kafka.security import Bootstrap, ListenerSecurity
from harness.kafka.tiered_storage import local_tiered_storage, tiered_settings
from harness.kafka.tools import tool_output
from harness.kafka.versions import Mode, Tool
from harness.waiting import await_until


class ClusterLifecycle:
    """The brokers of a cluster, and its ZooKeeper or its controllers.

    :ivar unreachable: ids of brokers that run but are cut off from the other brokers and the controller. Their answers
        are out of date, so they are not asked
    """

    def __init__(self, context: ClusterContext) -> None:
        """Create the nodes of a cluster; :meth:`start` starts them."""
        self._context = context
        self.spec = context.spec
        self.journal, self.undo_log = context.journal, context.undo_log
        self.security = ClusterSecurity(context.spec.listener_security, context.work_dir)
        self._backend = backend_kind(context.spec.backend).make(context)
        self._main_class = context.distribution.main_class(Tool.BROKER)
        self.quorum: Quorum = self._make_zookeeper() if self.spec.mode is Mode.ZK else self._make_kraft(self.spec)
        self.mbeans: dict[str, MBeans] = {}
        self.quorum_nodes: list[Node] = [self._node(node_spec) for node_spec in self.quorum.node_specs()]
        self.brokers = [self._broker(id) for id in self.spec.broker_ids]
        self.unreachable = set[int]()
        self._nodes_changed = False
        self._make_watchers()

    def _make_zookeeper(self) -> ZooKeeperQuorum:
        return ZooKeeperQuorum(
            work_dir=self._context.work_dir,
            backend=self._backend,
            main_class=self._context.distribution.main_class(Tool.ZOOKEEPER),
            security=self.security,
            profile=self.spec.profile,
        )

    def _make_kraft(self, spec: ClusterSpec) -> KRaftQuorum:
        kind = partial(DynamicQuorum, distribution=self._context.distribution) if spec.dynamic_quorum else KRaftQuorum
        return kind(
            spec=spec,
            work_dir=self._context.work_dir,
            backend=self._backend,
            template=self._template(spec.metadata_version),
            main_class=self._main_class,
            undo_log=self.undo_log,
            security=self.security,
        )

    def _template(self, metadata_version: str | None) -> FormatTemplate:
        build = self._context.distribution
        if passwords := self.security.passwords:
            return template_with_users(build, metadata_version, passwords, self._context.work_dir / "formatted")
        return format_template(build, metadata_version)

    @property
    def distribution(self) -> Distribution:
        """The oldest build that a broker or a controller runs: its tools and its requests work with all of them."""
        return min((node.build for node in self.nodes if node.spec.is_kafka), key=lambda build: build.version)

    @property
    def nodes(self) -> list[Node]:
        """ZooKeeper or the controllers, then the brokers."""
        return [*self.quorum_nodes, *(broker.node for broker in self.brokers)]

    def _make_watchers(self) -> None:
        self._watcher, self._mbean_watcher = Watcher(self.brokers, self.journal), MBeanWatcher(self.journal)
        for node in self.nodes:
            self._watch_mbeans(node)

    def _watch_mbeans(self, node: Node) -> None:
        if (mbeans := self.mbeans.get(node.spec.name)) is not None:
            self._mbean_watcher.watch(node.spec.name, mbeans, node.is_alive)

    def _broker(self, id: int) -> Broker:
        name, work_dir = f"broker-{id}", self.undo_log.dir
        log_dirs: dict[Path, Volume | None] = {}
        for n in range(1, self.spec.log_dirs + 1):
            if self.spec.volumes is None:
                log_dirs[work_dir / f"broker-{id}-log-dir-{n}"] = None
            else:
                # A folder in the volume, as on real disks: Kafka refuses a log dir that contains lost+found.
                at = work_dir / f"broker-{id}-volume-{n}"
                volume = Volume(at, kind=self.spec.volumes, size_mb=self.spec.volume_mb, undo_log=self.undo_log)
                log_dirs[at / f"log-dir-{n}"] = volume
        rack = self.spec.racks[id - 1] if self.spec.racks else None
        properties = {
            **self.spec.profile.settings,
            "log.dirs": ",".join(map(str, log_dirs)),
            **({"broker.rack": rack} if rack else {}),
            **self.quorum.broker_settings(id, self._backend.listeners(name)),
            **self._tiered_settings(name),
            **self.spec.given,
            **self.spec.overrides,
        }
        return Broker(
            id=id,
            node=self._node(NodeSpec(name=name, main_class=self._main_class, properties=properties)),
            mbeans=self.mbeans.get(name),
            port=self._backend.endpoint(name, SERVICE).port,
            security=self.security.client(),
            log_dirs=log_dirs,
            journal=self.journal,
            undo_log=self.undo_log,
            registration_ttl_s=self.quorum.registration_ttl_s,
        )

    def _tiered_settings(self, broker: str) -> Mapping[str, str]:
        """The settings of a broker for tiered storage, if the spec has it."""
        if not self.spec.tiered:
            return {}
        plugin = self._backend.file(local_tiered_storage(cache_dir()))
        default = self.spec.listener_security.protocol
        listener = self._backend.listeners(broker).get("inter.broker.listener.name", default)
        return tiered_settings(plugin, self.remote_storage, listener, self.security.broker_client(broker))

    @property
    def remote_storage(self) -> Path:
        """The folder for remote segments, which all brokers share."""
        return self._context.work_dir / "remote-storage"

    def _node(self, node_spec: NodeSpec) -> Node:
        """A node; if it runs Kafka and the spec has MBeans, with an agent that answers for them."""
        options = node_spec.jvm_options
        if self.spec.mbeans and node_spec.main_class == self._main_class:
            agent = self._backend.endpoint(node_spec.name, AGENT)
            self.mbeans[node_spec.name] = MBeans(agent.port)
            options += agent_options(self._backend.file(jolokia_agent(cache_dir())), agent.address)
        if self.spec.holds and node_spec.main_class == self._main_class:
            options += (HOLDS_OPTION,)
        if node_spec.is_kafka:
            options += self.security.jvm_options(node_spec.name)
        return self._backend.node(replace(node_spec, jvm_options=options))

    # --- lifecycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create and format all folders, start all nodes, and return without waiting for the brokers."""
        volumes = self._volumes()
        make_volumes(volumes)
        dirs = {broker.id: self._dirs(broker) for broker in self.brokers}
        if self.spec.tiered:
            self.brokers[0].node.make_dir(self.remote_storage)
        for path in (*self.quorum.dirs(), *(path for paths in dirs.values() for path in paths)):
            self.brokers[0].node.make_dir(path)
        self.quorum.format(dirs)
        sync(volumes)
        self.security.write_client_files()
        self._write_keys(*self.nodes)
        if self.spec.dynamic_quorum:
            self._start_controllers_first()
        elif isinstance(self.quorum, ZooKeeperQuorum) and self.security.has_users:
            self._backend.start(self.quorum_nodes)
            self.quorum.add_users(self.distribution, self.security.passwords)
            self._backend.start([broker.node for broker in self.brokers])
        else:
            self._backend.start(self.nodes)

    def _write_keys(self, *nodes: Node) -> None:
        """Give Kafka's nodes their keys and passwords, if the spec has any."""
        if self.spec.listener_security is not ListenerSecurity.PLAINTEXT:
            for node in (each for each in nodes if each.spec.is_kafka):
                node.make_dir(self.security.keys_dir(node.spec.name))
                self.security.write_node_files(node.spec.name)

    def allow(self, *acls: Acl) -> None:
        """Add ACLs, and wait until every broker knows them."""
        self.brokers[0].admin.create_acls(acls)
        await_until(
            lambda: [broker for broker in self.live_brokers() if not broker.admin.describe_acls() >= {*acls}],
            lambda unaware: not unaware,
            timeout_s=timeouts.RECOVERY_S,
            what="every broker to know the ACLs",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=OwnPart(self, "tell every broker the ACLs").undone,
        )
        self.journal.write("acls.created", acls=list(map(str, acls)))

    def _start_controllers_first(self) -> None:
        """Start the brokers once a controller is active, so that they see the end of the first election only.

        A broker that has to truncate its metadata log does not know the voters any more: it cannot find the controller.
        """
        self._backend.start(self.quorum_nodes)
        await_until(
            lambda: [self.mbeans[node.spec.name].offline_partitions() for node in self.quorum_nodes],
            lambda counts: any(count is not None for count in counts),
            timeout_s=timeouts.BOOT_S,
            what="a controller to be active",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=OwnPart(self, "elect an active controller").undone,
        )
        self._backend.start([broker.node for broker in self.brokers])

    def _volumes(self) -> list[Volume]:
        of_brokers = [log_dir.volume for b in self.brokers for log_dir in b.log_dirs if log_dir.volume is not None]
        return [*of_brokers, *self.quorum.volumes()]

    def sync(self) -> None:
        """Write all data to the volumes' disks, so that a later power cut drops only what is written after this."""
        sync(self._volumes())

    def await_ready(self) -> None:
        """Wait until every broker sees every broker and an active controller, then watch the cluster.

        :raises JbodError: as :meth:`await_members`
        """
        self.await_members()
        if self.security.has_users:
            self.allow(*ACLS)
        self._undo_entries = self.undo_log.due()
        self._configs = {broker.id: broker.admin.dynamic_configs(broker.id) for broker in self.brokers}
        self._start_watchers()

    def _start_watchers(self) -> None:
        self.journal.write("cluster.ready", bootstrap=str(self.bootstrap))
        self._watcher.start()
        self._mbean_watcher.start()

    def attach_case(self, journal: Journal, record_dir: Path) -> None:
        """Use the cluster for another case, and write into that case's folder (:mod:`harness.runner.cluster_reuse`)."""
        self.switch_logs(journal, record_dir / "brokers")
        self._make_watchers()
        self._start_watchers()

    def switch_logs(self, journal: Journal, record_dir: Path) -> None:
        """Write events and the nodes' logs to another place from now on.

        :raises OSError: a log can't be switched; the others may already be
        """
        self.journal = self._context.journal = journal
        self._context.record_dir = record_dir
        for broker in self.brokers:
            broker.journal = journal
        for node in self.nodes:
            node.switch_logs()

    def reset_configs(self) -> None:
        """Remove all dynamic configs that the brokers did not have when the cluster became ready.

        :raises Refused: Kafka returns an error
        """
        for broker in self.brokers:
            broker.configure_as(self._configs[broker.id])

    def configs_changed(self) -> list[str]:
        """One phrase for each broker whose dynamic configs differ from those when the cluster became ready."""
        has = {broker: broker.admin.dynamic_configs(broker.id) for broker in self.brokers}
        return [
            f"{broker} has {configs}, and had {self._configs[broker.id]}"
            for broker, configs in has.items()
            if configs != self._configs[broker.id]
        ]

    def drift(self) -> list[str]:
        """One phrase for each difference from the cluster's start: nodes, brokers, entries of the undo log."""
        found = [
            f"{node.spec.name} does not run with its original settings"
            for node in self.nodes
            if not node.is_unchanged()
        ]
        found += [f"{node.spec.name} does not run" for node in self.nodes if not node.is_alive() or node.is_paused()]
        if self._nodes_changed:
            found.append("brokers or controllers were added or removed")
        if due := self.undo_log.due() ^ self._undo_entries:
            found.append(f"undo log differs from cluster start by {len(due)} entries")
        return found

    def await_members(self) -> None:
        """Wait until every live broker sees every broker and an active controller.

        :raises PromiseBroken, NodeDied: a node ended meanwhile (:meth:`check_nodes`)
        :raises JbodError: not within :data:`harness.timeouts.BOOT_S` (:class:`~harness.cluster.own_part.OwnPart`)
        """

        def unready() -> list[str]:
            missing = []
            for broker in self.live_brokers():
                seen = broker.describe_cluster().brokers
                if seen != self._broker_ids():
                    missing.append(f"{broker} sees brokers {list(seen)}")
            if self.quorum.controller(self.brokers[0].admin) is None:
                missing.append("no controller is active")
            return missing

        await_until(
            unready,
            lambda missing: not missing,
            timeout_s=timeouts.BOOT_S,
            what=f"{len(self.brokers)} brokers and a controller",
            retry_on=(NoAnswer,),
            watch=self.check_nodes,
            failure=OwnPart(self, "let every broker register, and have an active controller").undone,
            hint=lambda: "; ".join(f"{node.spec.name} logged last: {node.log.tail(1)}" for node in self.nodes),
        )

    def _dirs(self, broker: Broker) -> tuple[Path, ...]:
        return (*self.quorum.broker_dirs(broker.id), *(log_dir.path for log_dir in broker.log_dirs))

    def _broker_ids(self) -> tuple[int, ...]:
        return tuple(broker.id for broker in self.brokers)

    def add_broker(self) -> Broker:
        """Start an additional, empty broker with the next id, and wait until every broker sees it.

        Its log dirs are on one file system. The spec must have no racks, volumes or combined nodes.
        """
        if self.spec.racks or self.spec.volumes is not None or self.spec.combined:
            raise ValueError("a broker can't be added to a cluster with racks, volumes or combined nodes")
        self._nodes_changed = True
        broker = self._broker(max(self._broker_ids()) + 1)
        for path in self._dirs(broker):
            broker.node.make_dir(path)
        self.quorum.format_broker(broker.id, self._dirs(broker))
        self._write_keys(broker.node)
        self._backend.start([broker.node])
        self.brokers.append(broker)
        self.await_members()
        self._watcher.watch(broker)
        self._watch_mbeans(broker.node)
        self.journal.write("broker.added", broker=broker.id, bootstrap=str(broker.bootstrap))
        return broker

    def remove_broker(self, broker: Broker) -> None:
        """Stop a broker and remove it from the cluster, in KRaft also from the metadata."""
        self._nodes_changed = True
        broker.stop()
        self.brokers.remove(broker)
        self.unregister(broker)
        self.await_members()
        self.journal.write("broker.removed", broker=broker.id)

    def add_controller(self) -> Node:
        """Start an additional controller with the next id, without waiting. It is no voter yet (KIP-853).

        The spec must have a dynamic quorum. The metadata log dir is not on a volume.
        """
        if not isinstance(self.quorum, DynamicQuorum):
            raise ValueError("a controller can only be added to a dynamic quorum")
        self._nodes_changed = True
        controller = self._node(self.quorum.new_controller())
        controller.make_dir(self.quorum.metadata_log(controller).parent)
        self.quorum.format_observer(controller.spec)
        self._write_keys(controller)
        self._backend.start([controller])
        self.quorum_nodes.append(controller)
        self._watch_mbeans(controller)
        self.journal.write("controller.added", controller=controller.spec.name)
        return controller

    def format_observer(self, controller: Node) -> None:
        """Format the empty metadata log dir of a controller, with a new ``directory.id``: it is no voter (KIP-853)."""
        assert isinstance(self.quorum, DynamicQuorum)
        self._nodes_changed = True
        self.quorum.format_observer(controller.spec)
        self.journal.write("disk.formatted", controller=controller.spec.name)

    def add_kraft_quorum(self, cluster_id: str, properties: Mapping[str, str]) -> KRaftQuorum:
        """Start KRaft controllers beside ZooKeeper, without waiting; see :mod:`harness.cluster.migration`.

        :param cluster_id: that of the brokers
        :param properties: of the controllers, in addition to those that they have in any cluster
        """
        self._nodes_changed = True
        quorum = self._make_kraft(replace(self.spec, mode=Mode.KRAFT))
        quorum.cluster_id = cluster_id
        for path in quorum.dirs():
            self.brokers[0].node.make_dir(path)
        quorum.format({})
        specs = quorum.node_specs()
        controllers = [self._node(replace(each, properties={**each.properties, **properties})) for each in specs]
        self._write_keys(*controllers)
        self._backend.start(controllers)
        self.quorum_nodes += controllers
        for controller in controllers:
            self._watch_mbeans(controller)
            self.journal.write("controller.added", controller=controller.spec.name)
        return quorum

    def use_quorum(self, quorum: Quorum) -> None:
        """Take this quorum for the one of the active controller: its mode is the mode of the cluster from here on."""
        self.quorum, self.spec = quorum, replace(self.spec, mode=quorum.mode)
        self.journal.write("cluster.mode", mode=quorum.mode)

    def remove_controller(self, controller: Node) -> None:
        """Stop a controller that is no voter any more, or ZooKeeper if it is unused, and remove it from the cluster."""
        self._nodes_changed = True
        controller.stop(timeouts.STOP_S)
        self.quorum_nodes.remove(controller)
        self.journal.write("controller.removed", controller=controller.spec.name)

    def unregister(self, *brokers: Broker) -> None:
        """Unregister stopped brokers in KRaft, until they start again. ZooKeeper has removed them already."""
        if self.spec.mode is Mode.KRAFT:
            for broker in brokers:
                arguments = ("unregister", *self.bootstrap.of_tool(Tool.CLUSTER), "--id", str(broker.id))
                with tool_output(self.distribution, Tool.CLUSTER, *arguments, timeout_s=timeouts.TOOL_S):
                    self.journal.write("broker.unregistered", broker=broker.id)

    def check_nodes(self) -> None:
        """Check that no node ended by itself.

        :raises PromiseBroken: a broker or a controller ended by itself
        :raises NodeDied: one ended by a cause outside Kafka, or ZooKeeper ended
        """
        for node in (*(broker.node for broker in self.brokers), *self.quorum_nodes):
            node.check_alive()

    def journal_unexpected_ends(self) -> None:
        """Record in the journal which nodes ended by themselves, for scenarios that did not check."""
        for node in self.nodes:
            node.journal_unexpected_end()

    def check_watched(self) -> None:
        """Check that the metadata watcher still runs, since scenarios rely on the events that it writes.

        :raises HarnessError: its thread has ended
        """
        if not self._watcher.is_watching:
            raise HarnessError(
                "the metadata watcher ended, so the journal lacks changes: see standard error and the container engine"
            )

    def stop_watching(self) -> None:
        """Stop both watchers."""
        self._watcher.stop()
        self._mbean_watcher.stop()

    def stop(self) -> None:
        """Kill all nodes (their data is deleted anyway) and undo everything that the run did to the machine."""
        self.stop_watching()

        def kill(node: Node) -> None:
            with contextlib.suppress(EngineGone):  # the undo log has what is left of the node
                node.kill()

        try:
            with ThreadPoolExecutor(max_workers=len(self.nodes)) as pool:
                list(pool.map(kill, self.nodes))
        finally:
            try:
                self.undo_log.close()
            finally:
                self._context.ports.release()

    def keep(self) -> None:
        """Leave the cluster running after the harness ends; ``jbod cluster down`` stops it."""
        self.stop_watching()
        self.undo_log.keep()

    @property
    def bootstrap(self) -> Bootstrap:
        """All brokers, for clients of the harness's own user."""
        return self.bootstrap_of(self.brokers)

    def bootstrap_of(self, brokers: Iterable[Broker], user: User = "admin") -> Bootstrap:
        """These brokers, for clients of this user; ``admin`` is the harness's own."""
        addresses = ",".join(broker.bootstrap.addresses for broker in brokers)
        return Bootstrap(addresses=addresses, security=self.security.client(user))

    def broker(self, id: int) -> Broker:
        """The broker with this id."""
        return next(broker for broker in self.brokers if broker.id == id)

    def live_brokers(self) -> list[Broker]:
        """The brokers that run, are not paused, and are not :attr:`unreachable`."""
        return [broker for broker in self.brokers if broker.is_running and broker.id not in self.unreachable]

    def others(self, *than: Broker) -> list[Broker]:
        """All brokers except these."""
        return [broker for broker in self.brokers if broker not in than]
