"""Compares one observation with what is expected of the build.

On a build, a deviation is confirmed, open or not expected (:class:`harness.runner.deviation.Expectation`). A check
passes what it saw to :func:`observe`. A check that must choose a value to wait for asks :func:`expects` first.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.runner.deviation import Deviation, Expectation


def expectation_of(deviation: Deviation, cluster: Cluster, on: Broker | None = None) -> Expectation:
    """What is expected in the cluster's mode.

    :param on: of this broker's build; None: of the cluster's build, which is the oldest one during an upgrade
    """
    build = cluster.distribution if on is None else on.build
    return deviation.expectation(build.version, cluster.spec.mode)


def expects(deviation: Deviation, cluster: Cluster, look: Callable[[], bool], on: Broker | None = None) -> bool:
    """Whether to expect the deviation and not what the KIP promises.

    :param look: whether the build deviates; called only where the expectation is open
    :param on: see :func:`expectation_of`
    """
    expected = expectation_of(deviation, cluster, on)
    return look() if expected is Expectation.OPEN else expected is Expectation.CONFIRMED


def observe(
    deviation: Deviation,
    cluster: Cluster,
    *,
    deviates: bool,
    seen: object = "the promise is kept",
    broken: PromiseBroken | None = None,
    on: Broker | None = None,
) -> bool:
    """Compare one observation with what is expected of the build, and write it to the journal; returns ``deviates``.

    The journal gets ``deviation.seen``, or ``deviation.mended`` where the expectation is open and the promise is kept.
    If a case declares a deviation and has neither event of it, the case is unknown.

    :param deviates: the build showed exactly the deviation; False: it kept the promise
    :param seen: what the build did
    :param broken: the error to raise where the promise should have been kept
    :param on: see :func:`expectation_of`
    :raises PromiseBroken: the build deviates and is not known for it; or it is confirmed to deviate and does not
    """
    expected = expectation_of(deviation, cluster, on)
    if deviates and expected is Expectation.NONE:
        raise broken or PromiseBroken(f"{deviation.promised}; seen: {seen}")
    if not deviates and expected is Expectation.CONFIRMED:
        raise PromiseBroken(f"{deviation.gone}; seen: {seen}")
    if expected is not Expectation.NONE:
        kind = "deviation.seen" if deviates else "deviation.mended"
        cluster.journal.write(kind, **deviation.to_json(), seen=str(seen))
    return deviates
