"""Finds in jbod's source what it depends on in a Kafka build: it reads the syntax trees of harness, faults and suites.

Log lines are the patterns that reach a broker's log: an argument of ``log.first``, one named ``saying``, what a fault
is noticed by, what is looked for in a line's text. A pattern may be a constant of any module, a local variable, or what
a function of one ``return`` gives; what a format or an f-string puts in is ``…``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from harness.kafka.versions import Tool

Kind = Literal["request", "mbean", "tool", "option", "class", "file", "znode", "text"]

_ROOT = Path(__file__).parents[2]
_GAP = "…"
_MBEAN = re.compile(r"[\w.*]+:type=\S+")
_CLASS = re.compile(r"(org\.apache\.kafka|kafka)(\.\w+)*\.[A-Z]\w+(\$\w+)?|\w+\$\w+(\.class)?")
_OPTION = re.compile(r"--[a-z][a-z-]+")
_FILE = re.compile(
    r"(\S*/)?([\w-]+-checkpoint|\*-checkpoint\S*|bootstrap\.checkpoint|\.kafka_cleanshutdown|\w+\.properties"
    r"|partition\.metadata|__cluster_metadata-0|…?(\.\*)?-(future|delete|stray)|…?\*\.\w+)"
)
_ZNODE = re.compile(r"/(brokers|config|admin|controller|isr_change_notification|log_dir_event_notification)\b\S*")
_SAID = re.compile(r"\.text$|\.message\b|^line$|\bsaid$|\bword\b")
"""Where a text of Kafka's is looked for, beside logs themselves: lines of them, errors, what its programs print."""
_OURS = {
    "server.properties",
    "brokers/*/server.properties",
    "*.json",
    "*.jar",
    "*.class",
    "*.py",
    "*.parquet",
    "*.java",
    "*.toml",
}
_FINDS_BUILDS = {
    f"harness/kafka/{name}.py"
    for name in (
        *("builds", "distribution", "main_classes", "maven", "released", "source_tree", "tarball", "tools"),
        *("tools_jvm", "versions"),
    )
}
"""Of the harness: what looks for programs in a build."""
_OF_OURS = ("host", "history", "spark", "checkers", "workload", "measure", "bench", "runner", "cli", "cluster/nodes")
"""Folders of the harness that have options and files of their own."""
_EMPTIES_CLUSTERS = "harness/runner/cluster_reuse.py"


@dataclass(frozen=True, order=True)
class Used:
    """One thing that the code depends on, and where."""

    kind: Kind
    name: str
    where: str


class Unreadable(Exception):
    """A pattern for a log that can't be told from the source: make it a constant."""


def used(sources: Mapping[str, str] | None = None) -> list[Used]:
    """All that is found in some sources, by the modules' paths; by default those of the house without its tests.

    :raises Unreadable: see there
    """
    modules = {path: ast.parse(text) for path, text in (sources or _sources()).items()}
    names = _Names(modules.values())
    return sorted({each for path, tree in modules.items() for each in _in_module(path, tree, names)})


def _sources() -> dict[str, str]:
    files = [file for top in ("harness", "faults", "suites") for file in (_ROOT / top).rglob("*.py")]
    paths = {str(file.relative_to(_ROOT)): file for file in files}
    return {path: file.read_text() for path, file in paths.items() if not re.match("suites/(selftest|probe)/", path)}


