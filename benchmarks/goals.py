"""Results that were promised, and how the promises are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import Result, note


@dataclass(frozen=True)
class Goal(Result):
    """A number that should not be larger than ``at_most``."""

    at_most: float

    @property
    def met(self) -> bool:
        return self.value <= self.at_most


def note_goals(results: Sequence[Result]) -> None:
    """Say which goals were met."""
    for goal in results:
        if isinstance(goal, Goal):
            verdict = "met" if goal.met else "MISSED"
            note(f"{goal.name}: {goal.value:.3g} {goal.unit}, goal {goal.at_most:.3g}: {verdict}")


def note_table(rows: Sequence[Sequence[str]]) -> None:
    """Say several things at once, in columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        note("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))
