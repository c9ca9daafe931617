"""Messages that go to many processes: pickled for the first of them, and only copied for others."""

from __future__ import annotations

import hashlib
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

    @cached_property
    def message(self) -> bytes:
        """The whole message, if it is this object alone."""
        return pickle.dumps(self, 5)

    @cached_property
    def message_digest(self) -> bytes:
        """The digest of the message, over which proofs are computed (``wire.auth``)."""
        return hashlib.sha256(self.message).digest()


def _unpickled(pickled: bytes) -> Any:
    kind, values = pickle.loads(pickled)
    return kind(*values)
