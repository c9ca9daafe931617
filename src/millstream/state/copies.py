"""Values of a user's own to change: the state, and other windows, keep theirs."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from millstream.state.pickling import dumps, loads

_FROZEN = frozenset(
    {int, float, str, bytes, bool, type(None), complex, datetime, date, timedelta, Decimal}
)


def own(value: Any) -> Any:
    """A value that its receiver may change; itself, if nobody can change it."""
    return value if _is_frozen(value) else loads(dumps(value))


def _is_frozen(value: Any) -> bool:
    if type(value) in _FROZEN:
        return True
    # Rows are tuples, too; a class of tuples with attributes beside its items has a __dict__.
    is_tuple = isinstance(value, tuple) and not hasattr(value, "__dict__")
    return is_tuple and all(map(_is_frozen, value))
