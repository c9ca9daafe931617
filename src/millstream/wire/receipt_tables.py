"""Receipts as tables: the coordinator joins those of all nodes, and compares them as arrays.

A run may have thousands of receipts in every epoch, and few of their fields are needed for all of
them. Digests are compared by their fingerprints, which are what a commit names.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.wire.commit import UNITS, fingerprint
from millstream.wire.packed_types import packed_type, unpacked_type

if TYPE_CHECKING:
    from millstream.wire.receipts import CopyReceipt, Receipt, Runs

FROZEN = np.dtype(
    [
        *((name, "<i4") for name in ("job", "start", "stop", "try_", "types")),
        *((name, "<i8") for name in ("epoch", "rows", "keys", "outputs")),
        ("seconds", "<f8"),
        ("fingerprint", "<u8"),
    ]
)
"""A receipt; ``types`` is the index of its types."""
REACH = np.dtype([("start", "<i4"), ("value", "<i8")])
"""The slot from which on a value holds, up to the next row."""
Table: TypeAlias = npt.NDArray[np.void]
Sources: TypeAlias = npt.NDArray[np.int64]

_FROZEN_ROW = struct.Struct("<5i4qdQ")
_COPY_ROW = struct.Struct("<3iQ")
_REACH_ROW = struct.Struct("<iq")
assert (_FROZEN_ROW.size, _COPY_ROW.size, _REACH_ROW.size) == (
    FROZEN.itemsize,
    UNITS.itemsize,
    REACH.itemsize,
)


class ReceivedTypes(NamedTuple):
    """The types of some receipts of a job, and a key of one of them, for error messages."""

    packed_key: bytes
    packed_output: bytes
    key: str

    @property
    def key_type(self) -> pa.DataType | None:
        kind: pa.DataType | None = unpacked_type(self.packed_key)
        return kind

    @property
    def output(self) -> pa.Schema | None:
        schema: pa.Schema | None = unpacked_type(self.packed_output)
        return schema


class ReceiptTables(NamedTuple):
    """The receipts of a node: rows of ``FROZEN``, of ``UNITS`` for its copies, and of ``REACH``."""

    frozen: bytes
    copies: bytes
    reach: bytes
    types: tuple[ReceivedTypes, ...]

    @classmethod
    def of(
        cls, receipts: Sequence[Receipt], copies: Sequence[CopyReceipt], reach: Runs
    ) -> ReceiptTables:
        """Pack the receipts of a node."""
        # Nearly all receipts of a node have the same objects as types.
        indexes: dict[tuple[int, int], int] = {}
        types: list[ReceivedTypes] = []
        rows = []
        for r in receipts:
            index = indexes.setdefault((id(r.key_type), id(r.output)), len(types))
            if index == len(types):
                types.append(ReceivedTypes(packed_type(r.key_type), packed_type(r.output), r.key))
            place = r.job, r.slots.start, r.slots.stop, r.try_, index
            counts = r.epoch, r.rows, r.keys, r.outputs, r.seconds
            rows.append(_FROZEN_ROW.pack(*place, *counts, fingerprint(r.digest)))
        return cls(
            b"".join(rows),
            b"".join(
                _COPY_ROW.pack(c.job, c.slots.start, c.slots.stop, fingerprint(c.digest))
                for c in copies
            ),
            packed_reach(reach),
            tuple(types),
        )


def packed_reach(reach: Runs) -> bytes:
    """Rows of ``REACH``."""
    return b"".join(_REACH_ROW.pack(start, value) for start, value in reach)


def joined(parts: Sequence[bytes], kind: np.dtype[np.void]) -> tuple[Table, Sources]:
    """The rows of all parts, and the part that each row is from."""
    counts = np.array([len(part) for part in parts], np.int64) // kind.itemsize
    return np.frombuffer(b"".join(parts), kind), np.repeat(np.arange(len(parts)), counts)
