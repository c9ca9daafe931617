"""What an epoch is restored from: base records, and the delta records after them. No I/O.

Each slot is restored from its newest base that does not go beyond the epoch, or from the empty
state before epoch 0; then every delta after it is applied, in order. A workflow without durable
jobs has no state, so that each of its epochs counts as an empty base.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import BaseRecord, DeltaRecord, Manifest, WorkflowMetadata
from millstream.errors import MillstreamError
from millstream.ring.masks import SlotMask

EMPTY = -1
"""The epoch of a slot before any record is applied to it."""


class EpochIncompleteError(MillstreamError):
    """An epoch cannot be restored from the records of the checkpoint."""

    def __init__(self, epoch: int, why: str) -> None:
        super().__init__(epoch, why)
        self.epoch, self.why = epoch, why

    def __str__(self) -> str:
        return f"epoch {self.epoch} cannot be restored: {self.why}"


@dataclass(frozen=True)
class Contents:
    """The records of an epoch: its bases, newest first, and its deltas, oldest first."""

    epoch: int
    workflow: WorkflowMetadata
    bases: tuple[BaseRecord, ...]
    deltas: tuple[DeltaRecord, ...]
    since: int
    """The manifests after this epoch are needed."""

    @property
    def keys(self) -> list[str]:
        return [*(base.key for base in self.bases), *(delta.key for delta in self.deltas)]

    @property
    def bytes(self) -> int:
        return sum(base.bytes for base in self.bases) + sum(delta.bytes for delta in self.deltas)


def contents_of(lineage: Lineage, epoch: int) -> Contents:
    """Find the records of an epoch, or raise ``EpochIncompleteError``."""
    manifest = lineage.manifest(epoch)
    if manifest is None:
        known = [found.epoch for found in lineage.manifests]
        span = f"from {known[0]} to {known[-1]}" if known else "none"
        raise EpochIncompleteError(epoch, f"it has no manifest; epochs with one: {span}")
    if not _has_state(manifest):
        return Contents(epoch, manifest.workflow, (), (), epoch)
    through, bases = newest_bases(manifest.bases, manifest.workflow.slots, epoch)
    path, since = _path(lineage, manifest, int(through.min()))
    deltas = tuple(
        delta
        for link in path
        for delta in link.deltas
        if (through[delta.slots.start : delta.slots.stop] < delta.through).any()
    )
    return Contents(epoch, manifest.workflow, bases, deltas, since)


def newest_bases(
    bases: tuple[BaseRecord, ...], slots: int, epoch: int
) -> tuple[npt.NDArray[np.int64], tuple[BaseRecord, ...]]:
    """The bases to restore an epoch from, newest first, and the epoch of each slot after them."""
    through = np.full(slots, -1, dtype=np.int64)
    found = []
    for base in sorted(bases, key=lambda base: base.through, reverse=True):
        part = through[base.slots.start : base.slots.stop]
        if base.reaches <= epoch and (part < base.through).any():
            np.maximum(part, base.through, out=part)
            found.append(base)
    return through, tuple(found)


def base_applies_to(slots: range, wanted: SlotMask, through: npt.NDArray[np.int64]) -> SlotMask:
    """The wanted slots that a part of a base record restores: those that are still empty.

    Bases are applied newest first, so the first one counts.
    """
    return _within(slots, wanted & (through == EMPTY))


def delta_applies_to(
    slots: range, epoch: int, wanted: SlotMask, through: npt.NDArray[np.int64]
) -> SlotMask:
    """The wanted slots that a delta through an epoch advances. Deltas are applied oldest first."""
    return _within(slots, wanted & (through >= EMPTY) & (through < epoch))


def _within(slots: range, mask: SlotMask) -> SlotMask:
    part = np.zeros_like(mask)
    part[slots.start : slots.stop] = mask[slots.start : slots.stop]
    return part


def _has_state(manifest: Manifest) -> bool:
    return any(job.durable for job in manifest.workflow.jobs)


def _path(lineage: Lineage, newest: Manifest, since: int) -> tuple[list[Manifest], int]:
    """The manifests from a base to an epoch, oldest first, and the epoch after which they begin."""
    path = [newest]
    while path[-1].parent > since:
        before = lineage.manifest(path[-1].parent)
        if before is None:
            raise EpochIncompleteError(
                newest.epoch, f"the manifest of epoch {path[-1].parent} is missing or damaged"
            )
        if not _has_state(before):
            return path[::-1], before.epoch
        path.append(before)
    return path[::-1], since
