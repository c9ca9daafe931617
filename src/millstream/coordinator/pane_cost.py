"""Whether overlapping windows should share panes: measured rates, and the cost rule.

With panes, a window is merged from ``size / pane`` partial results; without, every value is added
to each window. Panes pay when the values of a key that windows have in common are more than the
panes of a window (``Windowing.paying_rate``). No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DECAY: Final = 0.9
_ENOUGH: Final = 2.5  # three epochs with values, the older ones decayed
_MARGIN: Final = 1.25
_SECOND: Final = 1e6


@dataclass(frozen=True)
class Rate:
    """Exponentially decaying sums over epochs with values."""

    rows: float = 0.0
    seconds: float = 0.0
    keys: float = 0.0
    epochs: float = 0.0

    def plus(self, rows: int, progress: int, keys: int) -> Rate:
        """The rate with another epoch: its values, the progress of event time, and its keys."""
        return Rate(
            self.rows * _DECAY + rows,
            self.seconds * _DECAY + progress / _SECOND,
            self.keys * _DECAY + keys,
            self.epochs * _DECAY + 1,
        )

    @property
    def per_key(self) -> float | None:
        """Values of a key in a second of event time; None until there are enough epochs."""
        if self.epochs < _ENOUGH or self.seconds <= 0 or self.keys <= 0:
            return None
        return self.rows / self.seconds / (self.keys / self.epochs)


def folds(rate: float | None, paying: float | None, before: bool) -> bool:
    """Whether to aggregate values into panes, which pays from a rate on.

    With hysteresis: the former decision stays unless it costs clearly more.
    """
    if rate is None or paying is None:
        return before
    return rate > paying * (1 / _MARGIN if before else _MARGIN)
