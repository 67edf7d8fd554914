"""Makes pages from data, by jinja2 templates. Style, scripts and data are inside the page, so a page is one file.

uPlot draws the charts (``assets/uPlot.iife.min.js``, as in its npm package, 50 KB). ECharts or Plotly would make each
of two hundred pages 1 to 4 MB. States of leaders, log dirs and brokers are ordinary HTML, for screen readers and the
keyboard.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from harness.host.atomic_write import write_atomically
from harness.measure.fault_costs import FaultCosts
from reports.costs import COSTS
from reports.lanes import short
from reports.qualification import OWN_FIGURES

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
    environment.globals |= {"asset": _asset, "COSTS": COSTS, "OWN_FIGURES": OWN_FIGURES, "figure": figure}
    environment.filters |= {"seconds": seconds, "place": _place, "short": short, "data": _data, "words": _words}
    return environment


def write_page(path: Path, template: str, **data: object) -> Path:
    """Render a template into a file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, _environment().get_template(template).render(**data))


def seconds(value: float | None) -> str:
    """Seconds in a table; "–" for None."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def figure(fault: FaultCosts, cost: str) -> str:
    """A figure of a fault in a table: "never" if what it waits for did not happen, "–" if it does not apply."""
    return "never" if fault.never_came(cost) else seconds(fault.figure(cost))


def _words(name: str) -> str:
    """The words of a figure: those of a fault's cost; a scenario's own figure has words as its name."""
    return COSTS[name].words if name in COSTS else name


def _place(value: float) -> float:
    """The place of a time on a logarithmic strip of 120 units from 0.01 to 100 s."""
    return round(min(max(math.log10(max(value, 0.01)) + 2, 0.0), 4.0) * 30, 1)


@cache
def _asset(name: str) -> Markup:
    """A file of ``assets/``, not escaped: it is ours, or vendored and pinned."""
    return Markup((_HERE / "assets" / name).read_text(encoding="utf-8"))


def _data(value: object) -> Markup:
    """JSON for a script element, without ``</script>`` and ``<!--``."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
