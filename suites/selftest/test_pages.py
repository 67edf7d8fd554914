"""The Markdown pages are consistent: links and headings exist, and each declared deviation is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.runner.deviation import Deviation
from suites import deviations

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page.relative_to(ROOT) for folder in (".", "*") for page in ROOT.glob(f"{folder}/*.md") if ".venv" not in page.parts
)
FINDINGS = ROOT / "suites" / "FINDINGS.md"
README_LINES = 200


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_links_to_what_there_is(page: Path) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+://", path):
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


def test_the_pages_name_each_declared_deviation() -> None:
    """The findings or the known bugs name each declared deviation, and no others."""
    text = FINDINGS.read_text() + (ROOT / "suites" / "KNOWN_BUGS.md").read_text()
    told = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", text))
    declared = {name for name, value in vars(deviations).items() if isinstance(value, Deviation)}
    assert (sorted(declared - told), sorted(told - declared)) == ([], [])


def test_each_finding_has_its_section_and_its_row() -> None:
    """Findings are numbered without a gap, and each has all that a report to Kafka's tracker needs."""
    text = FINDINGS.read_text()
    sections = re.split(r"^#{2,3} (?=\w+\. )", text, flags=re.MULTILINE)[1:]
    numbers = [int(section.partition(".")[0]) for section in sections if section[0].isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [int(row) for row in re.findall(r"^\| \[(\d+)\]\(#", text, re.MULTILINE)] == numbers
    parts = "Summary|Promise|What happens|Builds and modes|Command|Evidence|Suspected code|Known issues"
    for section in sections:
        assert re.findall(r"^- \*\*(.+?)\.\*\*", section, re.MULTILINE) == parts.split("|"), section[:80]
