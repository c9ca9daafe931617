"""The keys of blocks, as the numbers under which window state has them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.ring.keys import decode_keys
from millstream.state.blocks import KEY, SLOT
from millstream.state.panes.keys import Ids, KeyIds
from millstream.work.keyed_values import one_key_type


def key_ids(job: JobVertex, keys: KeyIds, blocks: Sequence[pa.RecordBatch]) -> list[Ids]:
    """For each block, the numbers of its keys; keys of different types are rejected."""
    # To a dictionary 1, True and 1.0 are one key.
    one_key_type(job, [block.column(KEY) for block in blocks])
    return [
        keys.find(decode_keys(block.column(KEY)), block.column(SLOT).to_numpy()) for block in blocks
    ]
