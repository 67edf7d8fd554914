"""Runs the PySpark pair of a case and judges its history.

:mod:`harness.workload` knows addresses and topic names; scenarios use topics and brokers. This module connects both. It
is the only place where a case's history is drained and judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Unpack

from harness.checkers.judge import judge, write_verdict
from harness.checkers.settings import Session
from harness.checkers.verdict import Verdict
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Topic
from harness.errors import HarnessError, NotServed, PipelineError, PromiseBroken
from harness.events import ConsumerBehind
from harness.explain.explain import explain_verdict
from harness.explain.segments import read_sessions
from harness.kafka.security import Bootstrap
from harness.measure.client_errors import Refused, lost_positions, refused_records
from harness.measure.fault_costs import measure_faults
from harness.measure.floors import Floors, shortfalls
from harness.measure.premature import premature
from harness.runner.case import Case
from harness.spark.session import SparkHandle, check_jvm
from harness.workload.drain import await_stable
from harness.workload.pair import OPEN_TRANSACTION_S, Pair
from harness.workload.workload import LoadSettings, Workload

_OVERTAKEN = "Out of order sequence number"
"""Message of ``ProducerAppendInfo.checkSequence`` for a batch that arrived before an earlier one. librdkafka recovers
from it with a new epoch. If the broker has forgotten the producer, the same refusal is a fatal error to librdkafka."""


class CaseWorkload:
    """Runs pairs on the case's cluster and judges their history."""

    def __init__(self, case: Case, cluster: Cluster, spark: SparkHandle, floors: Floors) -> None:
        self._case = case
        self._floors = floors
        self._cluster = cluster
        self._spark = spark
        self._pipeline = Workload(
            spark,
            case.run_dir,
            run_token=case.run_token,
            on_event=lambda kind, **f: case.journal.write(kind, **f),
        )
        self._topics: list[Topic] = []
        self._pair: Pair | None = None
        self._in_transactions = False
        self._groups: dict[str, str] = {}
        self._known_errors: frozenset[str] = frozenset()
        self.refused: Mapping[str, Refused] = {}
        """The records that producers were refused, by error; empty until the history is judged."""

    def expect_errors(self, *errors: str) -> None:
        """Let producers get these errors for their records, by librdkafka's names; the scenario judges them itself."""
        self._known_errors |= {*errors}

    @contextmanager
    def running(self, topic: Topic, *, via: Broker | None = None, **settings: Unpack[LoadSettings]) -> Iterator[Pair]:
        """Run a producer and a live consumer on the topic during the block. Both get records through before the block
        begins.

        :param via: the only broker in the clients' bootstrap list (default: all)
        :param settings: see :class:`harness.workload.workload.Load`; aborts of transactions follow the case's seed
        :raises PromiseBroken: Kafka does not serve the clients before the block
        :raises Inconclusive: it does not, and this machine is too busy to say why
        """
        bootstrap = self._for_client(*([via] if via else self._cluster.brokers))
        self._topics.append(topic)
        self._case.verdict = None
        if (transactional := settings.get("transactional")) is not None:
            self._in_transactions = True
            settings["transactional"] = replace(transactional, seed=self._case.id.seed)
        if (compression := self._cluster.spec.profile.compression) is not None:
            own = settings.get("producer_config", {})
            settings["producer_config"] = {"compression.type": compression, **own}
        phase = self._case.phase
        self._case.enter("load")
        own_part = OwnPart(self._cluster, "serve producers and consumers, also in groups", needs_all=False)
        with self._served(own_part, bootstrap, topic, **settings) as pair:
            self._case.enter(phase if phase != "boot" else "fault")
            self._pair = pair
            # The judge needs to know which consumers form a group.
            self._groups |= {
                member: reader.name
                for reader in pair.readers
                for member in reader.consumers
                if len(reader.consumers) > 1
            }
            if self._groups:
                self._case.record(groups=self._groups)
            pair.await_count(self._floors.before, failure=own_part.unserved)
            self._cluster.await_replicas_created()  # __consumer_offsets may just have been created for the consumers
            try:
                yield pair
            finally:
                self._pair = None

    def _for_client(self, *brokers: Broker) -> Bootstrap:
        """These brokers, for a user that may only read and write."""
        return self._cluster.bootstrap_of(brokers, "client")

    @contextmanager
    def _served(
        self, own_part: OwnPart, bootstrap: Bootstrap, topic: Topic, **settings: Unpack[LoadSettings]
    ) -> Iterator[Pair]:
        """Run the clients during the block, which begins when Kafka serves them."""
        with ExitStack() as running:
            try:
                pair = running.enter_context(self._pipeline.running(bootstrap, topic.name, len(topic), **settings))
            except NotServed as error:
                raise own_part.unserved(str(error)) from error
            yield pair

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The topics that a pair ran on."""
        return tuple(self._topics)

    def drain_and_judge(self) -> Verdict:
        """Wait for a healthy cluster, drain every topic that a pair ran on, judge the whole history, and write
        verdict.json.

        If a pair used transactions, both isolation levels are drained, and all transactions must have ended by then. An
        open transaction holds read_committed readers back for ever. The judge does not know how long, so it only
        reports `held_back`.

        :raises HarnessError: a pair still runs
        :raises PromiseBroken: the cluster does not become healthy after all faults are undone, a transaction stays
            open, records were acked or read before the ISR had them, clients got errors that no fault explains, or a
            log cannot be read to its end
        :raises Inconclusive: a log cannot be read to its end, and this machine is too busy to say why
        :raises PipelineError: Spark's JVM was killed
        """
        if self._pair is not None:
            raise HarnessError("a pair still runs: leave running() before the history is judged")
        self._case.enter("recover")
        self._cluster.await_healthy(failure=PromiseBroken)
        self._case.enter("drain")
        own_part = OwnPart(self._cluster, "serve each log from its first offset to its end", needs_all=False)
        try:
            bootstrap = self._for_client(*self._cluster.brokers)
            ends = stable = self._cluster.end_offsets(self._topics)
            if self._in_transactions:
                stable = await_stable(bootstrap, ends, OPEN_TRANSACTION_S)
                self._pipeline.drain(bootstrap, ends, isolation="read_committed")
            self._pipeline.drain(bootstrap, ends)
        except PipelineError as error:
            check_jvm()
            raise own_part.unserved(str(error)) from error
        self._case.enter("judge")
        verdict = self._judged_by_sessions(judge(self._spark.session, self._case.run_dir))
        check_jvm()
        write_verdict(self._case.run_dir, verdict)
        if verdict.verdict != "valid":
            self._explain()
        self._case.journal.write("judged", verdict=verdict.verdict, reasons=list(verdict.reasons))
        self._case.verdict, self._case.shortfalls = verdict, self._shortfalls()
        self._case.enter("teardown")
        if found := self._seen_by_clients():
            broken = verdict.reasons if verdict.verdict == "invalid" else ()
            raise PromiseBroken("; ".join([*found, *broken]))
        held_back = [f"{t}-{p} at {stable[t, p]} of {end}" for (t, p), end in ends.items() if stable[t, p] < end]
        if held_back:
            raise PromiseBroken(
                f"a transaction is still open {OPEN_TRANSACTION_S:.0f} s after healing, and holds read_committed "
                f"readers back: {', '.join(held_back)}"
            )
        return verdict

    def _seen_by_clients(self) -> list[str]:
        """Return a sentence for each promise that the judge does not look at and that clients saw broken."""
        events, run_dir = self._case.journal.events, self._case.run_dir
        self.refused = refused_records(run_dir)
        refused = [str(each) for error, each in self.refused.items() if error not in self._known_errors]
        return [*premature(events, run_dir), *lost_positions(events), *refused]

    def _judged_by_sessions(self, verdict: Verdict) -> Verdict:
        """Judge again with the producer session of each batch, if this may change the verdict.

        It may if records are duplicated and a broker logged the error after which librdkafka takes a new epoch by
        itself. librdkafka also does so when records time out or are refused for good, but that may be the broker's
        fault.
        """
        if all(anomaly.kind != "duplicated" for anomaly in verdict.anomalies):
            return verdict
        if not any(broker.log.first(_OVERTAKEN) for broker in self._cluster.brokers):
            return verdict
        try:
            self._case.record(producer_sessions=self._sessions())
            again = judge(self._spark.session, self._case.run_dir)
            if again.verdict != "unknown":
                return again
            why = "; ".join(again.reasons)
        except Exception as error:  # the first verdict stands
            why = f"{type(error).__name__}: {error}"
        self._case.record(producer_sessions=None)
        self._case.journal.write("sessions.unread", error=why)
        return verdict

    def _sessions(self) -> dict[str, dict[str, list[Session]]]:
        """Return the sessions by topic and partition, read from the leaders' segments."""
        return {
            topic.name: {
                str(partition.index): read_sessions(
                    self._cluster.distribution,
                    partition.log_dir_on(partition.leader()).replica_dir(topic.name, partition.index),
                )
                for partition in topic.partitions
            }
            for topic in self._topics
        }

    def _explain(self) -> None:
        """Explain the worst records of the verdict while their segments still exist."""
        try:
            explain_verdict(self._case.run_dir, lambda: self._cluster.distribution)
        except Exception as error:  # the verdict stands without an explanation
            self._case.journal.write("explain.failed", error=f"{type(error).__name__}: {error}")

    def _shortfalls(self) -> list[str]:
        """Return the reasons why the case has shown nothing, whatever the judge decides, a sentence each."""
        events = self._case.journal.events
        found = shortfalls(measure_faults(events, self._case.run_dir), self._floors)
        return found + [
            f"consumer {event.consumer} never caught up: it stopped before the last acked record"
            for event in self._case.journal.of(ConsumerBehind)
        ]

    def counts(self) -> Mapping[str, int]:
        """Return how many records the running pair has acked and read, and its restarts, for a progress line."""
        if self._pair is None:
            return {}
        progress = self._pair.progress
        return {"acked": progress.acked, "read": progress.read, "restarts": progress.restarts}

    def close(self) -> None:
        """End all tasks."""
        self._pipeline.close()
