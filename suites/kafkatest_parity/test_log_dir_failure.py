"""Shows what Kafka's own disk test shows, case for case: ``tests/kafkatest/tests/core/log_dir_failure_test.py``.

The log dir of a leader or a follower fails by ``chmod a-w``, with or without a restart, in both metadata modes. The
four claims are those of kafkatest: the broker is not the leader, is not in the ISR, is still online, and records get
through. The second half of kafkatest's test, on the other topic, is here, too. Beyond kafkatest, the fault is
proven, all sources are compared with the expected state, and the judge looks for more than missing records.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faults.log_dir import ChmodNoWrite
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import Inconclusive
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_noticed
from suites.deviations import UNWRITABLE_ENDS_START
from suites.followers_behind import injected_ahead
from suites.scenario import each_role, scenario
from suites.state_check import StateCheck
from suites.steps import UNWRITABLE, check_serves_alone, ends_as_known


@scenario(
    "kafkatest-parity/replication-with-disk-failure",
    kip=112,
    plan="kafkatest: log_dir_failure_test.py",
    deviations=(UNWRITABLE_ENDS_START,),
)
@pytest.mark.parametrize("bounce", [False, True], ids=["stay", "bounce"])
@each_role
def test_replication_with_disk_failure(
    cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker], bounce: bool
) -> None:
    """A broker's second log dir fails: the broker is neither leader nor in the ISR there, and serves its first one.

    Restarted brokers of builds with :data:`UNWRITABLE_ENDS_START` end; the others then serve on.
    """
    topic_1 = cluster.create_topic("test_topic_1", configs={"min.insync.replicas": "1"})
    topic_2 = cluster.create_topic("test_topic_2", configs={"min.insync.replicas": "2"})
    state = StateCheck(cluster, topic_1, topic_2)
    victim = role(topic_2[0])
    first, second = victim.log_dirs
    if (topic_1[0].log_dir_on(victim), topic_2[0].log_dir_on(victim)) != (first, second):
        raise Inconclusive(f"{topic_1} and {topic_2} are not on the first and the second log dir of {victim}")
    ended = False
    with workload.running(topic_2) as pair, injected_ahead(topic_2, ChmodNoWrite(second)) as fault:
        if bounce:
            victim.restart()
            state.broker_gone(victim)
            ended = ends_as_known(cluster, victim, UNWRITABLE_ENDS_START, saying=UNWRITABLE)
            if not ended:
                state.broker_back(victim)
        state.log_dir_failed(second)
        state.check()
        if not ended:
            check_noticed(fault)
        pair.await_progress(after=now())
        pair.stop()
        if not ended:
            check_serves_alone(cluster, workload, state, victim, topic_1)
    victim.restart()
    state.recovered()
    check_delivery(workload)
