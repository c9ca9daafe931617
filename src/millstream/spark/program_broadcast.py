"""How the program of a run gets to Spark's workers: with every stage, or, if it is large, once.

A user's function may hold a table or a model. PySpark broadcasts a function of more than a
megabyte anew whenever it is used, and retains the file of each such broadcast as long as the
session.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pyspark import SparkContext
from pyspark.core.broadcast import Broadcast

from millstream.spark.gateway import BROKEN
from millstream.work.program import Packed

_LARGE = 1 << 18  # well below PySpark's limit: a stage has more than the program


@dataclass(frozen=True, repr=False)
class BroadcastProgram(Packed):
    """A pickled program that is broadcast."""

    broadcast: Broadcast[bytes]

    def read(self) -> bytes:
        return self.broadcast.value


def shipped(context: SparkContext, packed: Packed, cleanup: contextlib.ExitStack) -> Packed:
    """The program as stages get it; a broadcast ends with ``cleanup``."""
    if len(packed.data) < _LARGE:
        return packed
    broadcast = context.broadcast(packed.data)
    cleanup.callback(_destroy, broadcast)
    return BroadcastProgram(packed.digest, b"", broadcast)


def _destroy(broadcast: Broadcast[bytes]) -> None:
    with contextlib.suppress(*BROKEN):  # there is nothing to remove in a JVM that has ended
        broadcast.destroy()
