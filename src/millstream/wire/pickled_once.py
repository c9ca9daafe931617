"""Messages that go to many processes: pickled for the first of them, and only copied for others.

Large ones are compressed: a placement or a commit of a thousand nodes is sent as often.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any

import pyarrow as pa

_LEAST_COMPRESSED = 4096
_CODEC = "zstd"


class PickledOnce:
    """A frozen dataclass whose pickle is retained with it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, int]]:
        return _unpickled, self._pickled

    @cached_property
    def _pickled(self) -> tuple[bytes, int]:
        """The pickle, compressed if it is large, and how large it was then."""
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        pickled = pickle.dumps((type(self), values), 5)
        if len(pickled) < _LEAST_COMPRESSED:
            return pickled, 0
        return pa.compress(pickled, codec=_CODEC, asbytes=True), len(pickled)

    @cached_property
    def message(self) -> bytes:
        """The whole message, if it is this object alone."""
        return pickle.dumps(self, 5)

    @cached_property
    def message_digest(self) -> bytes:
        """The digest of the message, over which proofs are computed (``wire.auth``)."""
        return hashlib.sha256(self.message).digest()


def _unpickled(pickled: bytes, size: int) -> Any:
    """The message; its pickle is compressed if a ``size`` is given."""
    if size:
        pickled = pa.decompress(pickled, size, codec=_CODEC)
    kind, values = pickle.loads(pickled)
    return kind(*values)
