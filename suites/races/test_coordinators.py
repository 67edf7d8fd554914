"""Holds a new group coordinator before it becomes active."""

from __future__ import annotations

from contextlib import ExitStack

from faults.base import injected
from faults.held import Held
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.errors import Inconclusive
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode, VersionRange
from harness.waiting import await_until
from suites.checks import check_refused, promised
from suites.deviations import OFFSET_SHOWN_LATE
from suites.group_offsets import MemberlessGroup
from suites.leadership import elect, lead
from suites.scenario import scenario


@scenario(
    "races/offset-shown-late",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: another group coordinator takes over",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=4.0.0"),
    judged=False,
    deviations=(OFFSET_SHOWN_LATE,),
    holds=True,
)
def test_offset_shown_late(cluster: Cluster) -> None:
    """A new coordinator is slow to become active, and its high watermark rises meanwhile: it has the last offset."""
    offsets = cluster.create_topic("__consumer_offsets", configs={"cleanup.policy": "compact"})
    orders = cluster.create_topic("orders")
    group = MemberlessGroup("idle", offsets[0], orders[0])
    old, new = leader_of(offsets[0]), follower_of(offsets[0])
    lead(orders[0], old)  # so that the fetcher thread that is held does not have to end
    group.commit(1)
    # The first answer has the record; the second one says that all replicas have it.
    learns = Held(
        cluster,
        new,
        "fetch-answered",
        about="__consumer_offsets",
        of_thread=f"ReplicaFetcherThread-0-{old.id}",
        skip=1,
        by=lambda: group.commit(2),
    )
    with injected(learns):
        end = old.admin.end_offset("__consumer_offsets", 0)
        [other] = cluster.others(old, new)
        # The high watermark of the new leader does not rise before this follower fetches.
        fetches = Held(
            cluster,
            other,
            "follower-fetches",
            of_thread=f"ReplicaFetcherThread-0-{new.id}",
            by=lambda: elect(offsets[0], new),
        )
        active = Held(
            cluster, new, "coordinator-becomes-active", about="__consumer_offsets-0 ACTIVE", by=fetches.inject
        )
        with ExitStack() as fetching:
            fetching.callback(fetches.undo)
            with injected(active):
                check_refused(lambda: new.admin.end_offset("__consumer_offsets", 0), "OFFSET_NOT_AVAILABLE", "")
                learns.undo()
                fetching.close()
                await_until(
                    lambda: new.admin.end_offset("__consumer_offsets", 0),
                    lambda offset: offset == end,
                    timeout_s=timeouts.REQUEST_S,
                    what=f"the high watermark of {offsets[0]} on {new} to be {end}",
                    retry_on=(NoAnswer, Refused),  # OFFSET_NOT_AVAILABLE, while the new leader's is behind
                    failure=Inconclusive,
                )
    shows_old = r"whose commit was acknowledged; last seen: \[1\]$"
    with promised(cluster, unless=OFFSET_SHOWN_LATE, seen=shows_old) as outcome:
        group.check_kept()
    if outcome.deviates:  # until the next write to its log
        MemberlessGroup("other", offsets[0], orders[0]).commit(1)
        group.check_kept()
