"""A selector names cases; the error for one that names none suggests similar ones."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.runner.selection import Selection, names_of

CASES = [
    "kip-112/leader-at-runtime[kraft-chmod_000]",
    "kip-112/leader-at-runtime[zk-chmod_000]",
    "kip-112/follower-at-runtime[zk-chmod_000]",
    "kafkatest-parity/disk[zk-leader]",
]


def chosen(*selectors: str, mode: str = "") -> list[str]:
    """The ids of the chosen cases; node ids are made from them."""
    return Selection(selectors).among(
        CASES, lambda id: names_of(id, f"suites/{id.replace('/', '.py::')}"), lambda id: mode in id
    )


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        (["kip-112"], [0, 1, 2]),
        (["kip-18"], [0, 1, 2]),
        (["kip-112/leader-at-runtime"], [0, 1]),
        (["kip-112/leader-at-runtime[zk-chmod_000]"], [1]),
        (["kafkatest-parity", "kip-112/follower-at-runtime"], [2, 3]),
        (["suites/kip-112.py"], [0, 1, 2]),
        (["suites"], [0, 1, 2, 3]),
        (["suites/"], [0, 1, 2, 3]),
        (["suites/kip-112.py::leader-at-runtime", "kafkatest-parity"], [0, 1, 3]),
        (["suites/kip-112.py::leader-at-runtime[zk-chmod_000]"], [1]),
    ],
)
def test_what_a_selector_names(selectors: list[str], expected: list[int]) -> None:
    assert chosen(*selectors) == [CASES[index] for index in expected]


@pytest.mark.parametrize("selector", ["kip-11", "kip-112/leader", "leader-at-runtime", "", "kip-112/*"])
def test_one_that_names_nothing_is_an_error_even_beside_one_that_does(selector: str) -> None:
    with pytest.raises(UsageError, match="unknown selector"):
        chosen("kip-112", selector)


def test_a_near_miss_is_reported() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'kip-112/leader-at-runtime'\?"):
        chosen("kip-112/leader-at-runtim")


def test_a_selector_outside_this_run_is_not_dropped_silently() -> None:
    with pytest.raises(UsageError, match=r"'kafkatest-parity' has no case in the modes of this run"):
        chosen("kip-112", "kafkatest-parity", mode="kraft")
    assert chosen("kafkatest-parity", mode="kraft") == []
