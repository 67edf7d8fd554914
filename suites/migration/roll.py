"""Takes a cluster from ZooKeeper to KRaft and back, one node after another, as Kafka's documentation says.

"ZooKeeper to KRaft Migration" in the chapter "Operations" names the steps. Each is checked: the state of the migration,
what all sources show of the replicas, and the metadata that must come through unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from faults.broker import BrokerStopped
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.migration import Migration, Role
from harness.cluster.nodes.node import BOTH_QUORUMS
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Topic
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.kafka.mbeans import MigrationState
from harness.kafka.versions import Mode, VersionRange
from harness.runner.deviation import Deviation
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.controllers import await_active_controller
from suites.deviations import ISR_CHANGE_LOST_AT_TIMES
from suites.expected_state import ExpectedState
from suites.migration.metadata import KeptMetadata
from suites.migration.rejoining import leader_stuck
from suites.observations import Source, compare_topics, metadata_log
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down

migration_scenario = functools.partial(
    scenario, kip=866, modes=(Mode.ZK,), builds=VersionRange.parse(">=3.9"), fresh=True, needs=(BOTH_QUORUMS,)
)


class Roll:
    """A migration while clients run.

    :ivar migration: the roles of the nodes
    """

    def __init__(self, state: StateCheck, pair: Pair, topic: Topic) -> None:
        """Provision the KRaft controllers, which then wait for the brokers."""
        self._state = state
        self._cluster = state.cluster
        self._pair = pair
        self._metadata = KeptMetadata(self._cluster, topic)
        self.migration = Migration(self._cluster)
        self.await_state(MigrationState.PRE_MIGRATION)
        state.check()

    def await_state(self, wanted: MigrationState) -> None:
        """Wait until the KRaft controllers show a state of the migration."""
        mbeans = [self._cluster.mbeans[node.spec.name] for node in self.migration.controllers]
        await_until(
            lambda: {each.migration_state() for each in mbeans},
            lambda seen: seen == {wanted},
            timeout_s=timeouts.BOOT_S,
            what=f"the KRaft controllers to show the ZkMigrationState {wanted.name}",
            retry_on=(NoAnswer,),
            watch=self._cluster.check_nodes,
            failure=OwnPart(self._cluster, "take part in a migration").undone,
        )
        self._cluster.journal.write("migration.state", state=wanted.name)

    @contextmanager
    def down(self, broker: Broker, role: Role) -> Iterator[None]:
        """Stop a broker: the others serve in the block, and after it the broker is in every ISR again, in its role."""
        with brokers_down(self._state, BrokerStopped(broker)):
            self.migration.use_role(broker, role)
            self._pair.await_progress(after=now())
            yield

    def restart(self, role: Role, *brokers: Broker) -> None:
        """Restart brokers in another role, one after another."""
        for broker in brokers:
            with self.down(broker, role):
                pass

    def enter(self, *brokers: Broker) -> None:
        """Restart the last brokers for the migration: then the KRaft controller takes over ("dual write")."""
        *first, last = brokers
        self.restart(Role.MIGRATING, *first)
        with self.down(last, Role.MIGRATING):
            last.start()
            self.await_dual_write()
            self.await_rejoined(last)
        self.check_metadata()

    def await_dual_write(self) -> None:
        """Wait until the KRaft controller has copied the metadata: it is the active controller from here on."""
        self.await_state(MigrationState.MIGRATION)
        self.migration.controlled_by(Mode.KRAFT)
        await_active_controller(self._cluster)

    def await_rejoined(self, broker: Broker, *, unless: Deviation = ISR_CHANGE_LOST_AT_TIMES) -> None:
        """Wait until a started broker is in every ISR again; a leader that does not ask for it, as known, restarts."""
        if stuck := leader_stuck(self._cluster, broker, unless=unless):
            stuck.stop()
            self._state.broker_gone(stuck)
            stuck.start()
            self._state.broker_back(stuck)

    def to_kraft(self, *brokers: Broker) -> None:
        """Restart brokers as KRaft brokers, one after another."""
        self.restart(Role.KRAFT, *brokers)
        self.check_metadata()

    def finalize(self) -> None:
        """Restart the KRaft controllers without the migration, and stop ZooKeeper: the cluster works without it."""
        for controller in self.migration.controllers:
            self.migration.finalize(controller)
            await_active_controller(self._cluster)
        self.await_state(MigrationState.POST_MIGRATION)
        self.migration.remove_zookeeper()
        self._state.check(timeouts.RECOVERY_S, also=[metadata_log])
        self._metadata.check()
        self._pair.await_progress(after=now())

    def give_up(self, *znodes: str) -> None:
        """Remove the KRaft controllers, and delete znodes, so that a broker becomes the controller ("Reverting")."""
        self.migration.remove_controllers()
        deleted = {znode: self.migration.zookeeper.delete(znode) for znode in znodes}
        self._cluster.journal.write("znodes.deleted", data=deleted)
        self.migration.controlled_by(Mode.ZK)
        await_active_controller(self._cluster)
        self._state.check(timeouts.RECOVERY_S)
        self._pair.await_progress(after=now())

    def to_zookeeper(self, *brokers: Broker) -> None:
        """Restart brokers in ZooKeeper mode, one after another."""
        self.restart(Role.ZK, *brokers)
        self.check_metadata()

    def check_metadata(self) -> None:
        """All brokers show the metadata from before, and ZooKeeper and the metadata log have what brokers show."""
        self._metadata.check()
        self._state.check(also=self.sources())

    def sources(self) -> list[Source]:
        """The sources beside those of each check, while the KRaft controller writes to ZooKeeper.

        A replica has a log dir in the metadata log once its broker is a KRaft broker.
        """
        if self._cluster.spec.mode is Mode.ZK:
            return []
        are_kraft = all("process.roles" in broker.node.spec.properties for broker in self._cluster.brokers)
        return [self.written_to_zookeeper, *([metadata_log] if are_kraft else [])]

    def written_to_zookeeper(self, state: ExpectedState) -> Iterator[str]:
        """ZooKeeper, to which the KRaft controller writes as well."""
        yield from compare_topics(state, self.migration.zookeeper.partitions(), by="ZooKeeper has")
