"""The forms in which users pass functions, and their validation.

A function is per record (a plain callable), per Arrow batch (``arrow``), or stays in the JVM
(``sql``, ``dataframe``). This module owns the wrappers, the checks made while a workflow is
built, and the look-up of the user's file and line. It runs no user function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.errors import Place, WorkflowError
from millstream.flow.function_shipping import is_users_file, ship
from millstream.state.values import value_text

Function = Callable[..., Any]
Key = str | tuple[str, ...] | Function
"""A column, several columns, or a function of the record."""


@dataclass(frozen=True)
class ArrowFunction:
    """A function over Arrow batches instead of single records."""

    function: Function

    @property
    def place(self) -> Place | None:
        return place_of(self.function)


@dataclass(frozen=True)
class SqlStep:
    """Spark SQL select expressions and an optional condition; never leaves the JVM."""

    expressions: tuple[str, ...]
    where: str | None = None


@dataclass(frozen=True)
class FrameStep:
    """A function from a Spark DataFrame to a Spark DataFrame."""

    function: Function

    @property
    def place(self) -> Place | None:
        return place_of(self.function)


JvmStep = SqlStep | FrameStep
Form = Function | ArrowFunction | JvmStep


def arrow(function: Function) -> ArrowFunction:
    """Mark a function as working on whole Arrow batches.

    As a map it takes a ``pyarrow.RecordBatch`` and returns one (or yields several). As a
    reducer it takes a table of new rows and a table of the matching state rows, and returns
    the new state rows and the outputs; in windows, the rows of a window.

    >>> def double(batch):
    ...     amounts = pc.multiply(batch.column("amount"), 2)
    ...     return pa.record_batch({"user": batch.column("user"), "amount": amounts})
    >>> doubled = orders.map(ms.arrow(double))
    """
    check_callable(function, "ms.arrow", caller())
    return ArrowFunction(function)


def sql(*expressions: str, where: str | None = None) -> SqlStep:
    """Select Spark SQL expressions, or filter by a condition, without leaving the JVM.

    >>> large = orders.filter(ms.sql(where="amount > 100"))
    >>> cents = orders.map(ms.sql("user AS key", "amount * 100 AS value"))
    """
    place = caller()
    for text in (*expressions, *([] if where is None else [where])):
        if not isinstance(text, str) or not text.strip():
            raise WorkflowError(
                f"ms.sql got {value_text(text)} where a Spark SQL expression is expected",
                "give each expression as a non-empty string",
                place,
            )
    if not expressions and where is None:
        raise WorkflowError(
            "ms.sql got no expressions", "give at least one expression, or where=", place
        )
    return SqlStep(expressions, where)


def dataframe(function: Function) -> FrameStep:
    """Mark a function as taking and returning a Spark DataFrame.

    >>> large = orders.map(ms.dataframe(lambda frame: frame.where("amount > 100")))
    """
    place = caller()
    check_callable(function, "ms.dataframe", place)
    check_arguments(function, 1, "ms.dataframe function", "(frame)")
    return FrameStep(function)


def caller() -> Place:
    """Find the user's line: the first frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def _is_ours(module: str) -> bool:
    return module == "millstream" or module.startswith("millstream.")


def original(function: object) -> object:
    """Find the user's function inside of partials, methods, wrappers and callable objects."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif callable(function) and hasattr(function, "__wrapped__"):
            function = inspect.unwrap(function)
        elif _is_callable_object(function):
            function = type(function).__call__
        else:
            return function


def _is_callable_object(value: object) -> bool:
    if isinstance(value, type) or not callable(value):
        return False
    return inspect.isfunction(type(value).__call__)


def place_of(function: object) -> Place | None:
    """The place where a function is defined; None if it is not written in Python."""
    code = getattr(original(function), "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code is not None else None


def name_of(function: object) -> str:
    """Name a function for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def check_callable(function: object, role: str, place: Place) -> None:
    """Reject an object that cannot be called."""
    if not callable(function):
        raise WorkflowError(
            f"{role} got {value_text(function)}, which cannot be called", "pass a function", place
        )


def check_arguments(function: Function, count: int, role: str, shape: str) -> None:
    """Reject a function that cannot be called with ``count`` positional arguments."""
    signature = _signature(function)
    if signature is None:  # some built-ins have none
        return
    try:
        signature.bind(*range(count))
    except TypeError as problem:
        raise WorkflowError(
            f"the {role}, {name_of(function)}{signature}, cannot be called as {shape}: {problem}",
            f"give it {count} positional argument{'' if count == 1 else 's'}: {shape}",
            _users_place(function),
        ) from None


def window_arguments(
    function: Function, count: int, role: str, shape: str, names: Sequence[str] = ("window",)
) -> frozenset[str]:
    """The parameters that a windowed reducer takes by name; rejects one of the wrong shape."""
    signature = _signature(function)
    if signature is None:
        return frozenset()
    taken = frozenset(names) & signature.parameters.keys()
    try:
        signature.bind(*range(count), **dict.fromkeys(taken))
    except TypeError as problem:
        more = ", ".join(f"{name}=..." for name in names)
        raise WorkflowError(
            f"the {role}, {name_of(function)}{signature}, cannot be called as {shape}), nor as "
            f"{shape}, {more}): {problem}",
            f"give it these parameters; {' and '.join(names)} are passed by name, if it has them",
            _users_place(function),
        ) from None
    return taken


def check_picklable(function: object, role: str) -> None:
    """Reject a function that cannot be shipped to the executors."""
    try:
        ship(function)
    except Exception as problem:
        raise WorkflowError(
            f"the {role}, {name_of(function)}, cannot be pickled: {problem}",
            "create what it holds (connections, locks, open files) inside the function",
            _users_place(function),
        ) from None


def _signature(function: Function) -> inspect.Signature | None:
    # A wrapper may take other arguments than the function it wraps, so its signature counts. One
    # without a signature, such as lru_cache, passes its arguments on.
    for follow in (False, True):
        with contextlib.suppress(Exception):
            return inspect.signature(function, follow_wrapped=follow)
    return None


def _users_place(function: object) -> Place:
    """The place where a function is defined if the user wrote it, else where it was passed."""
    own = place_of(function)
    return own if own is not None and is_users_file(own.file) else caller()
