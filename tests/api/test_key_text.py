from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from millstream.api.key_text import TYPES, parse_key
from millstream.errors import ConfigError

PAIR = pa.struct([("_1", pa.string()), ("_2", pa.date32())])


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [
        ("12", pa.string(), "12"),
        ("12", pa.int64(), 12),
        ("12", pa.float64(), 12.0),
        ("True", pa.bool_(), True),
        ("false", pa.bool_(), False),
        ("ab", pa.binary(), b"ab"),
        ("0x00ff", pa.binary(), b"\x00\xff"),
        ("2024-02-29", pa.date32(), dt.date(2024, 2, 29)),
        ("2024-02-29T12:00", pa.timestamp("us"), dt.datetime(2024, 2, 29, 12)),
        ("2024-02-29", pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
        ("none", pa.null(), None),
        ('["a", "2024-02-29"]', PAIR, ("a", dt.date(2024, 2, 29))),
        ("('a', None)", PAIR, ("a", None)),
        ("[1, 2]", pa.struct([("_1", pa.float64()), ("_2", pa.int64())]), (1.0, 2)),
        ('[["a", null], 1]', pa.struct([("_1", PAIR), ("_2", pa.int64())]), (("a", None), 1)),
    ],
    ids=str,
)
def test_text_is_parsed_as_a_key(text: str, kind: pa.DataType, key: Any) -> None:
    found = parse_key(text, kind)

    assert repr(found) == repr(key)  # to Python 1 equals 1.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a", pa.int64()),
        ("a", pa.float64()),
        ("yes", pa.bool_()),
        ("0x0", pa.binary()),
        ("yesterday", pa.date32()),
        ("noon", pa.timestamp("us")),
        ("a", pa.null()),
        ("a", PAIR),
        ('["a"]', PAIR),
        ('{"a": 1}', PAIR),
        ('["a", "b"]', PAIR),
    ],
    ids=str,
)
def test_other_text_is_rejected_with_an_example(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"is not a key of type .*; write"):
        parse_key(text, kind)


def test_every_type_that_can_be_chosen_can_be_parsed() -> None:
    texts = {"bool": "true", "date": "2024-01-01", "none": "none"}
    texts |= dict.fromkeys(["datetime", "instant"], "2024-01-01T00:00:00")

    for name, kind in TYPES.items():
        parse_key(texts.get(name, "1"), kind)
