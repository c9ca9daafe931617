"""Which of Spark's notes a new incarnation goes on with. No I/O.

Each incarnation has notes of its own: the offsets of the epochs that it has cut, and the commits
of those that it has finished. A new one takes over those of an earlier one up to an epoch, and
the cut of the epoch behind it if there is one already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["offsets", "commits"]


@dataclass(frozen=True)
class Origin:
    """Where an incarnation began: behind which epoch, and whose notes it took over."""

    after: int
    source: int | None


def find_log_origin(
    incarnation: int,
    after: int,
    by: int | None,
    finished: Mapping[int, Origin],
    entries: Callable[[int, Kind], Collection[int]],
) -> tuple[int | None, list[int]]:
    """The earlier incarnation to go on from behind an epoch, and the epochs to take over.

    ``finished`` are the incarnations whose notes were begun completely. ``by`` is the one that
    committed the epoch, if that is known: another one may have cut it differently, and lost.
    Without any that suffices: None, and the epochs that there are.
    """
    earlier = [number for number in finished if number < incarnation]
    at = by if by in earlier else max(earlier, default=None)
    known: set[int] = set()
    limit = math.inf
    while at is not None and (origin := finished.get(at)) is not None:
        # Commits first: Spark writes an epoch's commit before the next one's offsets.
        commits, epochs = entries(at, "commits"), entries(at, "offsets")
        # The cut that Spark has made for the next epoch is kept: it runs with the same rows.
        kept = sorted(epoch for epoch in epochs if epoch <= after + (after in commits))
        if after in epochs and _suffices(kept):
            return at, kept
        known.update(epoch for epoch in epochs if epoch <= limit)
        # What this one has cut itself and purged since is nowhere else. An older one may have an
        # epoch of that number, too, cut by a driver that woke up and was refused.
        if origin.after < after <= max(epochs, default=-1):
            break
        at, limit = origin.source, origin.after
    return None, sorted(known)


def _suffices(kept: Sequence[int]) -> bool:
    """Spark wants the last two epochs, to know where the last one began."""
    return kept[-1] == 0 or kept[-1] - 1 in kept
