"""How a run claims its checkpoint: from which epoch it resumes, and as which incarnation.

It resumes from the newest complete epoch, or from the one the user asked for. Then it claims the
checkpoint; from that moment no older driver can commit.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from millstream.checkpoints.chain import Chain, key_of, lost_origin
from millstream.checkpoints.epoch_contents import Contents, EpochIncompleteError, contents_of
from millstream.checkpoints.evolution import Changes, begin, evolve
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import Link, WorkflowMetadata
from millstream.checkpoints.verification import missing
from millstream.errors import MillstreamError
from millstream.stores.store import CorruptRecordError, Damage, Store

log = logging.getLogger("millstream")

Recovery = Literal["eager", "lazy"]
_AT_ONCE = 64
_NO_EPOCH = -1


class CheckpointDamagedError(MillstreamError):
    """No epoch of a checkpoint can be restored."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, why)
        self.url, self.why = url, why

    def __str__(self) -> str:
        return (
            f"no epoch of the checkpoint in {self.url} is complete: {self.why}. `millstream "
            "checkpoint verify` lists what is damaged; restore it from a backup, or start with a "
            "new checkpoint"
        )


class WithdrawalRefusedError(MillstreamError):
    """A rewind would withdraw outputs of sinks that cannot stage."""

    def __init__(self, newest: int, after: int, why: str) -> None:
        super().__init__(newest, after, why)
        self.newest, self.after, self.why = newest, after, why

    def __str__(self) -> str:
        return (
            f"epoch {self.newest} is damaged ({self.why}), and epoch {self.after} is the newest "
            "complete one; but this workflow has a sink that cannot withdraw outputs. "
            f"If the sink may receive the later epochs again, pass restore_epoch={self.after}"
        )


@dataclass(frozen=True)
class Claimed:
    """A checkpoint that this run has claimed."""

    lineage: Lineage
    workflow: WorkflowMetadata
    after: int
    by: int | None
    withdrawn: bool


def claim(
    store: Store,
    url: str,
    workflow: WorkflowMetadata,
    meant: Changes,
    *,
    restore_epoch: int | None,
    recovery: Recovery,
    can_withdraw: bool,
    require_logs: Callable[[Lineage, int], None] = lambda seen, epoch: None,
) -> Claimed:
    """Find the epoch to resume from, and claim the checkpoint after it.

    ``require_logs`` raises if Spark's logs do not reach an epoch of the chain. It is called before
    the claim, which discards later epochs for good.
    """
    chain = Chain(store)
    while True:
        damages: list[Damage] = []
        seen = chain.read(on_damage=damages.append)
        hidden = _hidden(seen, damages)
        try:
            if hidden and seen.newest is None:
                raise CheckpointDamagedError(url, str(hidden[0]))
            lost = lost_origin(seen)
            if lost is not None and not hidden:
                raise CheckpointDamagedError(url, str(lost))
            # An unreadable link may be a claim, whose number must not be reused.
            seen = replace(seen, incarnation=seen.incarnation + len(hidden))
            found, why = _choose(store, url, seen, restore_epoch, check=recovery == "eager")
        except (CheckpointDamagedError, EpochIncompleteError, CorruptRecordError):
            if chain.has_grown(seen):
                continue  # a concurrent run has collected garbage
            raise
        after = _NO_EPOCH if found is None else found.epoch
        newest = seen.epoch
        if hidden:
            newest, why = seen.epoch + 1, why or str(hidden[0])
        if (damages or why is not None) and chain.has_grown(seen):
            continue
        for damage in damages:
            log.warning("the checkpoint's chain is damaged: %s", damage)
        if why is not None and restore_epoch is None:
            if not can_withdraw:
                raise WithdrawalRefusedError(newest, after, why)
            log.warning(
                "the checkpoint's newest epoch %d cannot be restored (%s); resuming from epoch %d, "
                "and replaying what followed",
                newest,
                why,
                after,
            )
        number = seen.incarnation + 1
        resumed = (
            begin(replace(workflow, changes=str(meant)), number)
            if found is None
            else evolve(found.workflow, workflow, meant, number)
        )
        chosen = seen.manifest(after)
        if chosen is not None:
            try:
                require_logs(seen, after)
            except MillstreamError:
                if chain.has_grown(seen):
                    continue
                raise
        lineage = chain.claim(
            seen, after, round(time.time() * 1e6), socket.gethostname(), os.getpid()
        )
        if found is not None and lineage is not None and missing(store, lineage, found):
            # An older driver, or a garbage collection, did not know yet that it is needed again.
            chain.withdraw(lineage)
            continue
        if lineage is not None:
            by = None if chosen is None else chosen.incarnation
            return Claimed(lineage, resumed, after, by, withdrawn=newest > after)


def _hidden(seen: Lineage, damages: list[Damage]) -> list[Damage]:
    """Unreadable links that may have committed epochs that are not known.

    Not those before a claim that resumed from a known epoch: the claim has discarded them.
    """
    known: list[Link] = list(seen.manifests[-1:])
    if seen.claim is not None and seen.claim.after <= seen.epoch:
        known.append(seen.claim)
    last = max((key_of(link.position) for link in known), default="")
    return [damage for damage in damages if damage.key is None or damage.key > last]


def _choose(
    store: Store, url: str, seen: Lineage, wanted: int | None, *, check: bool
) -> tuple[Contents | None, str | None]:
    """The contents of the epoch to resume from, and why it is not the newest one."""
    if wanted is not None:
        contents = contents_of(seen, wanted)
        _check(store, contents, thoroughly=check)
        return contents, None
    why: str | None = None
    for manifest in reversed(seen.manifests):
        try:
            contents = contents_of(seen, manifest.epoch)
            _check(store, contents, thoroughly=check)
            return contents, why
        except (EpochIncompleteError, CorruptRecordError) as problem:
            why = why or str(problem)
    if why is not None:
        raise CheckpointDamagedError(url, why)
    return None, None


def _check(store: Store, contents: Contents, *, thoroughly: bool) -> None:
    """Check that all records exist; ``thoroughly``, that none is corrupt."""
    keys = contents.keys
    if not thoroughly:
        existing = set(store.scan("data/"))
        for key in keys:
            if key not in existing:
                raise _missing(key)
        return
    for at in range(0, len(keys), _AT_ONCE):
        batch = keys[at : at + _AT_ONCE]
        records = store.get(batch)
        for key in batch:
            if key not in records:
                raise _missing(key)


def _missing(key: str) -> CorruptRecordError:
    return CorruptRecordError(Damage(key, "the store", 0, "the record is missing"))
