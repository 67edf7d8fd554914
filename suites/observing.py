"""One observation, held against what is expected of a build: the three-way logic of known deviations, written once.

On a build a deviation is confirmed, open or none (:class:`harness.runner.deviation.Expectation`). A check that sees a
value hands it to :func:`observe`; one that must choose a value to wait for asks :func:`expects` first.
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
    """Whether to expect what is known of builds that deviate, and not what the KIP promises.

    :param look: whether the build deviates; asked only where it may do either
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
    """Hold one observation against what is expected of the build, and write it down; returns ``deviates``.

    The journal has ``deviation.seen`` or, where a build that may do either keeps the promise, ``deviation.mended``:
    what a case declares counts only if it has one of them.

    :param deviates: the build did exactly what the deviation says; else it kept the promise
    :param seen: what it did
    :param broken: the error of a promise that was to be kept
    :raises PromiseBroken: the build deviates and is not known for it, or it is confirmed to deviate and does not
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
