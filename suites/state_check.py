"""The check that all sources agree with the model of where everything is.

After each step :meth:`World.check` compares every source (:mod:`suites.observations`) with it: processes, each broker's
metadata, log dirs and MBeans, folders on disk, and when these agree kafka-topics and kafka-log-dirs; where a scenario
asks for it, more of Kafka's own programs. A disagreement names its source and both values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from harness import timeouts
from harness.errors import Inconclusive, JbodError, PromiseBroken, ToolFailed
from harness.events import PartitionChanged
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.expected_state import Led, Model
from suites.observations import AT_EACH_AGREEMENT, AT_EACH_STEP, LED_OTHERWISE, OF_ONE_MODE, TOPICS_TOOLS, Source
from suites.session_loss import lost_session


class Unheld(Inconclusive):
    """Moves that were to be held got to their end, as their broker started before it knew the throttle."""

    def __init__(self, moves: Sequence[str], seen: Sequence[str]) -> None:
        super().__init__(f"the move of {', '.join(moves)} got to its end before its broker knew the throttle; {seen}")


class World(Model):
    """The model of a cluster, and whether the cluster is as it says."""

    def recovered(self) -> None:
        """Everything is healed and every broker started: all replicas are back where they belong and in the ISR; who
        leads is taken from Kafka, which may have chosen among several.

        :raises PromiseBroken: the cluster does not become healthy, or is then not so
        """
        self.cluster.await_healthy(failure=PromiseBroken)
        self.failed.clear()
        self.dead.clear()
        self.started_wounded.clear()
        self.leader_epochs.clear()
        self._led.clear()
        leaders = {(state.topic, state.partition): state.leader for state in self.cluster.describe().partitions}
        for key, was in self.partitions.items():
            whole = frozenset(was.replicas)
            self._expect(key, replace(was, leader=leaders.get(key), isr=whole, offline=frozenset()))
        self.check(timeouts.RECOVERY_S)

    def check(self, timeout_s: float = timeouts.LOG_DIR_FAILURE_S, *, also: Sequence[Source] = ()) -> None:
        """Wait until all sources agree with the model.

        :param also: sources beside those that are asked at each step, such as :func:`suites.observations.metadata_log`
        :raises PromiseBroken: they don't, with every disagreement last seen; or a broker ended by itself, other than
            by SIGKILL (the kernel out of memory, which is the machine's affair: NodeDied)
        :raises Inconclusive: no broker is left to ask; or all that differs is who leads, or in which leader epoch, and
            a broker that nothing was done to had lost its session
        :raises Unheld: all that differs are moves that were held over a restart; from here on they count as done
        """
        if len(self.dead) == len(self.cluster.brokers):
            raise Inconclusive("no broker is left that could be asked for the state of the cluster")
        also = (*self._tools(), *also)
        await_until(
            lambda: self._note_unheld(self.disagreements(also)) or self._note_leader_epochs(),
            lambda found: not found,
            timeout_s=timeout_s,
            what="the cluster to be as the KIP promises",
            retry_on=(NoAnswer, ToolFailed),
            watch=partial(self.cluster.check_nodes, promised=True),
            failure=self._broken,
        )
        self._check_led_on()
        mode = self.cluster.spec.mode
        self.cluster.journal.write(
            "state.validated",
            expected={f"{t}-{p}": str(e) for (t, p), e in self.partitions.items()},
            leader_epochs={f"{t}-{p}": epoch for (t, p), epoch in self.leader_epochs.items()},
            sources=[s.__name__ for s in (*AT_EACH_STEP, *also) if OF_ONE_MODE.get(s, mode) is mode],
        )

    def _tools(self) -> Sequence[Source]:
        """Those of Kafka's own programs that are asked at each step."""
        if self.slow:  # they would wait for it, and say nothing of those that answer
            return ()
        knows = self.cluster.distribution.version.describes_topics_by_bootstrap
        return [tool for tool in AT_EACH_AGREEMENT if knows or tool not in TOPICS_TOOLS]

    def _broken(self, seen: str) -> JbodError:
        """What it means that a source does not come to agree, with what the others say by now."""
        with suppress(NoAnswer):
            found = self.all_disagreements()
            if more := [difference for difference in found if difference not in seen]:
                seen = f"{seen}; besides: {'; '.join(more)}"
            led_otherwise = found and all(map(LED_OTHERWISE.search, found))
            if led_otherwise and (starved := lost_session(self.cluster, but=self._hit)):
                return Inconclusive(f"this machine is too slow: {starved}; {seen}")
        return PromiseBroken(seen)

    def _check_led_on(self) -> None:
        """Where the leader was to stay, the cluster's watcher saw nobody else lead since all sources last agreed.

        What it heard late of the time before that is of an older leader epoch.

        :raises PromiseBroken: it did
        :raises Inconclusive: it did, and a broker that nothing was done to had lost its session
        :raises HarnessError: it watches no more
        """
        self.cluster.check_watched()
        for event in self.cluster.journal.of(PartitionChanged):
            led = self._led.get(event.key)
            if led is None or event.leader == led.leader or event.leader_epoch <= led.epoch:
                continue
            if event.at > led.at:
                told = (
                    f"broker {led.leader} should lead {event.topic}-{event.partition} all the while; at "
                    f"{event.at.isoformat()} broker {event.seen_by} saw it led by {event.leader or 'nobody'}"
                )
                hit = self.dead | {id for id, at in self._hit.items() if at >= led.at}
                if starved := lost_session(self.cluster, but=hit, since=led.at):
                    raise Inconclusive(f"this machine is too slow: {starved}; {told}")
                raise PromiseBroken(told)
        self._led = dict(self._agreed)

    def _note_unheld(self, found: list[str]) -> list[str]:
        """Whether all is as it should be but for moves that were held, and got to their end as their broker started.

        In KRaft a broker goes on with a move as it is told of its partitions, and is told its throttles after that
        (``BrokerMetadataPublisher.onMetadataUpdate``): for some 50 ms, or 500 where the machine has much to do.

        :raises Unheld: it is so; the model takes them for done from here on
        """
        ended = {key: self._copies[key] for key in self._unheld & self._copies.keys()} if found else {}
        if ended:
            before = self._places, self._copies
            self._places = self._places | ended
            self._copies = {key: place for key, place in self._copies.items() if key not in ended}
            try:
                differ = bool(self.all_disagreements())
            except NoAnswer:
                differ = True
            if not differ:
                raise Unheld([f"{topic}-{partition} into {to}" for (topic, partition, _), to in ended.items()], found)
            self._places, self._copies = before
        return found

    def _note_leader_epochs(self) -> list[str]:
        """All is as it should be: from here on each partition that is led keeps its leader epoch until it is touched.

        Returns those of which brokers see different ones, so that one has yet to be told.
        """
        at, self._agreed = now(), {}
        seen = [told for _, told in self.told_by_each(lambda broker: broker.describe_cluster())]
        differ = []
        for key, expected in self.partitions.items():
            epochs = {cluster[key].leader_epoch for cluster in seen}
            if len(epochs) > 1:
                differ.append(f"brokers see {key[0]}-{key[1]} in the leader epochs {sorted(epochs)}")
            elif expected.leader is not None:
                epoch = epochs.pop()
                self.leader_epochs.setdefault(key, epoch)
                self._agreed[key] = Led(leader=expected.leader, epoch=epoch, at=at)
        return differ

    def all_disagreements(self) -> list[str]:
        """Every difference between the model and a source that is asked at each step, now."""
        return [difference for source in AT_EACH_STEP for difference in source(self)]

    def disagreements(self, also: Sequence[Source] = ()) -> list[str]:
        """Those with the first source that has any; the dear ones are asked where all others agree.

        While one disagrees, the answers of the others would cost the time that all are waiting for.
        """
        found: Iterable[list[str]] = (list(source(self)) for source in (*AT_EACH_STEP, *also))
        return next(filter(None, found), [])
