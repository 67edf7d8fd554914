"""Records that real brokers refuse or time out get the right outcome.

Each error code that can be provoked is provoked on a small cluster; then the partition is read to its end. A failed
record must not be there, and an acked one must be. An indeterminate record may be there, for reasons in the table of
:mod:`harness.history.record_outcome`. Where possible, a test shows records of one code of which some are there and some
are not. That table also names the codes that cannot be provoked, with the reason.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from faults.base import injected
from faults.broker import BrokerPaused
from faults.log_dir import Chmod000
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import ClusterContext
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Partition
from harness.history.record_outcome import Outcome, outcome_of
from harness.host.undo import UndoLog
from harness.journal import Journal
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode
from harness.waiting import await_until
from harness.workload.client_config import PRODUCER_CONFIG

pytestmark = pytest.mark.cluster

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
# Long enough for a paused broker to keep its registration on a slow machine, and no longer: a killed broker can start
# again only after this time.
PATIENT = AUTHORIZER | {"broker.session.timeout.ms": "20000"}
PLAIN = {
    "enable.idempotence": False,
    # One refusal is final; otherwise the client retries until the record's time-out.
    "message.send.max.retries": 0,
    "message.timeout.ms": 30000,
    "topic.metadata.propagation.max.ms": 1,
    # One record in each request: one can be in flight while others are queued behind it.
    "batch.num.messages": 1,
    "linger.ms": 0,
    "statistics.interval.ms": 20,
    "log_level": 0,
}
IDEMPOTENT: dict[str, Any] = {"enable.idempotence": True, "message.send.max.retries": 10}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two brokers with an authorizer."""
    ones = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    site = ClusterContext(
        spec=ClusterSpec(mode=Mode.KRAFT, brokers=2, overrides=AUTHORIZER | dict.fromkeys(ones, "1")),
        distribution=Builds.choose(BuildOptions()).of(Mode.KRAFT),
        record_dir=tmp_path_factory.mktemp("brokers"),
        journal=Journal(None),
        undo_log=UndoLog(f"selftest-{secrets.token_hex(3)}"),
    )
    cluster = Cluster(site)
    try:
        for node in cluster.quorum_nodes:
            node.configure(PATIENT)
        cluster.start()
        cluster.await_ready()
        yield cluster
    finally:
        cluster.stop()


