"""The transactional producer: a producer task that sends its records in transactions and aborts some on purpose.

The name of a transaction, such as ``p0-t17``, is used once in a run. Its rows wait until its outcome is known, and go
into one part: all or none. The outcome is

* ``committed`` if ``commit_transaction`` returned;
* ``aborted`` if the producer never asked for a commit. Then no client and no coordinator can commit it, whether or not
  the abort got through;
* ``indeterminate`` if the producer asked for a commit, and the call did not succeed. A later abort that succeeds proves
  nothing: librdkafka may abort by a new producer epoch (InitProducerId), which a coordinator also accepts after a
  commit.

One client runs one transaction after the other, as applications do (consume-transform-produce loops, Kafka Streams).
The task replaces a client that met a fatal error, or that did not end its transaction within :data:`RESOLVE_S`. The new
client has the same ``transactional.id``. So its ``init_transactions`` fences the old client, and the coordinator ends
the open transaction before the next one begins.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, Message

from harness.history import record_format
from harness.history.part_writer import HAND_OVER_S
from harness.history.record_outcome import NO_REPORT
from harness.spark.control import DriverLink, TaskEndpoint
from harness.spark.tasks import claimed
from harness.workload.client_config import PRODUCER_CONFIG, TRANSACTION_CONFIG, ClientConfig
from harness.workload.producer import (
    ABORT_FLUSH_S,
    PURGE_S,
    Pace,
    ProducerSpec,
    Producing,
    Settled,
    TransactionOutcome,
    Transactions,
)

RESOLVE_S = 15.0
"""How long a commit or an abort with a retriable error is tried again, before the client is replaced. A coordinator
answers within ``transaction.timeout.ms``, if at all."""
_LEAVE_S = 20.0
_STEP_S = 0.5
_PAUSE_S = 0.05
_REMEMBERED = 100


def produce_in_transactions(spec: ProducerSpec, endpoint: TaskEndpoint, _: Iterable[object]) -> Iterator[str]:
    """The Spark task of a transactional producer; ends as :func:`harness.workload.producer.produce` does."""
    with claimed(spec.run_dir, spec.producer, endpoint) as link:
        TransactionalProducing(spec, link).run()
    yield spec.producer


class TransactionalProducing(Producing):
    """The producer in its task, with transactions."""

    def __init__(self, spec: ProducerSpec, link: DriverLink) -> None:
        assert spec.transactions is not None
        self._grouping: Transactions = spec.transactions
        self._number = 0
        self._name = ""
        self._first = 0
        self._ready = False
        self._given_up = False
        self._reported_at = 0.0
        super().__init__(spec, link)

    def run(self) -> None:
        """Send until a command comes; on return every record sent has its row on disk."""
        pace = Pace(self._spec.rate_per_s)
        while not self._link.told_to_end:
            if not self._ready:
                self._initialise()
            elif self._begin():
                self._fill(pace)
                self._end()
        if not self._ready and not self._link.aborted:
            self._initialise(within_s=_LEAVE_S)  # leave no transaction open
        self._hand_over()
        self._recorder.close()
        replace(self._reservation, below=self._seq, settled=True).write(self._spec.run_dir)

    def _config(self) -> ClientConfig:
        own = {"transactional.id": f"jbod-{self._spec.run_token}-{self._spec.producer}"}
        return {**PRODUCER_CONFIG, **TRANSACTION_CONFIG, **self._spec.config, **own}

    # --- the life of a client ---------------------------------------------------------------------------------------

    def _initialise(self, within_s: float | None = None) -> None:
        """Try to make a client ready for transactions: once, or until ``within_s`` is over."""
        ends_at = time.monotonic() + (within_s or 0.0)
        while True:
            if self._given_up:
                self._client, self._fatal, self._given_up = self._new_client(), None, False
            try:
                self._client.init_transactions(_STEP_S)
                self._ready = True
                return
            except KafkaException as error:
                self._given_up = not self._note(error).retriable()
            self._poll(_PAUSE_S)
            self._report()
            if time.monotonic() >= ends_at or self._link.aborted:
                return

    def _give_up(self) -> None:
        """Mark the client for replacement; purge its records, to get their delivery reports."""
        self._ready, self._given_up = False, True
        self._client.purge()
        self._flush(PURGE_S)

    # --- the life of a transaction ----------------------------------------------------------------------------------

    def _begin(self) -> bool:
        self._name = f"{self._spec.producer}-t{self._number}"
        self._number += 1
        self._first = self._seq
        newest = [*self._reservation.transactions[-_REMEMBERED + 1 :], (self._first, self._name)]
        self._reserve(self._seq + self._grouping.records, newest)
        try:
            self._client.begin_transaction()
        except KafkaException as error:
            self._note(error)
            self._give_up()
            return False
        return True

    def _reserve(self, below: int, transactions: Sequence[tuple[int, str]]) -> None:
        self._reservation = replace(self._reservation, below=below, transactions=transactions).write(self._spec.run_dir)

    def _fill(self, pace: Pace) -> None:
        """Send the transaction's records until one of them meets an error."""
        end = self._first + self._grouping.records
        while self._seq < end and not self._link.told_to_end and not self._broken():
            pace.sent(self._send(min(pace.due(), end - self._seq)))
            self._poll(pace.rest_s())
            self._report()

    def _end(self) -> None:
        """Commit or abort the transaction, and hand over its rows."""
        if self._seq < self._reservation.below:  # it is shorter than was reserved
            self._reserve(self._seq, self._reservation.transactions)
        self._deliver()
        whole = not self._broken() and not len(self._client)
        if whole and not self._link.aborted and not self._grouping.aborts(self._spec.producer, self._number - 1):
            outcome = self._commit()
        else:
            outcome = "aborted"
            self._abort()
        if self._fatal is not None and self._ready:
            self._give_up()
        reported = set(self._settled.seqs)
        for seq in range(self._first, self._seq):
            if seq not in reported:
                crc32 = zlib.crc32(record_format.value_of(self._prefix, seq, self._padding))
                self._settle_as(seq, 0, crc32, "indeterminate", NO_REPORT)
        self._settled.transaction = (self._name, outcome)
        self._first = self._seq
        self._hand_over()

    def _deliver(self) -> None:
        ends_at = time.monotonic() + self._spec.flush_s
        while len(self._client) and not self._broken() and time.monotonic() < ends_at:
            self._flush(HAND_OVER_S)
            self._report()
            if self._link.aborted:
                ends_at = min(ends_at, time.monotonic() + ABORT_FLUSH_S)

    def _commit(self) -> TransactionOutcome:
        error = self._persist(self._client.commit_transaction)
        if error is None:
            return "committed"
        if error.txn_requires_abort():
            self._abort()
        else:
            self._give_up()
        return "indeterminate"

    def _abort(self) -> None:
        if self._fatal is not None or self._persist(self._client.abort_transaction) is not None:
            self._give_up()

    def _persist(self, end: Callable[[float], None]) -> KafkaError | None:
        """Call ``end`` until it succeeds; returns an error that is not retriable, or the last before the time-out."""
        ends_at = time.monotonic() + RESOLVE_S
        while True:
            try:
                end(_STEP_S)
                return None
            except KafkaException as error:
                reason = self._note(error)
            if not reason.retriable() or time.monotonic() >= ends_at or self._link.aborted:
                return reason
            self._poll(_PAUSE_S)
            self._report()

    def _broken(self) -> bool:
        """Whether a record or the client has met an error, so that the transaction can only be aborted."""
        return bool(self._settled.errors) or self._fatal is not None

    # --- reports ----------------------------------------------------------------------------------------------------

    def _note(self, error: KafkaException) -> KafkaError:
        reason: KafkaError = error.args[0]
        self._hear(reason)
        return reason

    def _settle(self, seq: int, sent_at: int, crc32: int, error: KafkaError | None, message: Message) -> None:
        if seq >= self._first:  # records of earlier transactions have their rows
            super()._settle(seq, sent_at, crc32, error, message)

    def _report(self) -> None:
        """Publish the progress, without rows."""
        if time.monotonic() - self._reported_at >= HAND_OVER_S:
            self._reported_at = time.monotonic()
            self._recorder.add(Settled(in_flight=len(self._client)))
