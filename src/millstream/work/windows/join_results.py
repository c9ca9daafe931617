"""The results of a join: rows of a key, both values and their time, or outputs of a function."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.flow.functions import Function
from millstream.flow.joins import COLUMNS
from millstream.flow.vertices import JobVertex
from millstream.ring.key_types import INSTANT
from millstream.state.blocks import KEY
from millstream.state.immutable import private_copy
from millstream.state.panes.algebras import Objects
from millstream.state.panes.keys import Ids, KeyIds
from millstream.state.values import ValueTypeError, encode_column, unify, value_text
from millstream.work.failures import RecordError, record_error, user_error
from millstream.work.function_outputs import encode_outputs, extend_outputs


@dataclass(frozen=True)
class Found:
    """Pairs, by the numbers of their keys; the other value of one without a match is None."""

    ids: Ids
    left: Objects
    right: Objects
    times: npt.NDArray[np.int64]


class JoinResults:
    """The results of one join."""

    def __init__(self, job: JobVertex, on_match: Function | None) -> None:
        self._job = job
        self._on_match = on_match

    def batches(
        self, found: Sequence[Found], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        """The results of all pairs, in batches."""
        if self._on_match is None:
            made = [self._rows(one, keys, output) for one in found]
        else:
            records = (self._records(one, keys, output, self._on_match) for one in found)
            made = [batch for batch in records if batch is not None]
        return self._in_one_schema(made)

    def _in_one_schema(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The same batches in one schema: a side without any match has no type of its own."""
        schemas = [batch.schema for batch in batches]
        if all(schema.equals(schemas[0], check_metadata=True) for schema in schemas):
            return batches
        if len({(tuple(schema.names), str(schema.metadata)) for schema in schemas}) > 1:
            raise self._misfit("outputs of several shapes")
        fields = [
            self._common([schema.field(at) for schema in schemas])
            for at in range(len(schemas[0].names))
        ]
        common = pa.schema(fields, metadata=schemas[0].metadata)
        try:
            return [batch.cast(common) for batch in batches]
        except pa.ArrowInvalid as problem:  # an integer that no float equals
            raise self._misfit(f"values that do not fit one type ({problem})") from None

    def _common(self, fields: list[pa.Field]) -> pa.Field:
        typed = [field for field in fields if not pa.types.is_null(field.type)]
        kind = unify(field.type for field in fields)
        if kind is None or len({str(field.metadata) for field in typed}) > 1:
            types = " and ".join(sorted({str(field.type) for field in typed}))
            raise self._misfit(f"{fields[0].name} values of types {types}")
        return pa.field(fields[0].name, kind, metadata=typed[0].metadata if typed else None)

    def _misfit(self, what: str) -> RecordError:
        return record_error(
            f"join {self._job.name!r}",
            self._on_match,
            f"gave {what} in one epoch",
            "give values of one type, or declare output=",
        )

    def _rows(self, found: Found, keys: KeyIds, output: pa.Schema | None) -> pa.RecordBatch:
        kinds: list[pa.DataType | None] = [None] * len(COLUMNS)
        if output is not None and tuple(output.names) == COLUMNS:
            kinds = list(output.types)
        key, time = keys.column(found.ids), pa.array(found.times).view(INSTANT)
        values = {"left": found.left.tolist(), "right": found.right.tolist()}
        fields, columns = [pa.field(KEY, key.type)], [key]
        try:
            for at, name in enumerate(values, 1):
                field, column = encode_column(name, values[name], kinds[at])
                fields.append(field)
                columns.append(column)
        except ValueTypeError as misfit:
            raise record_error(
                f"{misfit.column} side of join {self._job.name!r}",
                None,
                f"changed its type: {misfit}",
                "give values of one type, or declare output=",
            ) from None
        fields.append(pa.field("time", INSTANT))
        return pa.RecordBatch.from_arrays([*columns, time], schema=pa.schema(fields))

    def _records(
        self, found: Found, keys: KeyIds, output: pa.Schema | None, function: Function
    ) -> pa.RecordBatch | None:
        records: list[Any] = []
        ends: list[int] = []
        names = keys.keys(found.ids)
        key: Any = None
        role = f"on_match of join {self._job.name!r}"
        try:
            rows = zip(names, found.left.tolist(), found.right.tolist(), strict=True)
            for key, left, right in rows:
                extend_outputs(records, function(key, private_copy(left), private_copy(right)))
                ends.append(len(records))
        except Exception as problem:
            raise user_error(role, function, problem, value_text(key)) from problem
        if not records:
            return None
        return encode_outputs(
            records,
            output,
            lambda _: (role, function),
            lambda row: names[bisect_right(ends, row)],
        )
