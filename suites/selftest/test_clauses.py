"""The clauses of the KIPs (suites/clauses) follow the texts' sections, and name scenarios that exist.

The texts are not in this repository. ``JBOD_KIPS=FOLDER`` also compares titles and quotations with the texts in that
folder: one file ``kip-112….txt`` for each KIP.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from harness.runner.clauses import Clause, read_clauses
from suites.selftest.processes import JBOD

KIPS = read_clauses()
TEXTS = os.environ.get("JBOD_KIPS")
SCENARIO = re.compile(r"(?<![\w./-])[a-z][a-z0-9]*(?:-[a-z0-9]+)+/[a-z0-9-]+")
TITLES: Mapping[int, Sequence[str]] = {
    18: (
        "Current state: Discarded in favour of KIP-112 and KIP-113",  # the page has no title before this line
        "Public Interfaces",
        "Proposed Changes",
        "Implementation Details",
        "IO Errors",
        "Notifying Controller",
        "Putting LogDirs Directory Offline",
        "Partitions Restart",
        "Restarted Partition Leader Selector",
        "Open questions",
        "Compatibility, Deprecation, and Migration Plan",
        "Rejected Alternatives",
    ),
    36: (
        "Status",
        "...",  # here the page leaves out titles
        "Public Interfaces",
        "Changes to Broker property",
        "Changes to UpdateMetadataRequest",
        "Changes to TopicMetadataRequest and TopicMetadataResponse",
        "Proposed Changes",
        "Compatibility, Deprecation, and Migration Plan",
    ),
    112: (
        "Status",
        "...",  # here the page leaves out titles
        "Here are a few clarification to make our solution easier to understand:",
        "1. Topic gets created",
        "2. A log directory stops working on a broker during runtime",
        "3. Broker bootstraps with bad log directories",
        "4. The disk (or log directory) gets fixed",
        "5. User queries replicas state",
        "6. Controller failover",
        "7. Partition reassignment",
        "8. Topic deleteion",
        "Public interface",
        "Zookeeper",
        "Protocol",
        "Scripts",
        "Metrics",
        "Changes in Operational Procedures",
        "Compatibility, Deprecation, and Migration Plan",
        "Test Plan",
        "1) Log directory failure discovered during bootstrap",
        "2) Log directory failure discovered on leader during runtime",
        "3) Log directory failure discovered on follower during runtime",
        "Rejected Alternatives",
        "Potential Future Improvement",
    ),
    113: (
        "KIP-113: Support replicas movement between log directories",
        "Status",
        "Motivation",
        "Goals",
        "Proposed change",
        "1) How to move replica between log directories on the same broker",
        "Problem statement:",
        "Solution:",
        "1. Initiate replica movement using AlterReplicaDirRequest",
        "Notes",
        "2. Complete replica data movement",
        "Notes:",
        "3. Handle failure that happens when broker is moving data or swapping replica",
        "2) How to reassign replica between log directories across brokers",
        "Problem statement:",
        "Solution:",
        "3) How to retrieve information to determine the new replica assignment across log directories",
        "Problem statement:",
        "Solution:",
        "Public interface",
        "Protocol",
        "Create AlterReplicaDirRequest",
        "Create AlterReplicaDirResponse",
        "Create DescribeLogDirsRequest",
        "Create DescribeLogDirsResponse",
        "Broker Config",
        "Scripts",
        "AdminClient",
        "Changes in Operational Procedures",
        "Compatibility, Deprecation, and Migration Plan",
        "Test Plan",
        "Rejected Alternatives",
    ),
    1066: (
        "Status",
        "Motivation",
        "Proposed Changes",
        "Error handling",
        "CreateTopics/CreatePartitions requests",
        "AlterPartitionReassignments request",
        "AlterReplicaLogDirs request",
        "Public Interfaces",
        "Configurations",
        "API Requests/Responses",
        "Metadata Records",
        "Admin API",
        "Compatibility, Deprecation, and Migration Plan",
        "Test Plan",
        "Rejected Alternatives",
    ),
}
"""The titles of each text's sections, in its order and spelling."""


def clauses_of(kip: int) -> list[Clause]:
    return [clause for section in KIPS[kip] for clause in section.clauses]


def plain(text: str) -> str:
    """The text without its markup, on one line."""
    return " ".join(re.sub(r"</?code>|[*\\`]", "", text).split())


def text_of(kip: int) -> str:
    """The text in ``JBOD_KIPS``."""
    [file] = Path(TEXTS or "").glob(f"kip-{kip}-*.txt")
    return file.read_text()


def test_the_five_kips_have_the_sections_of_their_texts() -> None:
    seen = {kip: [section.title for section in sections] for kip, sections in KIPS.items()}
    assert seen == {kip: list(titles) for kip, titles in TITLES.items()}


def test_no_section_is_without_a_clause() -> None:
    assert [(kip, each.title) for kip, sections in KIPS.items() for each in sections if not each.clauses] == []


def test_every_scenario_that_a_clause_names_exists() -> None:
    """A reason may name scenarios, too."""
    done = subprocess.run([JBOD, "list", "--json"], capture_output=True, text=True, check=True)
    known = {each["id"] for each in json.loads(done.stdout)["scenarios"] if each["cases"]}
    for kip in KIPS:
        named = {id for clause in clauses_of(kip) for id in clause.tested_by}
        told = {id for clause in clauses_of(kip) for id in SCENARIO.findall(clause.untested + clause.not_testable)}
        assert named | told <= known, f"KIP-{kip}: {sorted((named | told) - known)}"


@pytest.mark.parametrize("given", [{}, {"tested_by": ["a/b"], "untested": "c"}, {"untested": ""}])
def test_a_clause_without_exactly_one_status_is_refused(given: Mapping[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match="needs one of tested_by, untested and not_testable"):
        msgspec.convert({"says": "New replicas", **given}, Clause)


def test_each_reason_is_a_sentence() -> None:
    reasons = [each.untested or each.not_testable for kip in KIPS for each in clauses_of(kip) if not each.tested_by]
    assert [reason for reason in reasons if not reason.endswith(".")] == []


@pytest.mark.parametrize("kip", KIPS)
def test_no_section_has_a_clause_twice(kip: int) -> None:
    for section in KIPS[kip]:
        said = [clause.says for clause in section.clauses]
        assert len(said) == len(set(said)), section.title


def missing(titles: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The titles that are not among the lines, in this order."""
    left = iter(lines)
    return [title for title in titles if title not in left]


with_texts = pytest.mark.skipif(TEXTS is None, reason="JBOD_KIPS names no folder with the KIPs' texts")


@with_texts
@pytest.mark.parametrize("kip", KIPS)
def test_the_titles_are_those_of_the_text(kip: int) -> None:
    """Where the text marks titles with ``#``, the list has all of them."""
    lines = text_of(kip).splitlines()
    if marked := [line.lstrip("#") for line in lines if line.startswith("#")]:
        assert [plain(title) for title in marked] == list(TITLES[kip])
    else:
        assert missing(TITLES[kip], [plain(line) for line in lines]) == []


@with_texts
@pytest.mark.parametrize("kip", KIPS)
def test_the_quotations_are_those_of_the_text(kip: int) -> None:
    text = plain(text_of(kip))
    for clause in clauses_of(kip):
        at = 0
        for part in filter(None, map(str.strip, plain(clause.says).split("…"))):
            at = text.find(part, at)
            assert at >= 0, f"KIP-{kip} does not say: {clause.says}"
