from __future__ import annotations

import datetime as dt
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.ring.hashing import hash_column, hash_key, slot_of
from millstream.ring.keys import KeyTypeError, encode_keys
from tests.ring.key_strategies import TYPES, columns, untimed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN: dict[str, list[tuple[Any, int]]] = json.loads(
    (Path(__file__).parent / "golden_hashes.json").read_text()
)


def revive(tagged: Any) -> object:
    """Return the key that a golden vector holds under the name of its type."""
    if tagged is None:
        return None
    ((kind, value),) = tagged.items()
    match kind:
        case "tuple":
            return tuple(map(revive, value))
        case "int":
            return int(value)
        case "float":
            return float(value)
        case "bytes":
            return bytes.fromhex(value)
        case "datetime":
            return dt.datetime.fromisoformat(value)
        case "date":
            return dt.date.fromisoformat(value)
    return value


def random_key(rng: random.Random, type: pa.DataType) -> object:
    """Return a seeded random key; most strings are short, as keys are."""
    if rng.random() < 0.1:
        return None
    if pa.types.is_struct(type):
        return tuple(random_key(rng, field.type) for field in type)
    epoch = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=rng.randrange(-(10**15), 10**15))
    size = rng.randrange(32) if rng.random() < 0.97 else rng.randrange(200)
    made: dict[pa.DataType, object] = {
        pa.string(): "".join(rng.choices("abcé水 😀", k=size // 3)),
        pa.binary(): rng.randbytes(size),
        pa.int64(): rng.randrange(-(2**63), 2**63),
        pa.float64(): rng.choice([0.0, -0.0, float("nan"), rng.gauss(0, 1e9)]),
        pa.bool_(): rng.random() < 0.5,
        pa.date32(): epoch.date(),
        pa.timestamp("us", tz="UTC"): epoch.replace(tzinfo=dt.UTC),
        pa.timestamp("us"): epoch,
    }
    return made[type]


@pytest.mark.parametrize("name", TYPES)
def test_the_golden_hashes_of_the_jvm_are_reproduced(name: str) -> None:
    keys = [revive(tagged) for tagged, _ in GOLDEN[name]]
    expected = [hash for _, hash in GOLDEN[name]]

    assert hash_column(encode_keys(keys, TYPES[name])).tolist() == expected
    assert [hash_key(key, TYPES[name]) for key in keys] == expected


@pytest.mark.parametrize("name", TYPES)
def test_long_columns_hash_like_their_keys_one_by_one(name: str) -> None:
    rng = random.Random(name)
    keys = [random_key(rng, TYPES[name]) for _ in range(20_000)]

    hashes = hash_column(encode_keys(keys, TYPES[name]))

    assert hashes.dtype == np.int64
    assert hashes.tolist() == [hash_key(key, TYPES[name]) for key in keys]


@pytest.mark.parametrize("share_of_long", [0.0, 0.01, 0.5, 1.0])
def test_long_strings_among_short_ones_hash_like_their_keys(share_of_long: float) -> None:
    rng = random.Random(7)
    keys = [
        "k" * (rng.randrange(32, 99) if rng.random() < share_of_long else rng.randrange(32))
        for _ in range(5_000)
    ]

    hashes = hash_column(encode_keys(keys))

    assert hashes.tolist() == [hash_key(key, pa.string()) for key in keys]


@untimed
@given(columns)
def test_short_columns_hash_like_their_keys_one_by_one(
    column: tuple[pa.DataType, list[object]],
) -> None:
    type, keys = column

    assert hash_column(encode_keys(keys, type)).tolist() == [hash_key(key, type) for key in keys]


@pytest.mark.parametrize("name", TYPES)
def test_a_slice_hashes_like_the_same_rows_of_the_whole(name: str) -> None:
    rng = random.Random(name)
    array = encode_keys([random_key(rng, TYPES[name]) for _ in range(9_000)], TYPES[name])

    whole = hash_column(array)

    assert hash_column(array.slice(3, 4_500)).tolist() == whole[3:4_503].tolist()
    assert hash_column(array.slice(8_990)).tolist() == whole[8_990:].tolist()


def test_values_hidden_under_a_null_struct_do_not_count() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array(["seen", "hidden"])], names=["_1"], mask=pa.array([False, True])
    )

    assert hash_column(hidden)[1] == 42


def test_zeros_and_nans_hash_alike_whatever_their_bits() -> None:
    bits = [0x8000000000000000, 0, 0xFFF8000000000001, 0x7FF8000000000000]
    floats = pa.array(bits, pa.uint64()).view(pa.float64())

    hashes = hash_column(floats).tolist()

    assert hashes == [hash_key(key, pa.float64()) for key in (0.0, 0.0, math.nan, math.nan)]


@pytest.mark.parametrize("rows", [0, 1, 3_000])
def test_columns_of_nothing_hash_to_the_seed(rows: int) -> None:
    for type in [pa.null(), *TYPES.values()]:
        assert hash_column(encode_keys([None] * rows, type)).tolist() == [42] * rows


@pytest.mark.parametrize("rows", [0, 1])
def test_a_column_that_is_not_canonical_is_refused(rows: int) -> None:
    with pytest.raises(KeyTypeError, match="int64"):
        hash_column(pa.array([1] * rows, pa.int32()))


@untimed
@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(1, 2**31 - 1))
def test_a_slot_is_the_positive_remainder(hashes: list[int], slots: int) -> None:
    found = slot_of(np.array(hashes, np.int64), slots)

    assert found.dtype == np.int32
    assert found.tolist() == [hash % slots for hash in hashes]


@untimed
@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 30))
def test_a_slot_is_the_positive_remainder_for_powers_of_two(hashes: list[int], log: int) -> None:
    assert slot_of(np.array(hashes, np.int64), 2**log).tolist() == [h % 2**log for h in hashes]


@pytest.mark.parametrize("slots", [0, -1, 2**31])
def test_an_impossible_number_of_slots_is_refused(slots: int) -> None:
    with pytest.raises(ConfigError, match="slots"):
        slot_of(np.zeros(1, np.int64), slots)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session with settings of its own; a Spark that other tests started is left running."""
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    running = SparkSession.getActiveSession()
    builder = SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1")
    started = running or builder.config("spark.ui.enabled", "false").getOrCreate()
    session = started.newSession()
    # A zone far from UTC, and naive datetimes kept naive: neither may change a hash.
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    yield session
    if running is None:
        started.stop()


@pytest.mark.spark
def test_random_columns_hash_as_in_the_jvm(spark: SparkSession) -> None:
    rng = random.Random(20)
    data = {
        name: encode_keys([random_key(rng, type) for _ in range(3_000)], type)
        for name, type in TYPES.items()
    }

    frame = spark.createDataFrame(pa.table(data))
    hashes = frame.selectExpr(*[f"xxhash64({name}) AS {name}" for name in data]).toArrow()

    for name, array in data.items():
        assert hash_column(array).tolist() == hashes[name].to_pylist(), name
