"""Which windows there are: arithmetic on times, sizes and slides."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from millstream.flow.windows import TimeWindow
from millstream.times import BEGINNING, END


def ends_within(
    window: TimeWindow, after: int, until: int, panes: Sequence[int], pane: int
) -> Iterator[int]:
    """The ends in (after, until] of windows that any of the panes lies in, in order.

    Panes are the starts of those that have rows, in order, and of one length.
    """
    size, slide = window.size, window.slide
    at = 0
    end = max(after, BEGINNING)
    while at < len(panes):
        # The next end that is later, and whose window reaches the next pane.
        least = max(end + 1, panes[at] + pane)
        end = least + (size - least) % slide  # ends lie at a multiple of the slide plus the size
        if end > until:
            return
        at = bisect_left(panes, end - size)
        if at < len(panes) and panes[at] < end:
            yield end


def first_open_start(window: TimeWindow, watermark: int) -> int:
    """The start of the oldest window that is not closed."""
    if watermark >= END:
        return END
    if watermark <= BEGINNING:
        return BEGINNING
    return (watermark - window.size) // window.slide * window.slide + window.slide
