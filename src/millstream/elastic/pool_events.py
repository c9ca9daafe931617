"""Events of the pool of nodes, before they are added to the log of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EventKind = Literal[
    "replaced",
    "replacement-paused",
    "not-started",
    "launch-failed",
    "executors-requested",
    "executors-granted",
    "executors-not-granted",
    "executors-released",
]


@dataclass(frozen=True)
class PoolEvent:
    """Something that happened in the pool: its kind, a sentence, and the facts behind it."""

    kind: EventKind
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
