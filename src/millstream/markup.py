"""HTML for notebooks: tables, notes and parts that unfold, of escaped text.

There is no way to pass HTML in: whatever is shown is text. Notebooks bring the colours, of dark and
of light pages, and everything here inherits them. Styles are attributes, because many viewers
remove style sheets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NewType

Html = NewType("Html", str)

_TABLE = "border-collapse:collapse;margin:0 0 1em;color:inherit;font-variant-numeric:tabular-nums"
_CAPTION = "caption-side:top;text-align:left;font-weight:600;padding:.3em 0;color:inherit"
_CELL = "padding:.25em 1.2em .25em 0;vertical-align:top;color:inherit;background:none"


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Columns with headers; numbers to the right, None as a dash."""
    body = [list(row) for row in rows]
    flush = [
        bool(body) and all(_is_number(row[at]) or row[at] is None for row in body)
        for at in range(len(headers))
    ]
    head = "".join(
        f'<th scope="col" style="{_style(right)};border-bottom:1px solid">{escape(header)}</th>'
        for header, right in zip(headers, flush, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(
            f'<td style="{_style(right)}">{_text(cell)}</td>'
            for cell, right in zip(row, flush, strict=True)
        )
        + "</tr>"
        for row in body
    )
    return _table(caption, f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>")


def facts(caption: str, named: Iterable[tuple[str, object]]) -> Html:
    """Names with their values, one to a line; those that are None are left out."""
    lines = "".join(
        f'<tr><th scope="row" style="{_style(False)}">{escape(name)}</th>'
        f'<td style="{_style(False)}">{_text(value)}</td></tr>'
        for name, value in named
        if value is not None
    )
    return _table(caption, f"<tbody>{lines}</tbody>")


def note(text: str) -> Html:
    """A sentence."""
    return Html(f'<p style="margin:0 0 1em">{escape(text)}</p>')


def unfolding(summary: str, content: Html) -> Html:
    """What is shown when its summary is selected."""
    return Html(f"<details><summary>{escape(summary)}</summary>{content}</details>")


def block(*parts: Html) -> Html:
    """Parts, one below the other."""
    return Html(f"<div>{''.join(parts)}</div>")


def _table(caption: str, content: str) -> Html:
    title = f'<caption style="{_CAPTION}">{escape(caption)}</caption>'
    return Html(f'<table style="{_TABLE}">{title}{content}</table>')


def _style(right: bool) -> str:
    return f"{_CELL};text-align:{'right' if right else 'left'}"


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _text(cell: object) -> str:
    if cell is None:
        return "&ndash;"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return escape(f"{cell:,.2f}" if isinstance(cell, float) else str(cell))
