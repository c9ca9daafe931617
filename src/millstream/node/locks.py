"""The two locks of a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Locks:
    """``state`` to reduce over the state or to change it, ``metadata`` for everything else.

    Metadata is what the node has promised: units, receipts, copies. Hold it briefly. Acquire
    ``state`` before ``metadata``. To change state takes both, to read it takes one of them.
    """

    state: AbstractContextManager[Any]
    metadata: AbstractContextManager[Any]

    @contextmanager
    def both(self) -> Iterator[None]:
        with self.state, self.metadata:
            yield
