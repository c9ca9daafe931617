"""The history of load that policies see: bounded in number, and long enough in time."""

from __future__ import annotations

from millstream.elastic.load import Load


def with_newest(
    history: tuple[Load, ...], load: Load, *, most: int, span: float
) -> tuple[Load, ...]:
    """Add a load to a history, the newest last, of at most so many loads.

    Where epochs are short, some are left out, so that the history still reaches back ``span``
    seconds: nodes are removed only after a time of low load.
    """
    step = span / max(1, most - 2)
    # The newest was kept for its own sake; now it must have its distance to the one before it.
    crowded = len(history) > 1 and history[-1].time - history[-2].time < step
    return (*history[: len(history) - crowded], load)[-most:]
