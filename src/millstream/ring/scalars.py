"""Scalars of numpy and pandas as plain Python values.

``np.int64(1)`` is the int 1, ``np.datetime64("2024-02-29")`` a date, a ``Timestamp`` of pandas a
datetime, and a missing value (NaT, NA) is None. A scalar that equals no value of Python, such as
a time with nanoseconds, is not converted. pandas is recognised by name: it is not
imported here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from types import NoneType
from typing import Any

import numpy as np

_Convert = Callable[[Any], object]
_DAYS = ("Y", "M", "W", "D")
_COARSE = ("h", "m", "s", "ms", "us")
_MICRO = np.timedelta64(1, "us")
_UNSTEADY = ("Y", "M", "generic")  # which are no number of microseconds
_DATES = (dt.date, dt.datetime)


def plain_value(value: Any) -> Any:
    """A scalar of numpy or pandas as a plain Python value; any other value unchanged."""
    kind: type = type(value)
    convert = conversion(kind)
    return value if convert is None else convert(value)


@lru_cache(maxsize=1024)
def conversion(kind: type) -> _Convert | None:
    """The function that converts scalars of this type; None if they are plain Python values."""
    if issubclass(kind, np.generic):
        return next((convert for base, convert in _NUMPY if issubclass(kind, base)), None)
    if kind.__module__.partition(".")[0] == "pandas":
        return _PANDAS.get(kind.__name__)
    return None


def plain_types(kind: type) -> tuple[type, ...]:
    """The types of the plain values that scalars of this type become; none for plain types."""
    if issubclass(kind, np.generic):
        for base, found in _PLAIN_NUMPY:
            if issubclass(kind, base):
                return found
        # A class of several kinds of scalars, such as np.number.
        return tuple(p for base, found in _PLAIN_NUMPY if issubclass(base, kind) for p in found)
    if kind.__module__.partition(".")[0] == "pandas":
        return _PLAIN_PANDAS.get(kind.__name__, ())
    return ()


def _datetime64(value: np.datetime64) -> object:
    if np.isnat(value):
        return None
    unit = np.datetime_data(value.dtype)[0]
    coarse: np.datetime64 = value
    if unit not in _DAYS and unit not in _COARSE:
        coarse = value.astype("datetime64[us]")
        if coarse != value:
            return value
    found = coarse.item()  # a number, where Python's calendar has no such date
    return found if isinstance(found, _DATES) else value


def _timedelta64(value: np.timedelta64) -> object:
    if np.isnat(value):
        return None
    if np.datetime_data(value.dtype)[0] in _UNSTEADY:
        return value
    micros = value // _MICRO
    try:
        return dt.timedelta(microseconds=int(micros)) if micros * _MICRO == value else value
    except OverflowError:
        return value


def _timestamp(value: Any) -> object:
    return value if value.nanosecond else value.to_pydatetime(warn=False)


def _timedelta(value: Any) -> object:
    return value if value.nanoseconds else value.to_pytimedelta()


def _missing(value: Any) -> None:
    return None


# The unbound methods return a plain value also for a subclass. A longdouble is more
# precise than a float. Order matters: timedelta64 is a signed integer to numpy.
_NUMPY: tuple[tuple[type, _Convert | None], ...] = (
    (np.longdouble, None),
    (np.clongdouble, None),
    (np.timedelta64, _timedelta64),
    (np.datetime64, _datetime64),
    (np.str_, str.__str__),
    (np.bytes_, lambda value: bytes(memoryview(value))),
    (np.bool_, bool),
    (np.number, lambda value: value.item()),
)
_PLAIN_NUMPY: tuple[tuple[type, tuple[type, ...]], ...] = (
    (np.timedelta64, (dt.timedelta, NoneType)),
    (np.datetime64, (dt.date, NoneType)),
    (np.str_, (str,)),
    (np.bytes_, (bytes,)),
    (np.bool_, (bool,)),
    (np.integer, (int,)),
    (np.floating, (float,)),
    (np.complexfloating, (complex,)),
)
_PLAIN_PANDAS: dict[str, tuple[type, ...]] = {
    "Timestamp": (dt.datetime, NoneType),
    "Timedelta": (dt.timedelta, NoneType),
    "NaTType": (NoneType,),
    "NAType": (NoneType,),
}
_PANDAS: dict[str, _Convert] = {
    "Timestamp": _timestamp,
    "Timedelta": _timedelta,
    "NaTType": _missing,
    "NAType": _missing,
}
