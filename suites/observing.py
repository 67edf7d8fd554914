"""Compares one observation with what is expected of the build.

On a build, a deviation is confirmed, open or not expected (:class:`harness.runner.deviation.Expectation`). A check
passes what it saw to :func:`observe`. A check that must choose a value to wait for asks :func:`expects` first.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.runner.deviation import Deviation, Expectation


def expectation_of(deviation: Deviation, cluster: Cluster) -> Expectation:
    """What is expected of the cluster's build, in its mode."""
    return deviation.expectation(cluster.distribution.version, cluster.spec.mode)


def expects(deviation: Deviation, cluster: Cluster, look: Callable[[], bool]) -> bool:
    """Whether to expect the deviation and not what the KIP promises.

    :param look: whether the build deviates; called only where the expectation is open
    """
    expected = expectation_of(deviation, cluster)
    return look() if expected is Expectation.OPEN else expected is Expectation.CONFIRMED


def observe(
    deviation: Deviation,
    cluster: Cluster,
    *,
    deviates: bool,
    seen: object = "the promise is kept",
    broken: PromiseBroken | None = None,
) -> bool:
    """Compare one observation with what is expected of the build, and write it to the journal; returns ``deviates``.

    The journal gets ``deviation.seen``, or ``deviation.mended`` where the expectation is open and the promise is kept.
    If a case declares a deviation and has neither event of it, the case is unknown.

    :param deviates: the build showed exactly the deviation; False: it kept the promise
    :param seen: what the build did
    :param broken: the error to raise where the promise should have been kept
    :raises PromiseBroken: the build deviates and is not known for it; or it is confirmed to deviate and does not
    """
    expected = expectation_of(deviation, cluster)
    if deviates and expected is Expectation.NONE:
        raise broken or PromiseBroken(f"{deviation.promised}; seen: {seen}")
    if not deviates and expected is Expectation.CONFIRMED:
        raise PromiseBroken(f"{deviation.gone}; seen: {seen}")
    if expected is not Expectation.NONE:
        kind = "deviation.seen" if deviates else "deviation.mended"
        cluster.journal.write(kind, **deviation.to_json(), seen=str(seen))
    return deviates
