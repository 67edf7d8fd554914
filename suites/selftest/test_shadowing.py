"""No module of a suite defines a ``check_*`` with the name of a shared one, since readers would confuse them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def checks_in(text: str) -> Iterator[str]:
    """The names of the ``check_*`` functions at a module's top level."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            yield node.name


def defined_twice(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """The shared ``check_*`` functions that another module defines, too, each with the modules that define it.

    :param sources: source texts by path below suites/; a shared module lies in no folder
    """
    found = defaultdict(list)
    for path, text in sources.items():
        for name in checks_in(text):
            found[name].append(path)
    return {
        name: sorted(paths)
        for name, paths in found.items()
        if len(paths) > 1 and any("/" not in path for path in paths)
    }


def test_a_second_definition_is_found() -> None:
    sources = {
        "checks.py": "def check_led(): ...",
        "kip_36/oracle.py": "def check_led(): ...\ndef check_own(): ...",
        "kip_112/own.py": "def check_own(): ...",
    }
    assert defined_twice(sources) == {"check_led": ["checks.py", "kip_36/oracle.py"]}


def test_no_suite_shadows_a_shared_check() -> None:
    suites = ROOT / "suites"
    files = [file for file in suites.rglob("*.py") if "selftest" not in file.parts]
    assert defined_twice({str(file.relative_to(suites)): file.read_text() for file in files}) == {}
