"""Frames of processors, without Spark: what is read of rows, and what results are encoded to."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from millstream.spark.processor_rows import Frames
from millstream.state.values import ValueTypeError

LARGE = 2**53 + 1
DAY = "2026-01-01"
FRAMES = Frames("Asia/Tokyo")


def encoded(kind: pa.DataType, *columns: Any) -> list[Any]:
    schema = pa.schema([("v", kind)])
    found = FRAMES.encode([pd.DataFrame({"v": column}) for column in columns], schema)
    found.validate(full=True)
    values: list[Any] = found.column("v").to_pylist()
    return values


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (pa.int64(), ([LARGE], [float("nan")], [LARGE])),
        (pa.int64(), (pd.array([LARGE], dtype="Int64"), [1.0], ["7"])),
        (pa.string(), ([3], ["x"], [1.5], [True], [None])),
        (pa.string(), (pd.Series([3], dtype=object), pd.Series([1.5], dtype=object), ["x"])),
        (pa.string(), ([float("nan")], [float("nan")], ["x"])),
        (pa.bool_(), ([True], [1.0], [None])),
        (pa.decimal128(20, 0), ([LARGE], [Decimal(5)])),
        (
            pa.timestamp("us", "UTC"),
            ([pd.Timestamp(DAY)], [pd.Timestamp(DAY, tz="UTC")], [None], [DAY], [f"{DAY} 10:00"]),
        ),
        (pa.timestamp("us"), ([pd.Timestamp(DAY, tz="UTC")], [pd.NaT], [pd.Timestamp(DAY)])),
    ],
)
def test_the_output_of_a_key_does_not_depend_on_that_of_others(
    kind: pa.DataType, columns: tuple[Any, ...]
) -> None:
    alone = [value for column in columns for value in encoded(kind, column)]

    assert encoded(kind, *columns) == alone
    assert encoded(kind, *reversed(columns)) == alone[::-1]


def test_a_large_integer_beside_nan_is_kept() -> None:
    assert encoded(pa.int64(), [LARGE], [float("nan")]) == [LARGE, None]


def test_a_misfit_has_the_row_of_its_frame() -> None:
    with pytest.raises(ValueTypeError) as caught:
        encoded(pa.int64(), [1], [2], ["x"], ["y"])

    assert caught.value.row == 2


def write_a_row(frame: pd.DataFrame) -> None:
    frame.loc[0, "x"] = 7.0


def write_the_values(frame: pd.DataFrame) -> None:
    frame["x"].to_numpy()[:] = 7.0


def change_in_place(frame: pd.DataFrame) -> None:
    frame["x"] *= 7.0


@pytest.mark.parametrize("write", [write_a_row, write_the_values, change_in_place])
def test_a_processor_can_write_into_its_frame(write: Callable[[pd.DataFrame], None]) -> None:
    rows = pa.record_batch({"id": ["a", "b"], "x": [1.0, 2.0]})
    [one], [other] = (list(FRAMES.given(part)) for part in FRAMES.read(rows, [0, 1, 2]))

    write(one)

    assert one["x"].tolist() == [7.0]
    assert other["x"].tolist() == [2.0]
    assert rows.column("x").to_pylist() == [1.0, 2.0]
