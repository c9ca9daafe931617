"""Schemas as Spark's users write them, in Arrow: a DDL string, or a ``StructType``.

Nodes and the driver's build of a workflow have no JVM, which parses such strings in Spark. Nothing
here imports Spark: a ``StructType`` is read by the JSON that it gives of itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:.-])")
_NAMES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMALS = ("decimal", "dec", "numeric")


class SchemaSyntaxError(ValueError):
    """A schema is not written as Spark's DDL, or has a type that state and outputs cannot have."""


def schema_of(given: object) -> pa.Schema:
    """The columns of a DDL string, of a ``StructType``, or of an Arrow schema."""
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, str):
        return pa.schema(list(_Parser(given).columns()))
    described = getattr(given, "jsonValue", None)
    if callable(described):
        found = described()
        if isinstance(found, dict) and found.get("type") == "struct":
            return pa.schema(_fields(found))
    raise SchemaSyntaxError(
        f"{given!r} is neither a DDL string such as 'id bigint, name string' nor a StructType"
    )


def _fields(struct: dict[str, Any]) -> list[pa.Field]:
    return [pa.field(field["name"], _json_type(field["type"])) for field in struct["fields"]]


def _json_type(found: Any) -> pa.DataType:
    if isinstance(found, str):
        return _Parser(found).only_type()
    match found.get("type"):
        case "struct":
            return pa.struct(_fields(found))
        case "array":
            return pa.list_(_json_type(found["elementType"]))
        case "map":
            return pa.map_(_json_type(found["keyType"]), _json_type(found["valueType"]))
    raise SchemaSyntaxError(f"{found.get('type')!r} is a type that state and outputs cannot have")


class _Parser:
    """Reads DDL from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"cannot be read at {text[at:].strip()[:20]!r}")
            self._tokens.append(found.group(1))
            at = found.end()

    def _error(self, why: str) -> SchemaSyntaxError:
        return SchemaSyntaxError(f"the schema {self._text!r} {why}")

    def _peek(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _next(self) -> str:
        if not self._tokens:
            raise self._error("ends too early")
        return self._tokens.pop(0)

    def _expect(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise self._error(f"has {found!r} where {wanted!r} is expected")

    def only_type(self) -> pa.DataType:
        """The whole text as a type."""
        found = self._type()
        if self._tokens:
            raise self._error(f"has {self._peek()!r} after a type")
        return found

    def columns(self) -> Iterator[pa.Field]:
        """The whole text as columns."""
        if not self._tokens:
            raise self._error("has no columns")
        if self._tokens[:2] == ["struct", "<"] and self._tokens[-1] == ">":
            yield from self.only_type()
            return
        while True:
            yield self._column()
            if not self._tokens:
                return
            self._expect(",")

    def _column(self) -> pa.Field:
        name = self._next()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._peek() == ":":
            self._next()
        field = pa.field(name, self._type())
        if self._peek().lower() == "not":
            self._next()
            if self._next().lower() != "null":
                raise self._error("has NOT without NULL")
        if self._peek().lower() == "comment":
            self._next()
            self._next()
        return field

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name == "array":
            self._expect("<")
            item = self._type()
            self._expect(">")
            return pa.list_(item)
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(key, value)
        if name == "struct":
            return self._struct()
        if name in _DECIMALS:
            precision, scale = self._decimal()
            return pa.decimal128(precision, scale)
        found = _NAMES.get(name)
        if found is None:
            raise self._error(f"has {name!r}, which is not a type that state and outputs can have")
        if name in ("varchar", "char") and self._peek() == "(":
            for _ in range(3):
                self._next()
        return found

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while self._peek() != ">":
            if fields:
                self._expect(",")
            fields.append(self._column())
        self._next()
        return pa.struct(fields)

    def _decimal(self) -> tuple[int, int]:
        if self._peek() != "(":
            return 10, 0
        self._next()
        numbers = [int(self._next())]
        if self._peek() == ",":
            self._next()
            numbers.append(int(self._next()))
        self._expect(")")
        return numbers[0], numbers[1] if len(numbers) > 1 else 0
