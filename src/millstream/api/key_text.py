"""Keys as they are typed on a command line."""

from __future__ import annotations

import ast
import datetime as dt
import json
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.ring.key_types import describe
from millstream.ring.keys import canonical_type

TYPES: dict[str, pa.DataType] = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "instant": pa.timestamp("us", tz="UTC"),
    "none": pa.null(),
}
_WORDS = {"true": True, "false": False}


def parse_key(text: str, kind: pa.DataType) -> Any:
    """Parse the text of a key; a tuple is written as in JSON or Python."""
    kind = canonical_type(kind)
    try:
        return _parse(text, kind)
    except (ValueError, SyntaxError, KeyError):
        raise ConfigError(
            f"{text!r} is not a key of type {describe(kind)}; write {_example(kind)}"
        ) from None


def _parse(text: str, kind: pa.DataType) -> Any:
    is_ = pa.types
    if is_.is_string(kind):
        return text
    if is_.is_integer(kind):
        return int(text)
    if is_.is_floating(kind):
        return float(text)
    if is_.is_boolean(kind):
        return _WORDS[text.lower()]
    if is_.is_binary(kind):
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if is_.is_date(kind):
        return dt.date.fromisoformat(text)
    if is_.is_timestamp(kind):
        return _moment(text, kind)
    if is_.is_struct(kind):
        return _tuple(text, kind)
    if text.lower() not in ("none", "null"):
        raise ValueError(text)
    return None


def _moment(text: str, kind: pa.DataType) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    if kind.tz is not None and moment.tzinfo is None:
        return moment.replace(tzinfo=dt.UTC)
    return moment


def _tuple(text: str, kind: pa.DataType) -> tuple[Any, ...]:
    try:
        items = json.loads(text)
    except ValueError:
        items = ast.literal_eval(text)
    if not isinstance(items, list | tuple) or len(items) != kind.num_fields:
        raise ValueError(text)
    return tuple(_item(item, field.type) for item, field in zip(items, kind, strict=True))


def _item(item: Any, kind: pa.DataType) -> Any:
    if isinstance(item, list) and pa.types.is_struct(kind):
        return tuple(_item(part, field.type) for part, field in zip(item, kind, strict=True))
    if pa.types.is_floating(kind) and type(item) is int:
        return float(item)
    return _parse(item, kind) if isinstance(item, str) else item


def _example(kind: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_struct(kind):
        return f"[{', '.join(_example(field.type) for field in kind)}]"
    if is_.is_date(kind):
        return '"2024-02-29"'
    if is_.is_timestamp(kind):
        return '"2024-02-29T12:00:00"'
    if is_.is_binary(kind):
        return '"text" or "0x00ff"'
    if is_.is_boolean(kind):
        return "true or false"
    return '"text"' if is_.is_string(kind) else "null" if is_.is_null(kind) else "a number"
