"""Processing large tables in strides, to release the interpreter lock.

Python switches threads between two calls, never inside of one that makes, looks up or pickles
objects: over a million of them it would hold the lock for a tenth of a second and more.
"""

from __future__ import annotations

from collections.abc import Iterator

AT_ONCE = 32_768


def strides(count: int) -> Iterator[slice]:
    """Slices that together cover so many objects, each of which takes a few milliseconds."""
    for start in range(0, count, AT_ONCE):
        yield slice(start, min(start + AT_ONCE, count))
