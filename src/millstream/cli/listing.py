"""What ``millstream checkpoint ls`` lists."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from millstream.checkpoints.epoch_contents import EpochIncompleteError, contents_of
from millstream.checkpoints.lineage import Lineage, lineage_of
from millstream.checkpoints.manifest import Claim, Link, Manifest


@dataclass(frozen=True)
class Epoch:
    """A committed epoch: its own records, those to restore it, and whether these exist.

    ``published`` is known from later manifests; None for the newest epochs.
    """

    epoch: int
    incarnation: int
    time: int
    parent: int
    records: int
    bytes: int
    restore_records: int | None
    restore_bytes: int | None
    published: bool | None
    complete: bool


@dataclass(frozen=True)
class Incarnation:
    """A start of the workflow; ``epochs`` of it are still committed."""

    incarnation: int
    after: int
    time: int
    host: str
    pid: int
    epochs: int


@dataclass(frozen=True)
class Listing:
    """The epochs of a checkpoint, and its incarnations as far as the chain has them."""

    workflow: str | None
    slots: int | None
    jobs: list[str]
    epochs: list[Epoch]
    incarnations: list[Incarnation]


def listing(links: Sequence[Link], keys: Set[str]) -> Listing:
    """List the links of a chain; ``keys`` are those of the existing records."""
    lineage = lineage_of(links)
    newest = lineage.newest
    return Listing(
        workflow=newest.workflow.name if newest else None,
        slots=newest.workflow.slots if newest else None,
        jobs=[job.name for job in newest.workflow.jobs] if newest else [],
        epochs=[_epoch(lineage, manifest, keys) for manifest in lineage.manifests],
        incarnations=[_incarnation(link, lineage) for link in links if isinstance(link, Claim)],
    )


def _epoch(lineage: Lineage, manifest: Manifest, keys: Set[str]) -> Epoch:
    try:
        contents = contents_of(lineage, manifest.epoch)
    except EpochIncompleteError:
        contents = None
    published = -1 if lineage.newest is None else lineage.newest.published
    return Epoch(
        epoch=manifest.epoch,
        incarnation=manifest.incarnation,
        time=manifest.time,
        parent=manifest.parent,
        records=len(manifest.deltas),
        bytes=sum(delta.bytes for delta in manifest.deltas),
        restore_records=len(contents.keys) if contents else None,
        restore_bytes=contents.bytes if contents else None,
        published=True if manifest.epoch <= published else None,
        complete=contents is not None and set(contents.keys) <= keys,
    )


def _incarnation(claim: Claim, lineage: Lineage) -> Incarnation:
    epochs = [m for m in lineage.manifests if m.incarnation == claim.incarnation]
    return Incarnation(
        claim.incarnation, claim.after, claim.time, claim.host, claim.pid, len(epochs)
    )
