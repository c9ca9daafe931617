"""Results that were promised, and how the promises are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result, note


@dataclass(frozen=True)
class Goal(Result):
    """A number that should not be larger than ``at_most``, nor smaller than ``at_least``."""

    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        over = self.at_most is not None and self.value > self.at_most
        under = self.at_least is not None and self.value < self.at_least
        return not (over or under)

    @property
    def promise(self) -> str:
        """The bounds, for people."""
        bounds = (("at most", self.at_most), ("at least", self.at_least))
        return " and ".join(f"{word} {bound:.3g}" for word, bound in bounds if bound is not None)


def known_results(file: Path) -> list[Result]:
    """The results in a file."""
    found = json.loads(file.read_text())
    return [Goal(**each) if "at_most" in each else Result(**each) for each in found]


def merged(file: Path, taken: Sequence[Result]) -> list[Result]:
    """What is in a file already, without what was taken anew, and that."""
    known = known_results(file) if file.exists() else []
    names = {result.name for result in taken}
    return [*(result for result in known if result.name not in names), *taken]


def note_goals(results: Sequence[Result]) -> None:
    """Say which goals were met."""
    for goal in results:
        if isinstance(goal, Goal):
            verdict = "met" if goal.met else "MISSED"
            note(f"{goal.name}: {goal.value:.3g} {goal.unit}, goal {goal.promise}: {verdict}")


def note_table(rows: Sequence[Sequence[str]]) -> None:
    """Say several things at once, in columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        note("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))
