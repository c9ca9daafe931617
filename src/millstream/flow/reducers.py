"""The forms of a reducer, as frozen descriptions.

A stateful function, a combinable reducer (the user's own, or built in and vectorised), or an
Arrow reducer. ``reducer_of`` recognises the form of ``reduce=``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from millstream.errors import WorkflowError
from millstream.flow.functions import (
    ArrowFunction,
    Function,
    caller,
    check_arguments,
    check_callable,
    check_picklable,
    name_of,
    window_arguments,
)
from millstream.flow.reducer_class import Reducer, check_reducer, state_type_of
from millstream.state.aggregates import Aggregate, AggregateSet, as_set, count
from millstream.state.blocks import KEY
from millstream.state.values import value_text

JoinKind = Literal["inner", "left", "right", "outer"]


@runtime_checkable
class Combinable(Protocol):
    """A reducer whose partial results merge, so that it is combined on the map side."""

    def zero(self) -> Any:
        """The accumulator of no values."""

    def add(self, accumulator: Any, value: Any) -> Any:
        """Add one value; return the accumulator."""

    def merge(self, left: Any, right: Any) -> Any:
        """Merge two accumulators; ``left`` holds the earlier values."""

    def result(self, accumulator: Any) -> Any:
        """The result of an accumulator."""


@dataclass(frozen=True)
class _Combinable:
    zero: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]


_PARTS = (
    ("zero", 0, "()"),
    ("add", 2, "(accumulator, value)"),
    ("merge", 2, "(left, right)"),
    ("result", 1, "(accumulator)"),
)


def _same(accumulator: Any) -> Any:
    return accumulator


def combinable(
    *, zero: Function, add: Function, merge: Function, result: Function = _same
) -> Combinable:
    """Make a combinable reducer of four functions.

    >>> longest = ms.combinable(zero=str, add=lambda a, b: max(a, b, key=len), merge=max)
    """
    made, place = _Combinable(zero, add, merge, result), caller()
    for name, _, _ in _PARTS:
        check_callable(getattr(made, name), f"{name}= of ms.combinable", place)
    return made


class _Reducer:
    """The base of all reducers."""

    merges: ClassVar[bool] = False
    """Whether partial results of its values merge."""


@dataclass(frozen=True)
class StatefulReducer(_Reducer):
    """``reduce(key, values, state)``, called once per key and epoch.

    With ``on_timer(key, timer, state)``, called for every timer that fires, keys have timers. Both
    are functions, or methods of an ``instance``. A ``state_type`` is a dataclass.
    """

    function: Function
    on_timer: Function | None = None
    instance: Reducer | None = None
    state_type: type | None = None


@dataclass(frozen=True)
class WindowReducer(_Reducer):
    """``reduce(key, values)``, called once per key and window.

    It gets the window as ``window=`` and the state of the key, which outlives its windows, as
    ``state=``, if it has parameters of these names.
    """

    function: Function
    takes_window: bool = True
    takes_state: bool = False
    instance: Reducer | None = None
    state_type: type | None = None


@dataclass(frozen=True)
class CombiningReducer(_Reducer):
    """A user's combinable: accumulators are Python objects."""

    merges: ClassVar[bool] = True
    combinable: Combinable


@dataclass(frozen=True)
class AggregateReducer(_Reducer):
    """Built-in aggregates: accumulators are Arrow columns."""

    merges: ClassVar[bool] = True
    aggregates: AggregateSet


@dataclass(frozen=True)
class ArrowReducer(_Reducer):
    """``reduce(rows, state)`` over Arrow tables; in windows ``reduce(rows)``, and ``window=``."""

    function: Function
    takes_window: bool = False


