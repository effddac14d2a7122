"""Small charts as inline SVG, without a script, in the colours of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 44


NARROW = 4.0
"""Values within this factor of each other are drawn on a linear axis that does not start at 0."""


@dataclass(frozen=True)
class Series:
    """One line through points, or a dashed level across the chart (one y, no x).

    Attributes:
        name: Name in the legend.
        y: Heights of the points.
        x: Places of the points; empty for a level.
        colour: A class of the style sheet; empty for a reference, which is dashed and has its name
            beside it.
        band: Lower and upper ends of a band around the line, each as long as `y`.
        whiskers: The same, drawn as a whisker at each point.
    """

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    colour: str = "c1"
    band: tuple[Sequence[float], Sequence[float]] | None = None
    whiskers: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; values outside the range are drawn at its edge."""
        low, high = self._scale(self.low), self._scale(self.high)
        share = (self._scale(min(max(value, self.low), self.high)) - low) / ((high - low) or 1.0)
        return self.start + share * (self.end - self.start)

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self) -> list[float]:
        """Return about five round values inside the range."""
        if self.log:
            first, last = (
                math.ceil(math.log10(self.low) - 1e-9),
                math.floor(math.log10(self.high) + 1e-9),
            )
            if self.low >= 0.01 and self.high <= 1000 and last - first <= 2:
                fine = (f * 10.0**p for p in range(first - 1, last + 1) for f in (1, 2, 5))
                return [
                    value
                    for value in fine
                    if self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)
                ]
            every = max(1, round((last - first) / 5))
            return [10.0**p for p in range(first, last + 1, every)]
        raw = (self.high - self.low) / 5 or 1.0
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * f for f in (1, 2, 5, 10) if unit * f >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def line_chart(
    series: Sequence[Series], x_label: str, y_label: str, log_y: bool = False, log_x: bool = False
) -> Markup:
    """Return a chart of lines over a common x axis, and levels, with a legend.

    Args:
        series: Lines and levels; at least one of them has places on the x axis.
        x_label: Name of the x axis.
        y_label: Name of the y axis.
        log_y: Logarithmic y axis, unless all values are within a factor of NARROW.
        log_x: Logarithmic x axis.
    """
    xs = [x for s in series for x in s.x]
    # A single point is drawn in the middle.
    if min(xs) == max(xs):
        xs += [xs[0] / 2, xs[0] * 2] if log_x else [xs[0] - 1, xs[0] + 1]
    tops = [
        y
        for s in series
        for spread in (s.band, s.whiskers)
        if spread is not None
        for y in spread[1]
    ]
    ys = [y for y in [*(y for s in series for y in s.y), *tops] if y > 0 or not log_y]
    narrow = log_y and bool(ys) and max(ys) < NARROW * min(ys)
    log_y = log_y and bool(ys) and not narrow
    if narrow:
        ys += [
            y
            for s in series
            for spread in (s.band, s.whiskers)
            if spread is not None
            for y in spread[0]
        ]
        room = 0.1 * (max(ys) - min(ys)) or 0.5 * min(ys)
        low, high = max(0.0, min(ys) - room), max(ys) + room
    elif log_y:
        low, high = (
            10 ** math.floor(math.log10(min(ys))),
            10 ** math.ceil(math.log10(max(ys)) + 1e-9),
        )
    else:
        low, high = 0.0, (max(ys, default=0.0) or 1.0) * 1.08
    # Whiskers need room at both ends.
    edge = 12 if any(s.whiskers for s in series) else 0
    across = Axis(min(xs), max(xs), LEFT + edge, WIDTH - RIGHT - edge, log_x)
    up = Axis(low, high, HEIGHT - BOTTOM, TOP, log_y)
    parts = [_frame(across, up, x_label, y_label)]
    references = [s for s in series if not s.colour]
    for s in series:
        ends = [(LEFT, up(s.y[0])), (WIDTH - RIGHT, up(s.y[0]))]  # of a level
        points = [(across(x), up(y)) for x, y in zip(s.x, s.y, strict=True)] if s.x else ends
        if s.band is not None:
            below, above = (
                [(across(x), up(y)) for x, y in zip(s.x, edge, strict=True)] for edge in s.band
            )
            outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*below, *reversed(above)])
            parts.append(f'<polygon class="band {s.colour}" points="{outline}"/>')
        if s.whiskers is not None:
            parts += [
                _whisker(across(x), up(a), up(b), s.colour)
                for x, a, b in zip(s.x, *s.whiskers, strict=True)
            ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        kind = "line" if s.x and s.colour else "level"
        parts.append(f'<polyline class="{kind} {s.colour}" points="{path}"/>')
        if s.x and s.colour and len(points) <= 40:
            parts += [
                f'<circle class="dot {s.colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
                for x, y in points
            ]
    names = [_name(s, references.index(s) / len(references), across, up) for s in references]
    return _svg([*parts, *names], f"{y_label} against {x_label}") + _legend(series)


def histogram_chart(
    edges: Sequence[float], counts: Sequence[Series], x_label: str, y_label: str, log: bool
) -> Markup:
    """Return a chart of histograms over each other, with a legend.

    Args:
        edges: Edges of the bins, one more than there are counts.
        counts: Counts per bin, as the `y` of each series.
        x_label: Name of the x axis.
        y_label: Name of the y axis.
        log: Logarithmic x axis; `edges` are then decimal logarithms.
    """
    values = [10.0**edge for edge in edges] if log else list(edges)
    used = [i for s in counts for i, c in enumerate(s.y) if c > 0]
    first, last = max(0, min(used) - 1), min(len(edges) - 2, max(used) + 1)
    across = Axis(values[first], values[last + 1], LEFT, WIDTH - RIGHT, log)
    up = Axis(0.0, max(max(s.y) for s in counts) * 1.08, HEIGHT - BOTTOM, TOP)
    parts = [_frame(across, up, x_label, y_label)]
    for s in counts:
        for i in range(first, last + 1):
            if s.y[i] > 0:
                x0, x1, y = across(values[i]), across(values[i + 1]), up(s.y[i])
                size = f'width="{x1 - x0:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
                box = f'x="{x0:.1f}" y="{y:.1f}" {size}'
                parts.append(f'<rect class="bar {s.colour}" {box}/>')
    return _svg(parts, f"{y_label} by {x_label}") + _legend(counts)


def heat_map(values: NDArray[np.int64], x_label: str, y_label: str) -> Markup:
    """Return a chart with one box per value; larger values are darker.

    Args:
        values: Numbers of at least 0, shape (rows, columns); the first row is the lowest.
        x_label: What a column is.
        y_label: What a row is.
    """
    rows, columns = values.shape
    across = Axis(0, columns, LEFT, WIDTH - RIGHT)
    up = Axis(0, rows, HEIGHT - BOTTOM, TOP)
    parts = [_frame(across, up, x_label, y_label)]
    width, height, largest = across(1) - across(0), up(0) - up(1), max(1, int(values.max()))
    for (i, j), count in np.ndenumerate(values):
        if count:
            box = (
                f'x="{across(j):.1f}" y="{up(i + 1):.1f}" width="{width:.2f}" height="{height:.2f}"'
            )
            parts.append(
                f'<rect class="cell c1" {box} style="opacity:{0.15 + 0.85 * count / largest:.2f}"/>'
            )
    return _svg(parts, f"how much of each {y_label} each {x_label} has")


def _name(reference: Series, share: float, across: Axis, up: Axis) -> str:
    """Return the name of a reference, to be drawn beside it.

    References may be close to each other, so their names are side by side. They start on the right,
    where lines are mostly far away.
    """
    end = WIDTH - RIGHT - 2 - share * (WIDTH - LEFT - RIGHT)
    nearest = min(
        range(len(reference.x)), key=lambda i: abs(across(reference.x[i]) - end), default=0
    )
    y = up(reference.y[nearest])
    place = f'x="{end:.1f}" y="{max(y - 5, TOP + 8):.1f}"'
    return f'<text class="name" {place} text-anchor="end">{escape(reference.name)}</text>'


def _whisker(x: float, low: float, high: float, colour: str) -> str:
    ends = "".join(f"M{x - 4:.1f},{y:.1f}h8" for y in (low, high))
    return f'<path class="whisker {colour}" d="M{x:.1f},{low:.1f}V{high:.1f}{ends}"/>'


def _frame(across: Axis, up: Axis, x_label: str, y_label: str) -> str:
    floor = HEIGHT - BOTTOM
    parts = []
    for value in up.ticks():
        y = up(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        number = _number(value, up.log)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number}</text>')
    for value in across.ticks():
        x = across(value)
        parts.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>'
        )
        number = _number(value, across.log)
        parts.append(f'<text x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{number}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    )
    height = (TOP + floor) / 2
    turn = f'transform="rotate(-90 16 {height})"'
    parts.append(f'<text x="16" y="{height}" text-anchor="middle" {turn}>{escape(y_label)}</text>')
    return "".join(parts)


def _number(value: float, log: bool) -> str:
    if log and not 0.01 <= value < 1000:
        return f'10<tspan dy="-5">{round(math.log10(value))}</tspan>'
    if value >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def _svg(parts: Sequence[str], title: str) -> Markup:
    """Return a drawing of parts whose texts are escaped already."""
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}{''.join(parts)}</svg>")


def _legend(series: Sequence[Series]) -> Markup:
    items = "".join(
        f'<li><i class="key {s.colour}"></i>{escape(s.name)}</li>' for s in series if s.colour
    )
    return Markup(f'<ul class="legend">{items}</ul>')
