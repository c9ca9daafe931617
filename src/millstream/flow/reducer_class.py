"""Reducers as classes, and the type of state that a reducer declares."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import typing
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import NoneType
from typing import Any
from uuid import UUID

import numpy as np

from millstream.errors import WorkflowError
from millstream.flow.functions import Function, caller, original
from millstream.ring.scalars import conversion

RESERVED = ("timers", "clear")
"""Attributes that the state of a key has beside the fields that a dataclass declares."""

_SCALARS = (
    NoneType,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    Decimal,
    Fraction,
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    Enum,
    UUID,
    np.generic,
)


@dataclass(frozen=True, kw_only=True)
class ReducerContext:
    """Where a reducer runs: the name of its job, the id of the node, the number of slots.

    ``key_columns`` has the names of the columns that are the key, if the job names them.
    """

    job: str
    node: str
    slots: int
    key_columns: tuple[str, ...] = ()


class Reducer:
    """A reducer with a lifecycle, as Flink's rich functions have it.

    An instance is pickled to the nodes. ``open`` runs there, before the first ``reduce``: once per
    node and job, so also on a node that joins, or takes over slots of one that failed; never in
    the driver. ``close`` runs when a node ends in an orderly way, not when it is killed.

    ``reduce(key, values, state)`` yields results as a reduce function does; in windows it is
    ``reduce(key, values, *, window, state)``. With ``on_timer(key, timer, state)`` keys have
    timers. A class that declares ``state`` as a dataclass gets
    an object of it, whose fields are the entries of the key's state.

    What ``open`` loads must be the same on every node, and ``reduce`` must not change it: what a
    key needs to remember belongs to its state.

    >>> class Enriched(ms.Reducer):
    ...     def open(self, context):
    ...         self.names = {"de": "Germany", "fr": "France"}
    ...
    ...     def reduce(self, key, values, state):
    ...         state["n"] = state.get("n", 0) + len(values)
    ...         yield self.names.get(key, key), state["n"]
    >>> flow = ms.Workflow("visits")
    >>> visits = flow.source("visits", ms.read.json("in/", schema="country string, user string"))
    >>> counts = visits.key_by("country").reduce("counts", Enriched())
    """

    def open(self, context: ReducerContext) -> None:
        """Acquire what ``reduce`` needs: load a model, read a dictionary, connect."""

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce the values of a key; required."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what ``open`` acquired."""


def check_reducer(given: Reducer, job: str) -> None:
    """Reject an instance without a ``reduce`` of its own."""
    if type(given).reduce is Reducer.reduce:
        raise WorkflowError(
            f"job {job!r} got a {type(given).__qualname__}, which defines no reduce",
            "define reduce(self, key, values, state)",
            caller(),
        )


def state_type_of(function: Function, instance: Reducer | None, job: str) -> type | None:
    """The dataclass that a reducer declares for its state; None for a mapping."""
    declared = None if instance is None else _class_hint(type(instance))
    if declared is None:
        declared = _parameter_hint(function)
    if not isinstance(declared, type) or not dataclasses.is_dataclass(declared):
        return None
    _check_state_type(declared, job)
    return declared


def _class_hint(cls: type) -> object | None:
    for base in cls.__mro__:
        if "state" in inspect.get_annotations(base):
            return _resolved(base, "state")
    return None


def _parameter_hint(function: Function) -> object | None:
    target = original(function)
    return _resolved(target, "state") if inspect.isfunction(target) else None


def _resolved(owner: Any, name: str) -> object | None:
    """One annotation, resolved; None if there is none, or if it cannot be resolved."""

    class Only:
        pass

    try:
        # Alone, because another one that cannot be resolved would fail them all.
        Only.__annotations__ = {name: owner.__annotations__[name]}
        names = getattr(owner, "__globals__", None)
        if names is None:
            names = vars(inspect.getmodule(owner))
        return typing.get_type_hints(Only, names).get(name)
    except Exception:  # an annotation for the type checker only
        return None


def _check_state_type(declared: type, job: str) -> None:
    name = declared.__qualname__
    role = f"job {job!r} declares its state as {name}"
    if declared.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise WorkflowError(
            f"{role}, a frozen dataclass, whose fields cannot be assigned",
            "declare it without frozen=True",
            caller(),
        )
    try:
        inspect.signature(declared).bind()
    except TypeError as problem:
        raise WorkflowError(
            f"{role}, of which a new key would get {name}(): {problem}",
            "give every field a default",
            caller(),
        ) from None
    fields = {field.name: field for field in dataclasses.fields(declared)}
    for taken in RESERVED:
        if taken in fields or hasattr(declared, taken):
            what = "a field" if taken in fields else "an attribute"
            raise WorkflowError(
                f"{role}, with {what} called {taken!r}, which every state has",
                "give it another name",
                caller(),
            )
    for field in fields.values():
        _check_default(field, role)


def _check_default(field: dataclasses.Field[Any], role: str) -> None:
    """Reject a field without a default, and one whose default all keys would share."""
    # By type: a class that was pickled by value has a copy of the mark.
    unset = type(dataclasses.MISSING)
    if not isinstance(field.default_factory, unset):
        return
    if isinstance(field.default, unset):
        raise WorkflowError(
            f"{role}, whose field {field.name!r} has init=False and no default",
            "give every field a default",
            caller(),
        )
    if not _is_scalar(field.default):
        kind = type(field.default).__qualname__
        raise WorkflowError(
            f"{role}, whose field {field.name!r} has an object of {kind} as default: all keys "
            "would share it",
            "write field(default_factory=...), which makes one for each key",
            caller(),
        )


def _is_scalar(value: Any) -> bool:
    """Whether a value cannot be changed in place; tuples of such values count, too."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_scalar, value))
    kind: type = type(value)
    return conversion(kind) is not None or issubclass(kind, _SCALARS)
