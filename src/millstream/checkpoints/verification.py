"""Checks a checkpoint: the chain, every record that a committed epoch needs, the store itself.

An epoch that is older than all complete ones and only lacks records was dropped by garbage
collection: its manifest stays while younger epochs need it. Records that no manifest names are not
damage either: of an epoch that was under way, or left over from an incarnation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from millstream.checkpoints.chain import PREFIX, Chain, key_of, lost_origin
from millstream.checkpoints.epoch_contents import Contents, EpochIncompleteError, contents_of
from millstream.checkpoints.garbage import named
from millstream.checkpoints.lineage import Lineage, lineage_of
from millstream.checkpoints.manifest import BaseRecord, DeltaRecord, Link, Manifest
from millstream.checkpoints.records import DATA, BadRecordError, origin_of, unpack
from millstream.checkpoints.stored_state import manifest_of
from millstream.stores.store import CorruptRecordError, Damage, Store

Status = Literal["complete", "damaged", "dropped"]
_MISSING = "it is missing"


@dataclass(frozen=True)
class _Problem:
    text: str
    is_absence: bool


@dataclass(frozen=True)
class EpochCheck:
    """Whether an epoch can be restored, and why not."""

    epoch: int
    incarnation: int
    status: Status
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class HalfWritten:
    """Records of an epoch that was never committed, by an incarnation."""

    epoch: int
    incarnation: int
    records: int


@dataclass(frozen=True)
class Findings:
    """The result of a check.

    ``elsewhere`` is damage to what no committed epoch needs; ``leftovers`` is the number of records
    that no epoch needs, and that ``gc`` would delete.
    """

    epochs: tuple[EpochCheck, ...]
    chain: tuple[Damage, ...] = ()
    records: tuple[Damage, ...] = ()
    elsewhere: tuple[Damage, ...] = ()
    half_written: tuple[HalfWritten, ...] = ()
    leftovers: int = 0

    @property
    def newest_complete(self) -> int | None:
        return max((e.epoch for e in self.epochs if e.status == "complete"), default=None)

    @property
    def ok(self) -> bool:
        """Whether all that is committed is intact."""
        return not self.chain and all(epoch.status != "damaged" for epoch in self.epochs)


def check(store: Store) -> Findings:
    """Check everything."""
    chain: dict[str | None, Damage] = {}
    links, position = Chain(store).links(lambda damage: chain.update({damage.key: damage}))
    lineage = replace(lineage_of(links), position=position)
    lost = lost_origin(lineage)
    if lost is not None:
        chain.setdefault(lost.key, lost)
    flaws: dict[str, Damage | None] = {}
    found = [_problems(store, lineage, manifest, flaws) for manifest in lineage.manifests]
    pruned = bool(links) and links[0].position > 0
    epochs = tuple(_statuses(lineage.manifests, found, pruned))
    dropped = {epoch.epoch for epoch in epochs if epoch.status == "dropped"}
    needed = {
        key
        for manifest in lineage.manifests
        if manifest.epoch not in dropped
        for key in _keys(lineage, manifest)
    }
    records = [flaw for key, flaw in flaws.items() if flaw is not None and key in needed]
    elsewhere = []
    for damage in store.verify():
        if damage.key is not None and damage.key.startswith(PREFIX):
            chain.setdefault(damage.key, damage)
        elif damage.key not in needed:
            elsewhere.append(damage)
    half_written, leftovers = _unnamed(store.scan(DATA), links, lineage, needed)
    return Findings(
        epochs, tuple(chain.values()), tuple(records), tuple(elsewhere), half_written, leftovers
    )


def check_epoch(store: Store, lineage: Lineage, epoch: int) -> Findings:
    """Check one epoch: all that it is restored from."""
    manifest = manifest_of(lineage, epoch)
    flaws: dict[str, Damage | None] = {}
    problems = _problems(store, lineage, manifest, flaws)
    status: Status = "damaged" if problems else "complete"
    return Findings(
        (_checked(manifest, status, problems),),
        records=tuple(flaw for flaw in flaws.values() if flaw is not None),
    )


def missing(store: Store, lineage: Lineage, contents: Contents) -> list[str]:
    """The keys that an epoch needs and the store lacks: links of the chain, and records."""
    since = min(contents.since, contents.epoch - 1)  # itself in any case
    links = [link for link in lineage.manifests if since < link.epoch <= contents.epoch]
    needed = {key_of(link.position) for link in links}
    needed.update(contents.keys)
    return sorted(needed.difference(store.scan(PREFIX), store.scan(DATA)))


def _problems(
    store: Store, lineage: Lineage, manifest: Manifest, flaws: dict[str, Damage | None]
) -> list[_Problem]:
    """Why an epoch cannot be restored; each record is read once."""
    try:
        contents = contents_of(lineage, manifest.epoch)
    except EpochIncompleteError as incomplete:
        return [_Problem(incomplete.why, True)]
    records: list[BaseRecord | DeltaRecord] = [*contents.bases, *contents.deltas]
    for record in records:
        if record.key not in flaws:
            flaws[record.key] = _flaw(store, record)
    found = [flaws[record.key] for record in records]
    return [_Problem(str(flaw), flaw.why == _MISSING) for flaw in found if flaw is not None]


def _keys(lineage: Lineage, manifest: Manifest) -> list[str]:
    try:
        return contents_of(lineage, manifest.epoch).keys
    except EpochIncompleteError:
        return named(manifest)


def _flaw(store: Store, record: BaseRecord | DeltaRecord) -> Damage | None:
    try:
        value = store.get([record.key]).get(record.key)
    except CorruptRecordError as corrupt:
        return corrupt.damage
    if value is None:
        return Damage(record.key, "the store", 0, _MISSING)
    if len(value) != record.bytes:
        why = f"it has {len(value)} bytes instead of {record.bytes}"
        return Damage(record.key, "the store", 0, why)
    try:
        if isinstance(record, BaseRecord):
            list(unpack(value))
    except BadRecordError as bad:
        return Damage(record.key, "the store", 0, str(bad))
    return None


def _statuses(
    manifests: tuple[Manifest, ...], found: list[list[_Problem]], pruned: bool
) -> Iterable[EpochCheck]:
    complete = [m.epoch for m, problems in zip(manifests, found, strict=True) if not problems]
    for manifest, problems in zip(manifests, found, strict=True):
        status: Status = "damaged" if problems else "complete"
        old = bool(complete) and manifest.epoch < complete[0]
        if problems and old and pruned and all(p.is_absence for p in problems):
            status = "dropped"
        yield _checked(manifest, status, problems)


def _checked(manifest: Manifest, status: Status, problems: list[_Problem]) -> EpochCheck:
    texts = tuple(problem.text for problem in problems)
    return EpochCheck(manifest.epoch, manifest.incarnation, status, texts)


def _unnamed(
    keys: Iterable[str], links: list[Link], lineage: Lineage, needed: set[str]
) -> tuple[tuple[HalfWritten, ...], int]:
    known = {key for link in links if isinstance(link, Manifest) for key in named(link)}
    begun: Counter[tuple[int, int]] = Counter()
    leftovers = 0
    for key in keys:
        try:
            origin = origin_of(key)
        except BadRecordError:
            continue
        if key not in known and origin[0] > lineage.epoch:
            begun[origin] += 1
        elif key not in needed:
            leftovers += 1
    half = (HalfWritten(epoch, by, number) for (epoch, by), number in sorted(begun.items()))
    return tuple(half), leftovers
