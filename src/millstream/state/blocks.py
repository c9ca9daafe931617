"""Blocks: how keyed rows travel from a map task to a node.

A block is one Arrow record batch in IPC form: a ``key`` column, the ``slot`` of each key, and
further columns by the form of the reducer. Rows are ordered by slot and then by hash, so that a
re-run of the same map gives the same bytes, and the share of any slot range is one slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.hashing import hash_column, slot_of

KEY = "key"
SLOT = "millstream.slot"  # users' rows may have a column called "slot"
# Of windowed jobs: the pane of a row in a block; and, in outputs, the window that a row is a
# result of and its event time.
PANE = "millstream.pane"
WINDOW = "millstream.window"
TIME = "millstream.time"
# Of jobs with timers: the newest event time of a key's values in a block.
NEWEST = "millstream.newest"
INTERNAL = "millstream."  # how the names of our columns begin
EVENT_TIME = "time"  # the event time of a value, in tables that users read
_SIGN = np.uint64(1 << 63)
_OPTIONS = pa.ipc.IpcWriteOptions(compression=None)


@dataclass(frozen=True, order=True)
class Origin:
    """Where a block came from; blocks are reduced in this order."""

    stage: int
    task: int
    sequence: int


def place_rows(keys: pa.Array, slots: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The slot of each key, and the order of rows by slot and hash."""
    hashes = hash_column(keys)
    slot = slot_of(hashes, slots)
    return slot, _order(hashes, slot, slots)


def _order(
    hashes: npt.NDArray[np.int64], slot: npt.NDArray[np.int32], slots: int
) -> npt.NDArray[np.int64]:
    bits = slots.bit_length() - 1
    if slots == 1 << bits and bits:
        # The slot is the low bits of the hash. As the high ones, one sort by one number will do.
        unsigned = hashes.view(np.uint64) ^ _SIGN
        ranks = (unsigned >> np.uint64(bits)) | (slot.astype(np.uint64) << np.uint64(64 - bits))
        order = np.argsort(ranks)
        ranks = ranks[order]
        if not (ranks[1:] == ranks[:-1]).any():  # else equal hashes remain in their order
            return order
    return np.lexsort((hashes, slot))


def keys_in_order(keys: pa.Array, slots: int) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int64]]:
    """Keys and their slots by slot and hash, and the order itself."""
    slot, order = place_rows(keys, slots)
    return keys.take(pa.array(order)), pa.array(slot[order], pa.int32()), order


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """Serialise one batch with its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_bytes(block: bytes | pa.Buffer) -> pa.RecordBatch:
    """Read what ``to_bytes`` wrote, without copying the data."""
    with pa.ipc.open_stream(block) as reader:
        return reader.read_next_batch()


def slices(
    batch: pa.RecordBatch, bounds: Sequence[int] | npt.NDArray[np.int64]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a block's rows at slot bounds: ``(i, rows with bounds[i] <= slot < bounds[i + 1])``."""
    slots = batch.column(SLOT).to_numpy()
    cuts = np.searchsorted(slots, np.asarray(bounds))
    for index in range(len(bounds) - 1):
        start, stop = int(cuts[index]), int(cuts[index + 1])
        if stop > start:
            yield index, batch.slice(start, stop - start)