class _Names:
    """What names stand for, over all modules: texts, functions that give one, and where functions have ``saying``."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self.texts: dict[str, ast.expr] = {}
        self.returns: dict[str, ast.expr] = {}
        self._saying: dict[str, int] = {}
        for tree in trees:
            self.texts |= _assigned(tree.body)
            for function in _functions(tree):
                returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
                if len(returned) == 1:
                    self.returns[function.name] = returned[0]
            self._saying |= {name: at for name, at in _saying(tree).items() if at is not None}

    def saying(self, called: str, tree: ast.Module) -> int | None:
        """Which argument of a function is its ``saying``; a module's own function goes before another's."""
        return _saying(tree).get(called, self._saying.get(called))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@cache
def _saying(tree: ast.Module) -> dict[str, int | None]:
    """Which argument is ``saying``, of each function of a module; None of one that has none."""
    arguments = {function.name: [each.arg for each in function.args.args] for function in _functions(tree)}
    return {name: of.index("saying") if "saying" in of else None for name, of in arguments.items()}


def _assigned(body: Iterable[ast.AST]) -> dict[str, ast.expr]:
    found = {}
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


# --- one module -----------------------------------------------------------------------------------------------------


def _in_module(path: str, tree: ast.Module, names: _Names) -> Iterator[Used]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = _called(node)
            if called.endswith("Request") and called != "TopicRequest":  # a part of one
                yield Used("request", called.removesuffix("Request"), path)
    if path not in _FINDS_BUILDS:
        yield from _tools(path, tree)
    ours = path.startswith(tuple(f"harness/{folder}/" for folder in _OF_OURS)) and path != _EMPTIES_CLUSTERS
    kafkas = path not in _FINDS_BUILDS and not ours
    asks_tools = kafkas and any(_tools(path, tree))
    for literal in _literals(tree):
        if _MBEAN.fullmatch(literal):
            yield Used("mbean", literal, path)
        if kafkas and _CLASS.fullmatch(literal):
            yield Used("class", literal, path)
        if asks_tools and _OPTION.fullmatch(literal):
            yield Used("option", literal, path)
        if kafkas and literal not in _OURS and _FILE.fullmatch(literal):
            yield Used("file", literal, path)
        if path == "harness/cluster/quorum/zookeeper.py" and _ZNODE.fullmatch(literal):
            yield Used("znode", literal, path)
    for scope, expression in (
        _patterns(tree, names) if kafkas or path.startswith(("harness/runner/", "harness/measure/")) else ()
    ):
        texts = _read(expression, scope, names, path)
        yield from (Used("text", text, path) for text in texts if re.search(r"\w{3}", text.replace("(?s)", "")))


def _tools(path: str, tree: ast.Module) -> Iterator[Used]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Tool":
            yield Used("tool", Tool[node.attr].value, path)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _literals(tree: ast.Module) -> Iterator[str]:
    """Every text in the code, but for those that only say something of it."""
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in spoken | inside:
            yield from _flat(node)


def _flat(node: ast.expr) -> list[str]:
    """The text of a literal; none of another constant."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(p.value if isinstance(p, ast.Constant) else _GAP for p in node.values)]  # type: ignore[misc]
    return []


# --- patterns for logs ----------------------------------------------------------------------------------------------

_Scope = Sequence[ast.FunctionDef]


def _patterns(tree: ast.Module, names: _Names) -> Iterator[tuple[_Scope, ast.expr]]:
    """Each, with the functions around it, the innermost last."""

    def visit(node: ast.AST, scope: _Scope) -> Iterator[tuple[_Scope, ast.expr]]:
        inner = [*scope, node] if isinstance(node, ast.FunctionDef) else scope
        for expression in _pattern_in(node, tree, names):
            yield inner, expression
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    return visit(tree, ())


def _pattern_in(node: ast.AST, tree: ast.Module, names: _Names) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        called = _called(node)
        if called == "first" and isinstance(node.func, ast.Attribute) and node.args and _is_log(node.func.value):
            yield node.args[0]
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "saying")
        if called == "search" and len(node.args) > 1 and _SAID.search(ast.unparse(node.args[1])):
            yield node.args[0]
        at = names.saying(called, tree)
        yield from node.args[at : at + 1] if at is not None else ()
    elif isinstance(node, ast.Assign) and any(getattr(each, "attr", "") == "noticed_by" for each in node.targets):
        yield node.value
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        yield from (node.left,) if _SAID.search(ast.unparse(node.comparators[0])) else ()


def _is_log(node: ast.expr) -> bool:
    return "log" in ast.unparse(node).lower()


def _read(node: ast.expr | None, scope: _Scope, names: _Names, path: str) -> list[str]:
    """The texts that an expression may stand for; none where it is handed in, and whoever hands it in is read.

    :raises Unreadable: they can't be told
    """
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return []
    if flat := _flat(node):
        return flat
    if isinstance(node, ast.IfExp):
        return [*_read(node.body, scope, names, path), *_read(node.orelse, scope, names, path)]
    if isinstance(node, ast.Name):
        for number, function in reversed([*enumerate(scope)]):
            if node.id in (local := _assigned(ast.walk(function))):
                return _read(local[node.id], scope[: number + 1], names, path)
            arguments = function.args
            if node.id in {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}:
                return []
        if node.id in names.texts:
            return _read(names.texts[node.id], (), names, path)
        if any(node.id in _bound(function) for function in scope):
            return []  # of a loop: the table is listed by hand
    if isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and node.attr in names.texts:
            return _read(names.texts[node.attr], (), names, path)
        return []  # a fault's, which is read where it is made
    if isinstance(node, ast.Call):
        called = _called(node)
        if called in ("format", "removesuffix") and isinstance(node.func, ast.Attribute):
            return _read(node.func.value, scope, names, path)
        if called in ("str", "escape"):
            return _read(node.args[0], scope, names, path)
        if called in names.returns:
            return _read(names.returns[called], (), names, path)
    raise Unreadable(f"{path}:{node.lineno}: {ast.unparse(node)}")


def _bound(function: ast.FunctionDef) -> set[str]:
    """What loops and comprehensions of a function bind."""
    targets = [node.target for node in ast.walk(function) if isinstance(node, ast.comprehension | ast.For)]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
