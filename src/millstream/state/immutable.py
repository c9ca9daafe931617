"""Immutable values, and private copies of mutable ones."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from millstream.state.pickling import dumps, loads

SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None), complex})
"""Immutable types whose values refer to no other object."""
_IMMUTABLE: Final = SCALARS | {datetime, date, timedelta, Decimal}


def private_copy(value: Any) -> Any:
    """A copy that its receiver may change; the value itself if it is immutable."""
    return value if _is_immutable(value) else loads(dumps(value))


def _is_immutable(value: Any) -> bool:
    if type(value) in _IMMUTABLE:
        return True
    # Rows are tuples, too; a class of tuples with attributes beside its items has a __dict__.
    is_tuple = isinstance(value, tuple) and not hasattr(value, "__dict__")
    return is_tuple and all(map(_is_immutable, value))
