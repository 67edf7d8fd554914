"""The probe's list of dependencies is complete: each text, request and MBean that the code uses has a row."""

from __future__ import annotations

import re

import pytest

from suites.probe.dependencies import DEPENDENCIES
from suites.probe.dependency import Dependency
from suites.selftest.dependencies_used import Unreadable, Used, used

_ASKED_APART = {"broker", "zookeeper"}
"""Programs that are not tools; the dependency "start" covers them."""


def of_kinds(*kinds: str) -> list[Dependency]:
    return [dependency for dependency in DEPENDENCIES if dependency.kind in kinds]


def is_listed(each: Used) -> bool:
    """Whether a dependency has this text, as a word or in its name."""
    words = {word for dependency in DEPENDENCIES for word in dependency.words}
    match each.kind:
        case "request":
            return any(dependency.what.startswith(f"{each.name} v") for dependency in of_kinds("request"))
        case "mbean":
            return each.name in {dependency.what for dependency in of_kinds("mbean")}
        case "tool":
            named = any(f"kafka-{each.name}" in dependency.what for dependency in DEPENDENCIES)
            return named or each.name in _ASKED_APART or each.name == "verifiable-consumer"
        case "option" | "file":
            return each.name in words or any(
                each.name in re.split("[ ,;]+", dependency.what) for dependency in DEPENDENCIES
            )
        case _:
            return each.name in words


def test_all_that_the_code_leans_on_is_listed() -> None:
    """A new dependency needs a row in suites/probe/dependencies.py or texts.py, and a try."""
    found = used()
    assert {each.kind for each in found} == {"request", "mbean", "tool", "option", "class", "file", "znode", "text"}
    assert [each for each in found if not is_listed(each)] == []


def test_what_no_code_needs_any_more_is_not_listed() -> None:
    """Each row is used, except those that the search does not see: of tables, compiled patterns and deviations."""
    of_tables = {"log-story", "log-moved", "log-rolled", "log-cordons", "log-isr", "log-started", "text-tools"}
    unseen = {*of_tables, "log-deleted-topic-met"}
    names = {each.name for each in used()}
    assert {
        word for dependency in DEPENDENCIES if dependency.id not in unseen for word in dependency.words
    } - names == set()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def f(c):\n    return c.ask(DescribeGroupsRequest())", "DescribeGroups"),
        ("X = 'kafka.server:type=KafkaServer,name=Uptime'", "kafka.server:type=KafkaServer,name=Uptime"),
        ("X = Tool.PRODUCER_PERF", "producer-perf"),
        ("def f():\n    tool_lines(Tool.TOPICS, '--exclude-internal')", "--exclude-internal"),
        ("X = 'org.apache.kafka.server.Broker'", "org.apache.kafka.server.Broker"),
        ("def f(d):\n    return d / 'quorum-checkpoint'", "quorum-checkpoint"),
        ("GONE = r'Broker .* gone'\ndef f(b):\n    b.log.first(GONE)", "Broker .* gone"),
        ("def f(b, x):\n    gone = rf'Broker {x} gone'\n    b.log.first(gone, since=None)", "Broker … gone"),
        ("def g(b, saying):\n    b.log.first(saying)\ndef f(b):\n    g(b, 'gone')", "gone"),
        ("def f(b):\n    check_ends(b, exit_code=1, saying='gone')", "gone"),
        ("def gone(b):\n    return f'Broker {b} gone'\ndef f(b):\n    b.log.first(gone(b))", "Broker … gone"),
        ("class F:\n    def __init__(self):\n        self.noticed_by = 'it is gone'", "it is gone"),
        ("def f(line):\n    return 'is gone' in line.text", "is gone"),
    ],
)
def test_what_is_new_is_found(source: str, name: str) -> None:
    found = used({"suites/kip_1/test_x.py": source})
    assert name in {each.name for each in found}
    assert [each.name for each in found if not is_listed(each)] == [name]


def test_a_pattern_that_can_not_be_read_is_an_error() -> None:
    with pytest.raises(Unreadable, match=r"test_x.py:2: g\(\) \+ 'x'"):
        used({"suites/kip_1/test_x.py": "def f(b):\n    b.log.first(g() + 'x')"})
