from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import (
    CryptoFactory,
    EncryptionConfiguration,
    KmsClient,
    KmsConnectionConfig,
)

from millstream.work.scans.parquet import difference, read_rows

WANTED = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "Europe/Zurich"))])
TIMES = pa.array([1, 2], pa.timestamp("us", "UTC"))
SPARK = {"org.apache.spark.version": "4.0.0"}


def write(path: Path, columns: dict[str, pa.Array], **about: str) -> str:
    pq.write_table(pa.table(columns).replace_schema_metadata(about), path)
    return str(path)


@pytest.mark.parametrize("length", [1, 7, 64, 10_000])
def test_splits_have_every_row_once_wherever_they_are_cut(tmp_path: Path, length: int) -> None:
    path = tmp_path / "rows"
    pq.write_table(pa.table({"n": range(100), "m": ["x" * 9] * 100}), path, row_group_size=9)

    starts = range(0, path.stat().st_size, length)
    batches = [b for at in starts for b in read_rows(str(path), at, length, ["n"], 5)]

    assert [n for batch in batches for n in batch.column("n").to_pylist()] == list(range(100))
    assert max(batch.num_rows for batch in batches) == 5


def test_batches_of_texts_that_repeat_are_small_too(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    texts = pa.table({"n": range(12_000), "t": ["x" * 4000, "y" * 4000] * 6000})
    pq.write_table(texts, path)

    batches = list(read_rows(str(path), 0, path.stat().st_size, ["n", "t"], 50_000))

    assert path.stat().st_size < 1 << 20
    assert max(batch.nbytes for batch in batches) <= 16 << 20
    assert len(batches) < 6
    assert pa.Table.from_batches(batches).equals(texts)


def test_files_with_encrypted_columns_are_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    how = EncryptionConfiguration("footer", column_keys={"key": ["t"]}, plaintext_footer=True)
    factory = CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(KmsConnectionConfig(), how)
    table = pa.table({"n": [1, 2], "t": ["x", "y"]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)

    wanted = pa.schema([("n", pa.int64())])

    assert difference(str(path), wanted, rebased=False) == "columns may be encrypted"


class Keys(KmsClient):  # type: ignore[misc]
    """Stores keys as they are."""

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64decode(key)


def test_a_file_with_the_columns_and_more_of_them_is_read_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "rows", {"x": ["a", "b"], "at": TIMES, "n": [1, 2]})

    assert difference(path, WANTED, rebased=False) is None


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"at": TIMES}, "it has no single column n"),
        ({"at": TIMES, "N": [1, 2]}, "it has no single column n"),
        ({"at": TIMES, "n": [1, 2], "N": [1, 2]}, "it has no single column n"),
        ({"at": TIMES, "n": pa.array([1, 2], pa.int32())}, "column n is int32, not int64"),
        ({"at": TIMES, "n": pa.array(["1"] * 2)}, "column n is string, not int64"),
        (
            {"at": TIMES.cast(pa.timestamp("us")), "n": [1, 2]},
            "column at is timestamp[us], not timestamp[us, tz=Europe/Zurich]",
        ),
        (
            {"at": TIMES.cast(pa.timestamp("ms", "UTC"), safe=False), "n": [1, 2]},
            "column at is timestamp[ms, tz=UTC], not timestamp[us, tz=Europe/Zurich]",
        ),
    ],
)
def test_other_columns_are_left_to_spark(
    tmp_path: Path, columns: dict[str, pa.Array], reason: str
) -> None:
    assert difference(write(tmp_path / "rows", columns), WANTED, rebased=False) == reason


def test_instants_without_a_time_zone_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    table = pa.table({"at": TIMES})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    local = pa.schema([("at", pa.timestamp("us"))])

    (batch,) = read_rows(str(path), 0, 10_000, ["at"], 5)

    assert difference(str(path), WANTED.remove(0), rebased=False) is None
    assert difference(str(path), local, rebased=False) is not None
    assert batch.column("at").cast(TIMES.type) == TIMES


def test_nested_columns_are_left_to_spark(tmp_path: Path) -> None:
    nested = pa.array([[1], [2]], pa.list_(pa.int64()))
    path = write(tmp_path / "rows", {"n": nested})

    assert difference(path, pa.schema([("n", nested.type)]), rebased=False) is not None


def test_dates_that_spark_may_rebase_are_left_to_it(tmp_path: Path) -> None:
    columns = {"n": [1, 2], "at": TIMES}
    rebase = "its dates may have to be rebased"
    legacy = {**SPARK, "org.apache.spark.legacyDateTime": ""}
    old = {"org.apache.spark.version": "2.4.8"}

    assert difference(write(tmp_path / "a", columns), WANTED, rebased=True) == rebase
    assert difference(write(tmp_path / "b", columns, **SPARK), WANTED, rebased=True) is None
    assert difference(write(tmp_path / "c", columns, **legacy), WANTED, rebased=False) == rebase
    assert difference(write(tmp_path / "d", columns, **old), WANTED, rebased=False) == rebase
    assert difference(str(tmp_path / "a"), pa.schema([("n", pa.int64())]), rebased=True) is None


def test_what_arrow_cannot_open_is_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"not Parquet")

    assert difference(str(path), WANTED, rebased=False) == "Arrow cannot open it"
