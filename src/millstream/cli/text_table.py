"""What commands print for people: aligned tables, and moments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.times import instant


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns side by side; numbers to the right."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    columns = list(zip(headers, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(cells) and all(_is_number(cell) for cell in column[1:]) for column in columns]
    lines = []
    for row in [list(headers), *cells]:
        aligned = [
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def _cell(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "-" if cell is None else str(cell)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").removeprefix("-").isdigit() or cell == "-"


def moment(time: int) -> str:
    """A time in microseconds, in UTC."""
    return f"{instant(time):%Y-%m-%d %H:%M:%S}Z"
