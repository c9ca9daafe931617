from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from millstream.wire.receipts import Receipt


@pytest.mark.parametrize("key_type", [None, pa.string(), pa.struct([("_1", pa.int64())])])
@pytest.mark.parametrize("output", [None, pa.schema([("key", pa.string(), False)], {"a": "b"})])
def test_a_receipt_keeps_its_types_on_the_wire(
    key_type: pa.DataType | None, output: pa.Schema | None
) -> None:
    receipt = Receipt(3, 7, 0, range(8), "x", 1, key_type=key_type, output=output)

    arrived = [pickle.loads(pickle.dumps(receipt)) for _ in range(2)]

    assert arrived == [receipt, receipt]
    if output is not None:
        assert arrived[0].output.metadata == output.metadata
    assert arrived[0].output is arrived[1].output  # equal types are one object
