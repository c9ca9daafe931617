"""Messages that go to many processes: pickled for the first of them, and only copied for others."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any


class PickledOnce:
    """A frozen dataclass whose pickle is retained with it."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _unpickled, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return pickle.dumps((type(self), values), 5)


def _unpickled(pickled: bytes) -> Any:
    kind, values = pickle.loads(pickled)
    return kind(*values)
