from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from millstream.ring.keys import canonical_key, decode_keys, encode_keys, infer_type
from millstream.ring.scalars import plain_value

DAY = dt.datetime(2024, 2, 29)
SAID: list[tuple[Any, Any]] = [
    (np.int64(7), 7),
    (np.uint8(7), 7),
    (np.float64(1.5), 1.5),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.bytes_(b"a"), b"a"),
    (np.datetime64("2024-02-29"), DAY.date()),
    (np.datetime64("2024-02"), dt.date(2024, 2, 1)),
    (np.datetime64("2024-02-29T00", "h"), DAY),
    (np.datetime64("2024-02-29T00:00:00", "ns"), DAY),
    (pd.Timestamp(DAY), DAY),
    (pd.Timestamp(DAY, tz="UTC"), DAY.replace(tzinfo=dt.UTC)),
    (pd.Timestamp(DAY, tz="Europe/Paris"), dt.datetime(2024, 2, 28, 23, tzinfo=dt.UTC)),
]
by_name = [repr(scalar) for scalar, _ in SAID]


@pytest.mark.parametrize(("scalar", "said"), SAID, ids=by_name)
def test_a_scalar_becomes_a_plain_value(scalar: Any, said: Any) -> None:
    found = plain_value(scalar)

    assert found == said
    assert type(found) is type(said)


@pytest.mark.parametrize(("scalar", "said"), SAID, ids=by_name)
def test_a_scalar_key_equals_its_plain_value(scalar: Any, said: Any) -> None:
    for key, expected in ((scalar, said), (("a", scalar), ("a", said))):
        encoded = encode_keys([key, expected])

        assert encoded.type == infer_type([expected])
        assert decode_keys(encoded) == [expected, expected]
        assert canonical_key(key, encoded.type) == expected


@pytest.mark.parametrize(
    ("scalar", "said"),
    [
        (np.timedelta64(5, "s"), dt.timedelta(seconds=5)),
        (np.timedelta64("NaT"), None),
        (pd.Timedelta("5s"), dt.timedelta(seconds=5)),
        (pd.NaT, None),
        (pd.NA, None),
    ],
    ids=repr,
)
def test_lengths_of_time_and_what_is_missing(scalar: Any, said: Any) -> None:
    assert plain_value(scalar) == said


@pytest.mark.parametrize(
    "scalar",
    [
        np.datetime64("2024-02-29T00:00:00.000000001"),
        np.datetime64(2**60, "s"),
        np.timedelta64(1, "ns"),
        np.timedelta64(1, "M"),
        np.longdouble(1),
        pd.Timestamp("2024-02-29 00:00:00.000000001"),
        pd.Timedelta(1),
    ],
    ids=repr,
)
def test_what_no_value_of_python_equals_stays_as_it_is(scalar: Any) -> None:
    assert plain_value(scalar) is scalar


def test_integers_and_floats_of_numpy_do_not_mix_either() -> None:
    for keys in ([np.int64(1), np.float64(1)], [1, np.float32(1)], [np.bool_(True), np.int8(1)]):
        with pytest.raises(Exception, match="one type"):
            encode_keys(keys)


def test_pandas_is_not_imported_for_it() -> None:
    code = (
        "import sys; from millstream.ring.scalars import plain_value; "
        "plain_value(1); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_keys_of_numpy_are_one_column() -> None:
    keys = list(np.arange(1000))

    assert encode_keys(keys).equals(pa.array(range(1000), pa.int64()))
