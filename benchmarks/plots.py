"""Plots as SVG: lines over time in panels that share a time axis, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 420, 110  # of a panel
LEFT, TOP, BETWEEN, BOTTOM = 48, 44, 36, 34
COLOURS = ("#1f6feb", "#8c959f")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A line through points; ``steps`` has it horizontal up to the next point."""

    name: str
    points: Points
    steps: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines on one scale, which begins at 0."""

    title: str
    lines: Sequence[Line]

    @property
    def highest(self) -> float:
        return max(y for line in self.lines for _, y in line.points)

    @property
    def last(self) -> float:
        return max(x for line in self.lines for x, _ in line.points)


def plot(title: str, columns: Sequence[tuple[str, Sequence[Panel]]]) -> str:
    """Draw columns of panels, each with a heading."""
    rows = max(len(panels) for _, panels in columns)
    width = len(columns) * (LEFT + WIDTH) + 16
    height = TOP + rows * (HEIGHT + BETWEEN) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" fill="#24292f">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 16, title, weight="bold"),
    ]
    for number, (heading, panels) in enumerate(columns):
        left = LEFT + number * (LEFT + WIDTH)
        parts.append(_text(left, 34, heading))
        for row, panel in enumerate(panels):
            parts += _panel(panel, left, TOP + row * (HEIGHT + BETWEEN) + 14)
        parts.append(_text(left + WIDTH, height - 10, "seconds", anchor="end"))
    return "\n".join([*parts, "</svg>", ""])


BAR, LABELS, NUMBERS = 18, 260, 80


@dataclass(frozen=True)
class Bar:
    """A bar with its label, and its value as text; one that is ``ours`` stands out."""

    label: str
    value: float
    text: str
    ours: bool = False


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Draw bars below each other, on one scale that begins at 0."""
    width, height = LABELS + WIDTH + NUMBERS, TOP + BAR * len(rows)
    most = max(row.value for row in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" fill="#24292f">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(8, 16, title, weight="bold"),
    ]
    for number, row in enumerate(rows):
        top, length = TOP - 14 + BAR * number, WIDTH * row.value / most
        colour = COLOURS[0] if row.ours else COLOURS[1]
        parts += [
            _text(LABELS - 6, top + 12, row.label, anchor="end"),
            f'<rect x="{LABELS}" y="{top + 2}" width="{length:.1f}" height="{BAR - 6}" '
            f'fill="{colour}"/>',
            _text(LABELS + length + 4, top + 12, row.text),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    scale, last = round_up(panel.highest), panel.last or 1.0
    parts = [_text(left + 4, top - 4, panel.title)]
    for share in (0, 0.5, 1):
        y = top + HEIGHT * (1 - share)
        parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#d0d7de" fill="none"/>')
        parts.append(_text(left - 4, y + 4, f"{share * scale:g}", anchor="end"))
    for second in range(0, int(last) + 1, max(1, round(round_up(last / 5)))):
        x = left + WIDTH * second / last
        parts.append(_text(x, top + HEIGHT + 13, str(second), anchor="middle"))
    for number, line in enumerate(panel.lines):
        colour = COLOURS[number % len(COLOURS)]
        scaled = [(left + WIDTH * x / last, top + HEIGHT * (1 - y / scale)) for x, y in line.points]
        parts.append(
            f'<path d="{_path(scaled, line.steps)}" stroke="{colour}" stroke-width="1.5" '
            'fill="none"/>'
        )
        if len(panel.lines) > 1:
            x = left + WIDTH - 4
            parts.append(_text(x, top + 10 + 13 * number, line.name, anchor="end", fill=colour))
    return parts


def _path(points: Points, steps: bool) -> str:
    """The commands that draw the points, after which nothing is to be closed."""
    if not points:
        return ""
    (x, y), *others = points
    commands = [f"M{x:.1f} {y:.1f}"]
    for x, y in others:
        commands.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(commands)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "", fill: str = ""
) -> str:
    style = (f' font-weight="{weight}"' if weight else "") + (f' fill="{fill}"' if fill else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 10, 20, … that is not less."""
    if value <= 0:
        return 1.0
    power: float = 10 ** floor(log10(value))
    return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= value * (1 - 1e-9))
