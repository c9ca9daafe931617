"""The garbage of a checkpoint: records that no retained epoch needs, and old links.

It may be computed while a run is under way, from a lineage that is a little old: of the newest
incarnation (and of any newer one) only records before all retained epochs are garbage, because a
younger one that no manifest names may be named by the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.epoch_contents import Contents, EpochIncompleteError, contents_of
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import Manifest
from millstream.checkpoints.records import DATA, BadRecordError, origin_of
from millstream.errors import ConfigError
from millstream.stores.store import Store


@dataclass(frozen=True)
class Garbage:
    """The keys of records to delete, and the position before which to delete links."""

    records: tuple[str, ...]
    links_before: int


def garbage(lineage: Lineage, keys: Iterable[str], retain: int | None = None) -> Garbage:
    """Find what the newest ``retain`` manifests, or all of them, do not need.

    ``keys`` are those of the records in the store, listed after the lineage was read.
    """
    if retain is not None and retain < 1:
        raise ConfigError(f"at least one epoch must be retained, got {retain}")
    retained = lineage.manifests if retain is None else lineage.manifests[-retain:]
    needed = {key for manifest in retained for key in named(manifest)}
    # The oldest complete epoch needs most of the older records: bases only get newer.
    complete = (
        found for manifest in retained if (found := _contents(lineage, manifest)) is not None
    )
    oldest = next(complete, None)
    floor = -1
    if oldest is not None:
        needed.update(oldest.keys)
        floor = oldest.since
    records = [
        key for key in keys if key not in needed and _is_over(key, lineage.incarnation, floor)
    ]
    return Garbage(tuple(records), _links_before(lineage, retained, floor))


def remove(store: Store, found: Garbage) -> None:
    """Delete garbage, links first: after a crash in between, the records are still garbage."""
    Chain(store).delete_before(found.links_before)
    store.delete(found.records)


def _contents(lineage: Lineage, manifest: Manifest) -> Contents | None:
    try:
        return contents_of(lineage, manifest.epoch)
    except EpochIncompleteError:
        return None  # its base is deleted: its manifest is there only for younger epochs


def named(manifest: Manifest) -> list[str]:
    """The keys of the records that a manifest names."""
    return [*(base.key for base in manifest.bases), *(delta.key for delta in manifest.deltas)]


def _is_over(key: str, incarnation: int, floor: int) -> bool:
    """Whether no manifest can name a record any more."""
    try:
        written, by = origin_of(key)
    except BadRecordError:
        return False
    # Before the floor, not at it: a base of that very epoch may be being written.
    return key.startswith(DATA) and (by < incarnation or (by == incarnation and written < floor))


def _links_before(lineage: Lineage, retained: tuple[Manifest, ...], floor: int) -> int:
    newest = lineage.newest
    if newest is None:
        return lineage.claim.position if lineage.claim else 0
    # A restart publishes what is not yet published according to the newest manifest.
    after = min(floor, newest.published)
    needed = [link.position for link in lineage.manifests if link.epoch > after]
    return min([retained[0].position, *needed])
