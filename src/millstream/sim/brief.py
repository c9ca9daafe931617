"""Messages as short text for the trace of a run: the same text in every process."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from typing import Any

import pyarrow as pa

_LENGTH = 100
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class _Brief(reprlib.Repr):
    """Sorts sets, cuts what is long, and leaves out addresses in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 4, 40, 40
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 4

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, bytes):
            return f"<{len(x)} bytes>"
        if isinstance(x, pa.Table | pa.RecordBatch):
            return f"<{x.num_rows} rows>"
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            name = type(x).__name__
            if level <= 0:
                return f"{name}(…)"
            values = [getattr(x, field.name) for field in dataclasses.fields(x)[:6]]
            return f"{name}({', '.join(self.repr1(value, level - 1) for value in values)})"
        return _ADDRESS.sub("", super().repr_instance(x, level))

    repr_bytes = repr_Table = repr_RecordBatch = repr_instance  # noqa: N815


_brief = _Brief()


def brief(message: object) -> str:
    """A message as short text; nothing for None."""
    if message is None:
        return ""
    text = " ".join(_brief.repr(message).split())
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1]}…"
