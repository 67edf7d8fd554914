"""Gives a case its cluster, a reused or a new one. After the case the cluster is kept running, held, or stopped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from harness.cluster.cluster import Cluster, boot
from harness.cluster.metadata_log import journal_metadata_log
from harness.cluster.under_way import journal_under_way
from harness.events import Event, MetadataLogRead
from harness.kafka.builds import BuildOptions
from harness.kafka.security import ListenerSecurity
from harness.kafka.versions import Tool
from harness.measure.node_failures import beginning, node_failures
from harness.runner.case import Case
from harness.runner.holding import HoldsAmidFaults
from harness.runner.open_case import OpenCase
from harness.runner.run import Run
from harness.runner.subrun import arguments_of
from harness.waiting import waiting_longer


@contextmanager
def cluster_of(open_case: OpenCase, case: Case) -> Iterator[Cluster]:
    """Yield a healthy cluster of the case's spec.

    After the block the cluster is kept running (``--keep-cluster``), held for the next case, or stopped.

    :param case: the running case of ``open_case``
    """
    run, declared = open_case.run, open_case.declared
    spec, build, earlier = run.spec(declared), run.builds.of(declared.mode), run.earlier_build(declared)
    case.record_cluster(spec, build, earlier)
    if run.listener_security is not ListenerSecurity.PLAINTEXT:
        case.record(listener_security=run.listener_security)
    if run.holds:
        case.record(holds=[str(each) for each in run.holds])
    with waiting_longer(spec.delay_s):
        cluster = run.clusters.take(spec, case) or boot(
            spec,
            earlier or build,
            run_id=case.run_dir.name,
            record_dir=case.run_dir,
            journal=case.journal,
            outlives_harness=run.keep_cluster != "never",
        )
        goes_on = False
        try:
            with _listening(cluster, run, case):
                yield cluster
            goes_on = _goes_on(cluster, open_case, case)
        finally:
            if not goes_on:
                cluster.stop()


@contextmanager
def _listening(cluster: Cluster, run: Run, case: Case) -> Iterator[None]:
    """Inside the block, the holds and the pauses of the run follow the events of the case."""
    amid_faults = HoldsAmidFaults(run.holds)
    amid_faults.attach(cluster)
    if run.pause:
        run.pause.how_to_reach = partial(how_to_reach, cluster)

    def listen(event: Event) -> None:
        amid_faults(event)
        if run.pause:
            run.pause(event)

    case.journal.listener = listen
    try:
        yield
    finally:
        amid_faults.end()


def _goes_on(cluster: Cluster, open_case: OpenCase, case: Case) -> bool:
    """Whether the cluster runs on after the case: it is kept for the user, or held for the next case."""
    run = open_case.run
    case.journal.listener = None
    case.enter("teardown")
    cluster.journal_unexpected_ends()
    _note_known_failures(open_case, case)
    verdict, _ = open_case.conclude()
    is_settled = verdict != "valid" or journal_under_way(cluster, open_case.declared.scenario.leaves)
    is_regular = verdict == "skipped" or _judge_metadata_log(cluster, open_case, case)
    if not (is_settled and is_regular):
        verdict, _ = open_case.conclude()
    failed = open_case.log.came_to_an_end and verdict not in ("valid", "skipped")
    if run.keep_cluster == "always" or (run.keep_cluster == "on-failure" and failed):
        cluster.keep()
        case.kept = how_to_reach(cluster)
        return True
    return verdict == "valid" and run.clusters.leave(cluster, case)


def _note_known_failures(open_case: OpenCase, case: Case) -> None:
    """Note each known deviation, of those that any case may show, whose failures are in the nodes' logs."""
    declared = open_case.declared
    known = [each for each in open_case.run.expected_in_logs(declared) if each in declared.scenario.in_any_case]
    lines = [line for failure in node_failures(case.journal.events, case.run_dir) for line in failure.lines]
    for deviation in known:
        if deviation.failures and (seen := [line for line in lines if re.search(deviation.failures, line.text)]):
            case.journal.write("deviation.seen", **deviation.to_json(), seen=beginning(seen[0]))


def _judge_metadata_log(cluster: Cluster, open_case: OpenCase, case: Case) -> bool:
    """Write what is irregular in the metadata log into the journal, and note each known deviation that it shows.

    :returns: whether nothing is irregular, known or not
    """
    known = {each.metadata: each for each in open_case.run.expected_in_logs(open_case.declared) if each.metadata}
    shown = journal_metadata_log(cluster, known)
    for pattern, seen in shown.items():
        case.journal.write("deviation.seen", **known[pattern].to_json(), seen=seen)
    return not shown and not any(event.irregular for event in case.journal.of(MetadataLogRead))


def how_to_reach(cluster: Cluster) -> list[str]:
    """Return lines with the brokers and log dirs of a kept cluster, and the commands to inspect it and to stop it."""
    build = shlex.join(arguments_of(vars(BuildOptions.of(cluster.distribution))))
    topics, log_dirs = (shlex.join(cluster.brokers[0].bootstrap.of_tool(tool)) for tool in (Tool.TOPICS, Tool.LOG_DIRS))
    return [
        f"Kafka {cluster.distribution.version}, {cluster.spec.mode}, bootstrap {cluster.bootstrap}",
        *(
            f"  {broker}: {broker.bootstrap} {' '.join(str(d.path) for d in broker.log_dirs)}"
            for broker in cluster.brokers
        ),
        f"inspect it:   jbod tool {build} topics {topics} --describe",
        f"its log dirs: jbod tool {build} log-dirs {log_dirs} --describe",
        f"take it down: jbod cluster down {cluster.undo_log.run_id}",
    ]
