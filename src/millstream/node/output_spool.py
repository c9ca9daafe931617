"""Outputs that wait in a node for the commit of their epoch: in memory, or on disk past a bound.

Spilled outputs are one Arrow file for each unit, memory-mapped and unlinked at once: batches read
from the mapping, and the disk space is freed with the last of them, at a seal, at the end of a try,
or when the process ends.
"""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

log = logging.getLogger("millstream")

OUTPUT_BYTES = 256 * 2**20


class OutputSpool:
    """Bounds what the outputs of a node take in memory.

    ``folder`` returns the folder of the files; it is called when one is written.
    """

    def __init__(self, folder: Callable[[], str], limit: int = OUTPUT_BYTES) -> None:
        self._folder = folder
        self._limit = limit
        # By batch, while it is referenced. A dictionary and not a sum: batches may be freed at any
        # moment, also in the middle of an addition.
        self._held: dict[int, int] = {}

    @property
    def held(self) -> int:
        """The bytes of outputs in memory."""
        return sum(list(self._held.values()))

    def bound(self, outputs: list[pa.RecordBatch]) -> None:
        """Count the outputs of a unit; if they exceed the bound, spill them in place.

        A concurrent reader of the list finds the same rows before and after.
        """
        size = sum(batch.nbytes for batch in outputs)
        if not size:
            return
        if self.held + size > self._limit:
            try:
                outputs[:] = self._spilled(outputs)
                return
            except OSError as problem:
                log.warning(
                    "could not spill outputs of %d bytes beyond the bound of %d: %s",
                    size,
                    self._limit,
                    problem,
                )
        for batch in outputs:
            self._held[id(batch)] = batch.nbytes
            weakref.finalize(batch, self._held.pop, id(batch), None).atexit = False

    def _spilled(self, outputs: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        handle, name = tempfile.mkstemp(prefix="millstream-outputs-", dir=self._folder())
        os.close(handle)
        try:
            with pa.OSFile(name, "wb") as file, pa.ipc.new_file(file, outputs[0].schema) as writer:
                for batch in outputs:
                    writer.write_batch(batch)
            reader = pa.ipc.open_file(pa.memory_map(name))
            return [reader.get_batch(at) for at in range(reader.num_record_batches)]
        finally:
            with suppress(OSError):
                Path(name).unlink()


def scratch_folder() -> str:
    """Spark's local directory, or the system's temporary directory."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or tempfile.gettempdir()