@dataclass(frozen=True)
class JoinReducer(_Reducer):
    """Pairs of values of two sides, or the outputs of ``on_match(key, left, right)``.

    Values further apart than ``reach`` never match. ``how`` decides for which sides values without
    a match are emitted.
    """

    reach: int
    how: JoinKind = "inner"
    on_match: Function | None = None

    @property
    def kept_sides(self) -> tuple[bool, ...]:
        """The sides whose values are emitted also without a match; True is the left one."""
        return {"inner": (), "left": (True,), "right": (False,), "outer": (True, False)}[self.how]

    @property
    def label(self) -> str:
        """Its kind as text."""
        return {"inner": "join", "outer": "full outer join"}.get(self.how, f"{self.how} join")

    @property
    def pane(self) -> int:
        """The length of a pane, in which values expire together; at least a minimum."""
        return max(self.reach // 4, 1_000_000)


ReducerForm = (
    StatefulReducer
    | WindowReducer
    | CombiningReducer
    | AggregateReducer
    | ArrowReducer
    | JoinReducer
)


def reducer_of(
    given: object, job: str, *, windowed: bool = False, on_timer: object | None = None
) -> ReducerForm:
    """Recognise the form of ``reduce=`` and check it; ``on_timer`` is for functions with state."""
    reducer = _reducer_of(given, job, windowed=windowed)
    if isinstance(given, Reducer):
        on_timer = _own_on_timer(given, job, on_timer)
    return reducer if on_timer is None else _with_timers(reducer, on_timer, job)


def _own_on_timer(given: Reducer, job: str, on_timer: object | None) -> object | None:
    """The ``on_timer`` of a class, which is not given beside it."""
    if on_timer is not None:
        raise WorkflowError(
            f"job {job!r} has on_timer= beside a {type(given).__qualname__}",
            "define on_timer(self, key, timer, state) in the class",
            caller(),
        )
    return getattr(given, "on_timer", None)


def _with_timers(reducer: ReducerForm, on_timer: object, job: str) -> StatefulReducer:
    role = f"on_timer of job {job!r}"
    if not isinstance(reducer, StatefulReducer):
        kind = "windows" if isinstance(reducer, WindowReducer | JoinReducer) else "such a reducer"
        raise WorkflowError(
            f"job {job!r} has on_timer= beside {kind}, whose keys have no timers",
            "leave on_timer= out, or reduce without windows, with a function (key, values, state)",
            caller(),
        )
    if isinstance(on_timer, type) or not callable(on_timer):
        raise WorkflowError(
            f"{role} got {value_text(on_timer)}, which cannot be called",
            "pass a function (key, timer, state)",
            caller(),
        )
    check_arguments(on_timer, 3, role, "(key, timer, state)")
    check_picklable(on_timer, role)
    return replace(reducer, on_timer=on_timer)


def _reducer_of(given: object, job: str, *, windowed: bool) -> ReducerForm:
    role = f"reducer of job {job!r}"
    shape = "(key, values, *, window, state)" if windowed else "(key, values, state)"
    if isinstance(given, Reducer):
        check_reducer(given, job)
        check_picklable(given, role)
        return _function_reducer(given.reduce, given, job, windowed=windowed)
    if isinstance(given, AggregateSet | Aggregate) and not isinstance(given, type):
        aggregates = as_set(given)
        if KEY in aggregates.names:
            raise WorkflowError(
                f"job {job!r} has an aggregate called {KEY!r}, as the key's own column is",
                "give it another name",
                caller(),
            )
        return AggregateReducer(aggregates)
    if isinstance(given, ArrowFunction):
        if windowed:
            takes_window = bool(window_arguments(given.function, 1, role, "(rows"))
        else:
            takes_window = False
            check_arguments(given.function, 2, role, "(rows, state)")
        check_picklable(given.function, role)
        return ArrowReducer(given.function, takes_window)
    if isinstance(given, Combinable) and not isinstance(given, type):
        for name, arguments, shape in _PARTS:
            part, of = getattr(given, name), f"{name} of the {role}"
            check_callable(part, of, caller())
            check_arguments(part, arguments, of, shape)
            check_picklable(part, of)
        check_picklable(given, role)
        return CombiningReducer(given)
    if isinstance(given, type) or not callable(given):
        raise WorkflowError(
            f"job {job!r} got reduce={value_text(given)}, which is not a reducer",
            f"pass a function {shape}, an instance of a subclass of ms.Reducer, an object with "
            "zero, add, merge and result, a built-in such as ms.count(), or ms.arrow(function)",
            caller(),
        )
    if getattr(given, "__module__", None) == count.__module__:
        name = name_of(given)
        raise WorkflowError(
            f"job {job!r} got reduce=ms.{name}, which makes a reducer but is none itself",
            f"call it, as in reduce=ms.{name}(...)",
            caller(),
        )
    return _function_reducer(given, None, job, windowed=windowed)


def _function_reducer(
    function: Function, instance: Reducer | None, job: str, *, windowed: bool
) -> StatefulReducer | WindowReducer:
    role = f"reducer of job {job!r}"
    if windowed:
        taken = window_arguments(function, 2, role, "(key, values", ("window", "state"))
        check_picklable(function, role)
        kind = state_type_of(function, instance, job) if "state" in taken else None
        return WindowReducer(function, "window" in taken, "state" in taken, instance, kind)
    check_arguments(function, 3, role, "(key, values, state)")
    check_picklable(function, role)
    kind = state_type_of(function, instance, job)
    return StatefulReducer(function, instance=instance, state_type=kind)
