"""Reducers as classes: what is accepted, and what is refused while a workflow is built."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pytest

import millstream as ms
from millstream.flow.labels import reduce_text
from millstream.flow.reducers import StatefulReducer, WindowReducer, reducer_of

ZERO, NUMBER = Decimal(0), np.int64(0)


class Color(Enum):
    RED = 1


@dataclass
class Total:
    n: int = 0
    seen: list[str] = field(default_factory=list)


class Counting(ms.Reducer):
    def reduce(self, key: str, values: list[int], state: Any) -> Any:
        yield key, len(values)


class Typed(Counting):
    state: Total


class PerWindow(ms.Reducer):
    def reduce(self, key: str, values: list[int], window: Any, state: Total) -> Any:
        yield key, window


def test_an_instance_is_a_reducer_and_its_class_is_its_name() -> None:
    made = Counting()
    reducer = reducer_of(made, "job")

    assert isinstance(reducer, StatefulReducer)
    assert reducer.instance is made and reducer.function == made.reduce
    assert reduce_text(reducer) == "Counting"


def test_in_windows_it_gets_what_its_parameters_name() -> None:
    reducer = reducer_of(PerWindow(), "job", windowed=True)

    assert isinstance(reducer, WindowReducer)
    assert reducer.takes_window and reducer.takes_state and reducer.state_type is Total


def test_state_is_declared_by_the_class_or_by_the_parameter() -> None:
    def typed(key: str, values: list[int], state: Total) -> None: ...

    def mapping(key: str, values: list[int], state: dict[str, int]) -> None: ...

    assert _state_type(Typed()) is Total
    assert _state_type(typed) is Total
    assert _state_type(mapping) is None
    assert _state_type(Counting()) is None


def _state_type(given: object) -> type | None:
    reducer = reducer_of(given, "job")
    assert isinstance(reducer, StatefulReducer)
    return reducer.state_type


@dataclass(frozen=True)
class Frozen:
    n: int = 0


@dataclass
class WithoutDefault:
    n: int


@dataclass
class WithTimers:
    timers: int = 0


@dataclass
class WithClear:
    n: int = 0

    def clear(self) -> None: ...


@dataclass
class WithTimersProperty:
    n: int = 0

    @property
    def timers(self) -> int:
        return self.n


class Acc:
    total = 0


SHARED = Acc()


@dataclass
class WithSharedDefault:
    acc: Acc = SHARED


@dataclass
class WithSharedItem:
    accs: tuple[Acc, ...] = (SHARED,)


@dataclass
class Unset:
    n: int = 0
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.n


@dataclass
class WithScalars:
    text: str | None = None
    color: Color = Color.RED
    path: tuple[int, ...] = ()
    names: frozenset[str] = frozenset("a")
    since: dt.datetime = dt.datetime.min
    amount: Decimal = ZERO
    count: np.int64 = NUMBER
    missing: Any = pd.NaT
    acc: Acc = field(default_factory=Acc)
    twice: int = field(init=False, default=0)


def on_clear(key: str, values: list[int], state: WithClear) -> None: ...


def on_property(key: str, values: list[int], state: WithTimersProperty) -> None: ...


def on_shared(key: str, values: list[int], state: WithSharedDefault) -> None: ...


def on_shared_item(key: str, values: list[int], state: WithSharedItem) -> None: ...


def on_unset(key: str, values: list[int], state: Unset) -> None: ...


def on_scalars(key: str, values: list[int], state: WithScalars) -> None: ...


def test_defaults_that_cannot_be_changed_in_place_are_accepted() -> None:
    assert _state_type(on_scalars) is WithScalars


def on_frozen(key: str, values: list[int], state: Frozen) -> None: ...


def on_required(key: str, values: list[int], state: WithoutDefault) -> None: ...


def on_taken(key: str, values: list[int], state: WithTimers) -> None: ...


class WithoutReduce(ms.Reducer):
    pass


class Unpicklable(Counting):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class TooFew(ms.Reducer):
    def reduce(self, key: str) -> None: ...


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (Counting, "which is not a reducer; pass .* an instance of a subclass of ms.Reducer"),
        (WithoutReduce(), "got a WithoutReduce, which defines no reduce"),
        (Unpicklable(), "cannot be pickled"),
        (TooFew(), "cannot be called as"),
        (on_frozen, "declares its state as Frozen, a frozen dataclass"),
        (on_required, "missing a required argument: 'n'; give every field a default"),
        (on_taken, "with a field called 'timers'"),
        (on_clear, "WithClear, with an attribute called 'clear', which every state has"),
        (on_property, "with an attribute called 'timers', which every state has"),
        (on_shared, r"'acc' has an object of Acc as default: .*default_factory"),
        (on_shared_item, "'accs' has an object of tuple as default"),
        (on_unset, "'twice' has init=False and no default; give every field a default"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(given: object, what: str) -> None:
    with pytest.raises(ms.WorkflowError, match=what):
        reducer_of(given, "job")
