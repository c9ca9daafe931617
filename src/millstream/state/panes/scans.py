"""Prefix scans: for each row, the merge of all rows up to it, or from it on.

Neighbours are merged in pairs, the pairs are scanned recursively, and rows between two pairs are
merged again. So each row is merged about twice, in few vectorised steps.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from millstream.state.aggregates.grouping import Ints
from millstream.state.panes.tables import Algebra

A = TypeVar("A")


def prefixes(algebra: Algebra[A], rows: A, segments: Ints) -> A:
    """Each row merged with those before it in its segment; the rows of a segment are together."""
    return _scanned(algebra, rows, segments, forward=True)


def suffixes(algebra: Algebra[A], rows: A, segments: Ints) -> A:
    """Each row merged with those after it in its segment."""
    return _scanned(algebra, rows, segments, forward=False)


def _scanned(algebra: Algebra[A], rows: A, segments: Ints, forward: bool) -> A:
    size = len(segments)
    first = np.ones(size, bool)
    first[1:] = segments[1:] != segments[:-1]
    if first.all():
        return rows
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, size))
    rank = np.arange(size) - np.repeat(starts, lengths)
    if not forward:
        rank = np.repeat(lengths, lengths) - 1 - rank
    odd = rank % 2 == 1
    begins = first | (~odd if forward else odd)
    pairs = np.cumsum(begins) - 1
    number = int(pairs[-1]) + 1
    paired = algebra.merge(rows, pairs, number)
    of_pairs = _scanned(algebra, paired, segments[begins], forward)
    at = np.where(odd, size + pairs, np.arange(size))
    parts = [rows, of_pairs]
    between = np.flatnonzero(~odd & (rank > 0))
    if len(between):
        own = algebra.take(rows, between)
        others = algebra.take(of_pairs, pairs[between] + (-1 if forward else 1))
        both = algebra.concat([others, own] if forward else [own, others])
        groups = np.tile(np.arange(len(between)), 2)
        parts.append(algebra.merge(both, groups, len(between)))
        at[between] = size + number + np.arange(len(between))
    return algebra.take(algebra.concat(parts), at)
