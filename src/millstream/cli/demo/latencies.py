"""How long epochs took before, during and after each scene of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_COMPARED = 10  # epochs before a scene, and after it


@dataclass(frozen=True)
class Scene:
    """Something that was done to the run: the epochs that had been committed at its begin and end.

    ``note`` is what came of it.
    """

    name: str
    began: int
    ended: int
    note: str = ""


def table(scenes: Sequence[Scene], seconds: Sequence[float]) -> list[str]:
    """The scenes with the latencies around them, from how long each epoch took."""
    rows = [("", "before", "longest", "after", "")]
    for scene in scenes:
        before = seconds[max(0, scene.began - _COMPARED) : scene.began]
        # An epoch that was under way when the scene began, or ended, belongs to it.
        during = seconds[scene.began : scene.ended + 1]
        after = seconds[scene.ended + 1 : scene.ended + 1 + _COMPARED]
        rows.append(
            (
                scene.name,
                _shown(median(before) if before else None),
                _shown(max(during, default=None)),
                _shown(median(after) if after else None),
                scene.note,
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in (1, 2, 3)), row[4]]
        ).rstrip()
        for row in rows
    ]


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"
