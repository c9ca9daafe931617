"""Random keys of every type, and what else the property tests of the ring share."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from millstream.ring.key_types import struct_of

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "instant": pa.timestamp("us", tz="UTC"),
    "local": pa.timestamp("us"),
    "pair": struct_of([pa.string(), pa.int64()]),
    "nested": struct_of([struct_of([pa.float64(), pa.bool_()]), pa.date32(), pa.binary()]),
}

untimed = settings(deadline=None)
"""For properties: a busy machine may take 300 ms for what takes 1 ms, and that is no failure."""

_ZONES = st.integers(-23, 23).map(lambda hours: dt.timezone(dt.timedelta(hours=hours)))


def keys_of(type: pa.DataType) -> st.SearchStrategy[object]:
    """Return the strategy of keys that fit a canonical type, None among them."""
    if pa.types.is_struct(type):
        return st.none() | st.tuples(*[keys_of(field.type) for field in type])
    return st.none() | _SIMPLE[type]


_SIMPLE: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.string(): st.text(max_size=80),
    pa.binary(): st.binary(max_size=80),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.datetimes(
        dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31), timezones=_ZONES
    ),
    pa.timestamp("us"): st.datetimes(),
}

columns = st.sampled_from(sorted(TYPES)).flatmap(
    lambda name: st.tuples(st.just(TYPES[name]), st.lists(keys_of(TYPES[name]), max_size=20))
)
"""Pairs of a canonical type and keys that fit it."""
