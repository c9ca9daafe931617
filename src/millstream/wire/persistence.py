"""What nodes write into the store, and how they restore slots from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from millstream.checkpoints.manifest import BaseRecord, DeltaRecord
from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.commit import Commit
from millstream.wire.request import Request


@dataclass(frozen=True)
class RestorePlan:
    """The records from which a node restores its slots to a commit.

    ``jobs`` maps the ids that jobs have in the checkpoint to the jobs of this run.
    """

    incarnation: int
    committed: Commit
    jobs: Mapping[str, int]
    key_types: Mapping[int, pa.DataType]
    bases: tuple[BaseRecord, ...]
    deltas: tuple[DeltaRecord, ...]


@dataclass(frozen=True)
class FetchRestorePlan(Request[RestorePlan]):
    """A node asks the coordinator how to restore its slots."""

    node: NodeId


@dataclass(frozen=True)
class IsRestored(Request[bool]):
    """Asks a node whether it has restored all slots that it owns; raises what prevents it."""


@dataclass(frozen=True)
class Persisted:
    """The records that a node has written, and for which slots."""

    deltas: tuple[DeltaRecord, ...]
    bases: tuple[BaseRecord, ...]
    slots: tuple[range, ...]


@dataclass(frozen=True)
class Persist(Request[Persisted]):
    """Tells a node to write the epochs after ``since`` up to a commit into the store."""

    incarnation: int
    since: int
    committed: Commit


class NotReadyError(MillstreamError):
    """A node cannot serve a request yet; retry later."""


class RebasedError(NotReadyError):
    """Base records of reassigned slots were written; retry with a newer commit."""