class Sending:
    """A client that sends numbers to one partition, and their outcomes."""

    def __init__(
        self, cluster: Cluster, partition: Partition, config: Mapping[str, Any] | None = None, *, first: int = 0
    ) -> None:
        self.partition = partition
        self.codes: dict[int, str | None] = {}
        """The name of each record's error; None if it was acked."""
        self.outcomes: dict[int, Outcome] = {}
        self._bootstrap, self._next = cluster.bootstrap, first
        self._under_way = 0
        self.client = Producer(
            {
                **PRODUCER_CONFIG,
                **PLAIN,
                **(config or {}),
                "bootstrap.servers": self._bootstrap,
                "stats_cb": self._count,
            }
        )

    def send(self, count: int = 1, *, size: int = 100, partition: int | None = None, **more: Any) -> None:
        where = self.partition.index if partition is None else partition
        for seq in range(self._next, self._next + count):
            value, told = f"{seq} {'x' * size}"[:size], partial(self._settle, seq)
            try:
                self.client.produce(self.partition.topic, value, partition=where, on_delivery=told, **more)
            except KafkaException as error:
                self._settle(seq, error.args[0], None, handed_over=False)
        self._next += count

    def _settle(self, seq: int, error: KafkaError | None, _: object, handed_over: bool = True) -> None:
        self.codes[seq] = None if error is None else error.name()
        self.outcomes[seq] = outcome_of(error, handed_over=handed_over)

    def _count(self, statistics: str) -> None:
        self._under_way = sum(broker["waitresp_cnt"] for broker in json.loads(statistics)["brokers"].values())

    def poll(self) -> None:
        with suppress(KafkaException):  # a fatal error is raised here once
            self.client.poll(0.02)

    def ended(self) -> list[str | None]:
        """Wait until each record has an outcome; returns the error codes in the order of the records."""

        def known() -> int:
            self.poll()
            return len(self.client)

        await_until(known, lambda left: not left, timeout_s=60, what="all delivery reports")
        return [self.codes[seq] for seq in sorted(self.codes)]

    def await_under_way(self) -> None:
        """Wait until a request is in flight."""

        def under_way() -> int:
            self.poll()
            return self._under_way

        await_until(under_way, timeout_s=10, what="a request to be under way")

    def send_until(self, code: str) -> None:
        """Send one record after another until one gets this error."""

        def seen() -> set[str | None]:
            self.send()
            self.poll()
            return set(self.codes.values())

        await_until(seen, lambda codes: code in codes, timeout_s=15, what=f"a record to end with {code}")

    def present(self) -> set[int]:
        """The records of all clients in the partition, which is read to its end."""
        reader = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "nobody",
                "isolation.level": "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        reader.assign([TopicPartition(self.partition.topic, self.partition.index, 0)])
        found: set[int] = set()
        try:
            while True:
                message = reader.poll(10)
                assert message is not None, f"{self.partition} can't be read to its end"
                error, value = message.error(), message.value()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                assert value is not None
                found.add(int(value.split()[0]))
        finally:
            reader.close()

    def check(self, until: Callable[[set[int]], bool] = lambda _: True) -> set[int]:
        """Check that the records in the partition fit their outcomes; returns those of this client.

        :param until: wait until this holds for them: a broker that was paused may have yet to read requests
        """
        self.ended()
        present = await_until(
            lambda: self.present() & set(self.codes), until, timeout_s=15, what=f"the records of {self.partition}"
        )
        of = {each: {seq for seq, outcome in self.outcomes.items() if outcome == each} for each in ("failed", "acked")}
        assert not of["failed"] & present, "said to have failed, and there"
        assert of["acked"] <= present, "acked, and not there"
        return present


REFUSED: Mapping[str, tuple[dict[str, str], dict[str, Any]]] = {
    "MSG_SIZE_TOO_LARGE": ({"max.message.bytes": "1000"}, {"size": 5000}),
    "RECORD_LIST_TOO_LARGE": ({"max.message.bytes": "3000000", "segment.bytes": "1048576"}, {"size": 1_500_000}),
    "INVALID_RECORD": ({"cleanup.policy": "compact"}, {"key": None}),
    "INVALID_TIMESTAMP": ({"message.timestamp.before.max.ms": "60000"}, {"timestamp": 1000}),
}


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("code", REFUSED)
def test_what_a_broker_refuses_for_itself(cluster: Cluster, code: str, idempotent: bool) -> None:
    """The record is not there. It is indeterminate, since the client reports the error of the last attempt only."""
    configs, bad = REFUSED[code]
    name = f"{code.lower().replace('_', '-')}-{idempotent}"
    topic = cluster.create_topic(name, replicas=1, configs=configs)
    more: dict[str, Any] = {"message.max.bytes": 3_000_000, **(IDEMPOTENT if idempotent else {})}
    sending = Sending(cluster, topic[0], more)
    for how in ({}, bad, {}):
        sending.send(**{"key": "k", **how})
    assert sending.ended() == [None, code, None]
    assert sending.outcomes[1] == "indeterminate"
    assert sending.check() == {0, 2}


def test_what_the_client_refuses_at_the_call_has_failed(cluster: Cluster) -> None:
    topic = cluster.create_topic("refused", replicas=1)
    sending = Sending(cluster, topic[0], {"message.max.bytes": 2000})
    sending.send()
    sending.ended()
    sending.send(size=5000)
    sending.send(partition=7)
    assert sending.ended() == [None, "MSG_SIZE_TOO_LARGE", "_UNKNOWN_PARTITION"]
    assert [sending.outcomes[seq] for seq in (1, 2)] == ["failed", "failed"]
    assert sending.check() == {0}


