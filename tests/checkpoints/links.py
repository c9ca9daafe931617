"""Chains written by hand: manifests that name records, without the records."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.checkpoints.lineage import EMPTY, Lineage, lineage_of
from millstream.checkpoints.manifest import (
    BaseRecord,
    Claim,
    DeltaRecord,
    JobMetadata,
    Link,
    Manifest,
    WorkflowMetadata,
)
from millstream.checkpoints.records import base_key, delta_key

SLOTS = 4
ALL = range(SLOTS)
NOTE = WorkflowMetadata("flow", SLOTS, (JobMetadata("count", "stateful", ""),))


def claim(after: int = -1, incarnation: int = 1) -> Claim:
    return Claim(0, incarnation, after, 0, "host", 1, f"claim{incarnation}")


def delta(epoch: int, slots: range = ALL, incarnation: int = 1) -> DeltaRecord:
    key = delta_key(epoch, incarnation, 0, "count", slots, "node")
    return DeltaRecord(key, "count", slots, epoch - 1, epoch, 100)


def base(
    epoch: int, slots: range = ALL, reaches: int | None = None, incarnation: int = 1
) -> BaseRecord:
    key = base_key(epoch, incarnation, slots, "node", 1)
    return BaseRecord(key, slots, epoch, epoch if reaches is None else reaches, 1000)


def manifest(
    epoch: int,
    *bases: BaseRecord,
    deltas: Iterable[DeltaRecord] | None = None,
    incarnation: int = 1,
    published: int | None = None,
) -> Manifest:
    """A manifest that follows the epoch before, with one delta record for all slots."""
    return Manifest(
        position=0,
        incarnation=incarnation,
        epoch=epoch,
        try_=0,
        parent=epoch - 1,
        time=0,
        workflow=NOTE,
        deltas=tuple([delta(epoch, incarnation=incarnation)] if deltas is None else deltas),
        bases=bases,
        staged=(),
        published=epoch - 1 if published is None else published,
    )


def chain_of(*links: Link) -> Lineage:
    """The lineage of links, each put at the next position."""
    return lineage_of(numbered(links))


def numbered(links: Iterable[Link]) -> list[Link]:
    found: list[Link] = []
    for position, link in enumerate(links, EMPTY.position):
        fields = {name: getattr(link, name) for name in link.__dataclass_fields__}
        found.append(type(link)(**{**fields, "position": position}))
    return found
