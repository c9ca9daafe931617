"""Reducers of whole rows, which stay in Arrow until the reducer itself converts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa

from millstream.flow.reducer_class import Reducer


class RowReducer(Reducer, ABC):
    """A reducer of the rows of a stream with columns, which gives rows of an ``output`` schema.

    ``initial`` rows are reduced in the first epoch of a checkpoint, before all others of their
    key; they have the key columns of the job. With ``drops_late``, rows whose event time the
    watermark of the epoch before had reached are dropped.
    """

    output: pa.Schema
    initial: pa.Table | None = None
    drops_late: bool = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is called."""

    @abstractmethod
    def users_function(self, method: str) -> object:
        """The user's function that one of its methods calls."""

    @abstractmethod
    def for_job(self) -> Self:
        """A copy for one job: what ``open`` and ``begin`` change is not shared by two jobs."""

    @abstractmethod
    def begin(self, epoch: int, time: int, watermark: int) -> None:
        """Learn of the epoch that is reduced next: its number, its time and its watermark."""

    @abstractmethod
    def read(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        """The values that ``reduce`` gets for each key, whose rows end where the next one's begin.

        A key has the rows from its item of ``cuts`` up to the next one.
        """

    @abstractmethod
    def read_initial(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        """The same for initial rows."""

    @abstractmethod
    def encode(self, outputs: Sequence[Any]) -> pa.RecordBatch:
        """Results as rows of the output schema; a misfit is a ``ValueTypeError``."""


def users_function(function: object) -> object:
    """The user's function that a method of a reducer of rows calls; any other as it is."""
    reducer = getattr(function, "__self__", None)
    if not isinstance(reducer, RowReducer):
        return function
    return reducer.users_function(getattr(function, "__name__", ""))
