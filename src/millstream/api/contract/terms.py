"""Words and limits that several objects of the contract share."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

Right: TypeAlias = Literal["viewer", "operator"]
"""What a token allows: to look, or also to change."""
Phase: TypeAlias = Literal["running", "finished", "stopped", "failed"]
VertexKind: TypeAlias = Literal["source", "step", "job", "sink"]
Role: TypeAlias = Literal["active", "standby", "leaving"]

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]
KeyText: TypeAlias = Annotated[str, Meta(max_length=100_000)]
