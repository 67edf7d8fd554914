"""Pages from data: jinja2 templates with style, script and data inside, so that one file can be mailed and opened.

The charts are uPlot's (``assets/uPlot.iife.min.js``, as its npm package has it), 50 KB: a library such as ECharts or
Plotly would make each of two hundred pages 1 to 4 MB. What is a state and not a number (leaders, log dirs, brokers) is
ordinary HTML beside it, which a screen reader and the keyboard get at.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from harness.host.atomic_write import write_atomically
from harness.measure.fault_costs import FaultCosts
from reports.costs import COSTS
from reports.lanes import short

_HERE = Path(__file__).parent


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = _asset
    environment.globals["COSTS"] = COSTS
    environment.filters["seconds"] = seconds
    environment.globals["told"] = told
    environment.filters["place"] = _place
    environment.filters["short"] = short
    environment.filters["data"] = _data
    return environment


def write_page(path: Path, template: str, **data: Any) -> Path:
    """Render a template into a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, _environment().get_template(template).render(**data))


def seconds(value: float | None) -> str:
    """A figure of a table."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def told(fault: FaultCosts, cost: str) -> str:
    """What a fault cost, as a table has it: "never" for what did not happen, "–" for what does not apply."""
    return "never" if fault.never_came(cost) else seconds(fault.figure(cost))


def _place(value: float) -> float:
    """Where a time lies on a strip of 120 units from 0.01 to 100 s, each power of ten 30."""
    return round(min(max(math.log10(max(value, 0.01)) + 2, 0.0), 4.0) * 30, 1)


@cache
def _asset(name: str) -> Markup:
    """A file of ``assets/``, to be put into the page as it stands; it is ours, or vendored and pinned."""
    return Markup((_HERE / "assets" / name).read_text(encoding="utf-8"))


def _data(value: Any) -> Markup:
    """JSON inside a script element, where ``</script>`` and ``<!--`` may not stand."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
