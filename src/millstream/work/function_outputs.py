"""The outputs of users' reduce functions, as records of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from millstream.flow.row_reducer import RowReducer
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
    blame: Callable[[int], tuple[str, object]],
    key_of: Callable[[int], Any],
    reducer: RowReducer | None = None,
) -> pa.RecordBatch:
    """Encode outputs; a wrong type is reported with the key of its output, by position.

    ``blame`` gives the role and the function that an output is of. A ``reducer`` of rows encodes
    them itself.
    """
    try:
        return encode_records(outputs, schema) if reducer is None else reducer.encode(outputs)
    except ValueTypeError as misfit:
        raise record_error(
            *blame(misfit.row),
            f"gave a wrong type for key {value_text(key_of(misfit.row))}: {misfit}",
            "give values of that type, or declare output=",
        ) from None
