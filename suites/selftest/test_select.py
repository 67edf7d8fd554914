"""Selectors name cases, and one that names none says what was meant."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.select import Selection

CASES = {
    id: id
    for id in (
        "kip-112/leader-at-runtime[kraft-chmod_000]",
        "kip-112/leader-at-runtime[zk-chmod_000]",
        "kip-112/follower-at-runtime[zk-chmod_000]",
        "kafkatest-parity/disk[zk-leader]",
    )
}


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        (["kip-112"], [0, 1, 2]),
        (["kip-112/leader-at-runtime"], [0, 1]),
        (["kip-112/leader-at-runtime[zk-chmod_000]"], [1]),
        (["kafkatest-parity", "kip-112/follower-at-runtime"], [2, 3]),
    ],
)
def test_what_a_selector_names(selectors: list[str], expected: list[int]) -> None:
    assert Selection(selectors).among(CASES) == [list(CASES)[index] for index in expected]


@pytest.mark.parametrize("selector", ["kip-11", "kip-112/leader", "leader-at-runtime", "", "kip-112/*"])
def test_one_that_names_nothing_is_an_error_even_beside_one_that_does(selector: str) -> None:
    with pytest.raises(UsageError, match="unknown selector"):
        Selection(["kip-112", selector]).among(CASES)


def test_a_near_miss_is_told() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'kip-112/leader-at-runtime'\?"):
        Selection(["kip-112/leader-at-runtim"]).among(CASES)
