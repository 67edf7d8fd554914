"""The transactional producer: the producer task with its records in transactions, some of them aborted on purpose.

A transaction's name, ``p0-t17``, is used once in the run; its rows are held back until its end is known, and are
written in one part: all or none. How it ended is said with the same care as a record's outcome:

* ``committed``: ``commit_transaction`` returned;
* ``aborted``: nobody ever asked for a commit. Then no client and no coordinator can commit it, so this holds whether
  or not the abort itself got through;
* ``indeterminate``: a commit was asked for and did not return well. A later abort proves nothing, though it succeeds:
  librdkafka may carry it out by a new producer epoch (InitProducerId), which a coordinator that has committed accepts
  as well.

One transaction follows the other on one client, as an application does it (consume-transform-produce loops, Kafka
Streams); several at once would be several producers. A client is given up when it has met a fatal error, or does not
end its transaction within :data:`RESOLVE_S`; its successor has the same ``transactional.id``, so ``init_transactions``
fences it and has what it left open ended by the coordinator. Only then is the next transaction begun.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from harness.history import record_format
from harness.history.part_writer import HAND_OVER_S
from harness.spark.control import DriverLink, TaskEndpoint
from harness.spark.run_once import claim
from harness.workload.producer import (
    ABORT_FLUSH_S,
    PRODUCER_CONFIG,
    PURGE_S,
    Pace,
    ProducerSpec,
    Producing,
    Settled,
    TransactionOutcome,
    Transactions,
)

TRANSACTION_CONFIG: Mapping[str, str | int | float | bool] = {
    # How long a transaction that its producer forgot holds read_committed readers back; also how long a coordinator
    # waits for its own log (TransactionStateManager.appendTransactionToLog): 60 s by default.
    "transaction.timeout.ms": 10000,
    # A record must not outlive its transaction; the client insists.
    "message.timeout.ms": 10000,
    # A coordinator whose log dir fails may never answer; the request is sent again, to the next one, after this.
    "socket.timeout.ms": 3000,
}
"""The client's settings over :data:`harness.workload.producer.PRODUCER_CONFIG`; a scenario's own win."""

RESOLVE_S = 15.0
"""A commit or an abort that the client calls retriable is tried again for so long, then the client is replaced. A
coordinator answers within ``transaction.timeout.ms``, if at all."""
_LEAVE_S = 20.0
_STEP_S = 0.5
_PAUSE_S = 0.05
_REMEMBERED = 100
NO_REPORT = "_NO_REPORT"


def produce_in_transactions(spec: ProducerSpec, invitation: TaskEndpoint, _: Iterable[Any]) -> Iterator[str]:
    """The Spark task, as :func:`harness.workload.producer.produce`."""
    claim(spec.run_dir, spec.producer)
    link = DriverLink(invitation)
    try:
        TransactionalProducing(spec, link).run()
    finally:
        link.close()
    yield spec.producer


class TransactionalProducing(Producing):
    """The task's work."""

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
        """Send until told to stop; on return every record sent has its row on disk."""
        pace = Pace(self._spec.rate_per_s)
        while not self._told_to_end():
            if not self._ready:
                self._initialise()
            elif self._begin():
                self._fill(pace)
                self._end()
        if not self._ready and not self._aborted():
            self._initialise(within_s=_LEAVE_S)  # leave no transaction open
        self._hand_over()
        self._recorder.close()
        replace(self._reservation, below=self._seq, settled=True).write(self._spec.run_dir)

    def _config(self) -> Mapping[str, Any]:
        own = {"transactional.id": f"jbod-{self._spec.run_token}-{self._spec.producer}"}
        return {**PRODUCER_CONFIG, **TRANSACTION_CONFIG, **self._spec.config, **own}

    def _told_to_end(self) -> bool:
        return self._link.command is not None or self._link.driver_gone.is_set()

    # --- the life of a client ---------------------------------------------------------------------------------------

    def _initialise(self, within_s: float | None = None) -> None:
        """Try for a client that may begin a transaction: one step, or several until ``within_s`` is over."""
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
            if time.monotonic() >= ends_at or self._aborted():
                return

    def _give_up(self) -> None:
        """This client ends no more transactions; what it still had under way is reported."""
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

    def _reserve(self, below: int, transactions: list[tuple[int, str]]) -> None:
        self._reservation = replace(self._reservation, below=below, transactions=transactions).write(self._spec.run_dir)

    def _fill(self, pace: Pace) -> None:
        """Send its records, unless one meets an error before."""
        end = self._first + self._grouping.records
        while self._seq < end and not self._told_to_end() and not self._broken():
            pace.sent(self._send(min(pace.due(), end - self._seq)))
            self._poll(pace.rest_s())
            self._report()

    def _end(self) -> None:
        """Commit or abort it and hand over its rows."""
        if self._seq < self._reservation.below:  # cut short: whoever settles must not add to it
            self._reserve(self._seq, [*self._reservation.transactions])
        self._deliver()
        whole = not self._broken() and not len(self._client)
        if whole and not self._aborted() and not self._grouping.aborts(self._spec.producer, self._number - 1):
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
            if self._aborted():
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
        """Call until it returns; None, or the error that is not retriable or that time ran out on."""
        ends_at = time.monotonic() + RESOLVE_S
        while True:
            try:
                end(_STEP_S)
                return None
            except KafkaException as error:
                reason = self._note(error)
            if not reason.retriable() or time.monotonic() >= ends_at or self._aborted():
                return reason
            self._poll(_PAUSE_S)
            self._report()

    def _broken(self) -> bool:
        """Whether a record, or the client, has met an error: the transaction can only be aborted."""
        return bool(self._settled.errors) or self._fatal is not None

    # --- telling ----------------------------------------------------------------------------------------------------

    def _note(self, error: KafkaException) -> KafkaError:
        reason: KafkaError = error.args[0]
        self._hear(reason)
        return reason

    def _settle(self, seq: int, sent_at: int, crc32: int, error: KafkaError | None, message: Message) -> None:
        if seq >= self._first:  # a report of a transaction that is over has its row
            super()._settle(seq, sent_at, crc32, error, message)

    def _report(self) -> None:
        """Publish where things stand, with no rows."""
        if time.monotonic() - self._reported_at >= HAND_OVER_S:
            self._reported_at = time.monotonic()
            self._recorder.add(Settled(next_seq=self._seq, in_flight=len(self._client)))