def test_topics_and_partitions_that_are_not_there(cluster: Cluster) -> None:
    """The topic or partition never existed, or was deleted; an earlier attempt may have got through then."""
    gone = cluster.create_topic("gone", replicas=1)
    known = Sending(cluster, gone[0])
    known.send()
    assert known.ended() == [None]
    cluster.delete_topics(gone)
    known.send()
    assert known.ended() in ([None, "_UNKNOWN_PARTITION"], [None, "_DESTROY"])
    assert known.outcomes[1] == "indeterminate"
    nowhere = Sending(cluster, Partition(cluster, "nowhere", 0))
    nowhere.send()
    assert (nowhere.ended(), nowhere.outcomes) == (["UNKNOWN_TOPIC_OR_PART"], {0: "indeterminate"})
    new = Sending(cluster, cluster.create_topic("new", replicas=1)[0])
    new.send(partition=7)
    assert (new.ended(), new.outcomes) == (["_UNKNOWN_PARTITION"], {0: "indeterminate"})
    assert new.check() == set()


def test_rights_that_are_taken_away(cluster: Cluster) -> None:
    topic = cluster.create_topic("denied", replicas=1)
    sending = Sending(cluster, topic[0])
    sending.send()
    assert sending.ended() == [None]
    rights = {AclOperation.WRITE: AclPermissionType.DENY} | dict.fromkeys(
        (AclOperation.DESCRIBE, AclOperation.READ), AclPermissionType.ALLOW
    )
    acls = [
        AclBinding(ResourceType.TOPIC, topic.name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", *right)
        for right in rights.items()
    ]
    admin = AdminClient({**cluster.bootstrap.librdkafka})
    for done in admin.create_acls(acls).values():
        done.result(10)
    sending.send_until("TOPIC_AUTHORIZATION_FAILED")  # the broker gets the ACL a little later
    assert set(sending.ended()) == {None, "TOPIC_AUTHORIZATION_FAILED"}
    # From the second refusal on, the client may refuse the record in the call; that is certain.
    refused = [sending.outcomes[seq] for seq, code in sorted(sending.codes.items()) if code is not None]
    assert refused[0] == "indeterminate"
    assert set(refused) <= {"indeterminate", "failed"}
    assert sending.check() == {seq for seq, code in sending.codes.items() if code is None}


def test_a_producer_that_was_fenced(cluster: Cluster) -> None:
    """A record in flight is refused for its epoch; the next one is refused, too, or purged, or refused in the call."""
    topic = cluster.create_topic("fenced", replicas=1)
    first, second = (Sending(cluster, topic[0], IDEMPOTENT | {"transactional.id": "x"}) for _ in range(2))
    first.client.init_transactions(30)
    first.client.begin_transaction()
    first.send()
    assert first.ended() == [None]
    second.client.init_transactions(30)
    first.send(2)
    assert first.ended()[:2] == [None, "INVALID_PRODUCER_EPOCH"]
    assert first.codes[2] in ("INVALID_PRODUCER_EPOCH", "_PURGE_QUEUE", "_FATAL")
    assert first.outcomes[1] == "indeterminate"
    assert first.outcomes[2] in ("indeterminate", "failed")
    assert first.check() == {0}


def test_time_outs_and_purges_while_the_leader_is_paused(cluster: Cluster) -> None:
    """Records with one error code differ: the resumed leader writes those in its socket, and others were never sent."""
    topic = cluster.create_topic("paused", replicas=1)
    timed_out = Sending(cluster, topic[0], {"message.timeout.ms": 5000})
    purged = Sending(cluster, topic[0], first=100)
    # The first attempt has timed out, and the client waits to try again.
    tried = {
        "message.timeout.ms": 60000,
        "request.timeout.ms": 1500,
        "socket.timeout.ms": 2000,
        "message.send.max.retries": 5,
        "retry.backoff.ms": 60000,
        "retry.backoff.max.ms": 60000,
    }
    twice = Sending(cluster, topic[0], tried, first=200)
    every = (timed_out, purged, twice)
    for sending in every:
        sending.send()
        assert sending.ended() == [None]
    with injected(BrokerPaused(topic[0].leader())):
        for sending in every:
            sending.send(3)
            sending.await_under_way()
        purged.client.purge()
        assert purged.ended() == [None, "_PURGE_INFLIGHT", "_PURGE_QUEUE", "_PURGE_QUEUE"]
        assert timed_out.ended() == [None, "_MSG_TIMED_OUT", "_MSG_TIMED_OUT", "_MSG_TIMED_OUT"]

        def under_way() -> int:
            twice.poll()
            return twice._under_way

        await_until(under_way, lambda count: not count, timeout_s=30, what="the first attempt to be given up")
        twice.client.purge()
        assert twice.ended() == [None, "_PURGE_QUEUE", "_PURGE_QUEUE", "_PURGE_QUEUE"]
    for sending in every:
        assert {outcome for seq, outcome in sending.outcomes.items() if seq % 100} == {"indeterminate"}
    assert timed_out.check(lambda present: 1 in present) == {0, 1}
    assert purged.check(lambda present: 101 in present) == {100, 101}
    assert twice.check(lambda present: 201 in present) >= {200, 201}


def test_a_follower_that_does_not_answer(cluster: Cluster) -> None:
    """The leader has written the record, and times out waiting for the follower."""
    topic = cluster.create_topic("waiting", replicas=2, configs={"min.insync.replicas": "2"})
    hasty = Sending(cluster, topic[0], {"request.timeout.ms": 700, "message.timeout.ms": 12_000})
    patient = Sending(cluster, topic[0], first=10)
    patient.send()
    assert patient.ended() == [None]
    hasty.client.list_topics(topic.name, 30)  # it knows the leader now, so the next step is to send
    with injected(BrokerPaused(topic[0].followers()[0])):
        hasty.send(2)
        assert hasty.ended() == ["REQUEST_TIMED_OUT", "REQUEST_TIMED_OUT"]
    assert hasty.outcomes == {0: "indeterminate", 1: "indeterminate"}
    assert hasty.check(lambda present: len(present) == 2) == {0, 1}


def test_a_log_dir_that_fails_and_a_broker_that_is_killed(cluster: Cluster) -> None:
    """This test is the last one: it leaves a healthy cluster, but restarts a broker."""
    alone = cluster.create_topic("alone", replicas=1)
    victim = alone[0].leader()
    log_dir = alone[0].log_dir_on(victim)
    both = cluster.create_topic("both", partitions=8, replicas=2, configs={"min.insync.replicas": "2"})
    led = next(p for p in both.partitions if p.leader() == victim and p.log_dir_on(victim) != log_dir)
    followed = next(p for p in both.partitions if p.leader() != victim and p.log_dir_on(victim) == log_dir)
    storage, too_few = Sending(cluster, alone[0]), Sending(cluster, followed)
    cut_off = Sending(cluster, led, {"acks": 1})
    for sending in (storage, too_few, cut_off):
        sending.send()
        assert sending.ended() == [None]
    with injected(Chmod000(log_dir)):
        storage.send_until("KAFKA_STORAGE_ERROR")
        too_few.send_until("NOT_ENOUGH_REPLICAS")
        storage.ended()
        with injected(BrokerPaused(victim)):
            cut_off.send(2)
            cut_off.await_under_way()
            victim.kill()
        await_until(
            lambda: cut_off.poll(), lambda _: "_TRANSPORT" in cut_off.codes.values(), timeout_s=30, what="_TRANSPORT"
        )
    victim.start()
    cluster.await_healthy(timeout_s=120)  # its old session must end first
    for sending, code in (
        (storage, "KAFKA_STORAGE_ERROR"),
        (too_few, "NOT_ENOUGH_REPLICAS"),
        (cut_off, "_TRANSPORT"),
    ):
        assert code in sending.ended()
        assert set(sending.outcomes.values()) <= {"acked", "indeterminate"}
        sending.check()
