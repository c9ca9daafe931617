"""The outputs of users' reduce functions, as records of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from millstream.state.records import encode_records
from millstream.state.values import ValueTypeError, value_text
from millstream.work.failures import record_error


def extend_outputs(outputs: list[Any], result: Any) -> None:
    """Add what a function returned: several outputs of a generator or list, none, or one."""
    if isinstance(result, list) or hasattr(result, "__next__"):
        outputs.extend(result)
    elif result is not None:
        outputs.append(result)


def encode_outputs(
    outputs: Sequence[Any],
    schema: pa.Schema | None,
    role: str,
    function: object,
    key_of: Callable[[int], Any],
) -> pa.RecordBatch:
    """Encode outputs; a wrong type is reported with the key of its output, by position."""
    try:
        return encode_records(outputs, schema)
    except ValueTypeError as misfit:
        raise record_error(
            role,
            function,
            f"gave a wrong type for key {value_text(key_of(misfit.row))}: {misfit}",
            "give values of that type, or declare output=",
        ) from None
