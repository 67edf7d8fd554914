"""Curves of figures of scenarios over the number that is the last parameter of their cases, such as partitions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from reports.rows import Row, grouped

_CASE = re.compile(r"(?P<scenario>.+)\[(?P<mode>\w+)-(?P<number>\d+)\]")
_WIDTH, _HEIGHT = 240, 110


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One figure of one scenario in one mode.

    :ivar lines: by label, the number and the median of each case, the smallest number first
    """

    scenario: str
    mode: str
    figure: str
    lines: Mapping[str, Sequence[tuple[int, float]]]

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all lines."""
        return sorted({number for line in self.lines.values() for number, _ in line})

    @property
    def most(self) -> float:
        """The highest value."""
        return max(value for line in self.lines.values() for _, value in line)

    def x(self, number: int) -> float:
        """The place of a number in the picture, whose axis is logarithmic."""
        first, last = (math.log(each) for each in (self.numbers[0], self.numbers[-1]))
        return round(_WIDTH * (math.log(number) - first) / (last - first), 1)

    def y(self, value: float) -> float:
        """The place of a value in the picture; 0 is at the bottom."""
        return round(_HEIGHT * (1 - value / (self.most or 1.0)), 1)

    def points(self, label: str) -> str:
        """The points of a line, for ``polyline``."""
        return " ".join(f"{self.x(number)},{self.y(value)}" for number, value in self.lines[label])


def make_curves(rows: Mapping[str, Sequence[Row]]) -> list[Curve]:
    """Make the curves with at least two numbers; only valid runs count.

    :param rows: by the label of the line, such as a build
    """
    found: dict[tuple[str, str, str], dict[str, dict[int, list[float]]]] = {}
    for label, of in rows.items():
        for row in of:
            if (case := _CASE.fullmatch(row.id)) and row.verdict == "valid" and int(case["number"]) > 0:
                for figure, value in row.measured.items():
                    line = found.setdefault((case["scenario"], case["mode"], figure), {}).setdefault(label, {})
                    line.setdefault(int(case["number"]), []).append(value)
    curves = [
        Curve(
            scenario=scenario,
            mode=mode,
            figure=figure,
            lines={
                label: sorted((number, median(values)) for number, values in of.items()) for label, of in lines.items()
            },
        )
        for (scenario, mode, figure), lines in found.items()
    ]
    return [curve for curve in curves if len(curve.numbers) > 1]


def curves_of_builds(rows: Sequence[Row]) -> list[Curve]:
    """Make the curves of these runs, with a line for each build."""
    return make_curves(grouped(rows, lambda row: row.kafka))
