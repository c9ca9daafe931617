"""The node's state machine: fences, fragments, receipts, seals. No I/O, no clock.

Each attempt of a unit writes a private fragment over the committed state. The first attempt to
finish is frozen, with its outputs kept until the epoch is sealed; every later attempt is given
the same outputs. The Flight server drives this class in production.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.flow.workflow import JobVertex
from millstream.node.messages import (
    Assign,
    BrokenFeed,
    End,
    Feed,
    FeedRefused,
    NotDeterministic,
    Receipt,
)
from millstream.ring.hashing import hash_key
from millstream.ring.keys import canonical_key
from millstream.ring.ring import NodeId, Ring
from millstream.state.blocks import KEY, Origin, from_bytes
from millstream.state.values import unify_nulls
from millstream.work.pausing import without_collector
from millstream.work.reducing import reducing_for
from millstream.work.units import Reduced, Reducing, UnitContext

Unit = tuple[int, range]
_FOREIGN = -1


@dataclass(frozen=True)
class Block:
    """One block as it arrived."""

    origin: Origin
    data: pa.Buffer


@dataclass(frozen=True)
class Frozen:
    """The first finished attempt of a unit."""

    digest: str
    reduced: Reduced[Any]
    receipt: Receipt


class UnknownJob(MillstreamError):
    """A job was named that the workflow does not have."""


class NodeMachine:
    """What one node owns and has promised."""

    def __init__(
        self,
        node: NodeId,
        jobs: Mapping[int, JobVertex],
        slots: int,
        digest: Callable[[Sequence[Block]], str],
        clock: Callable[[], float],
    ) -> None:
        self.node = node
        self._jobs = jobs
        self._slots = slots
        self._digest = digest
        self._clock = clock
        self._reducing: dict[int, Reducing[Any]] = {
            at: reducing_for(job, slots) for at, job in jobs.items()
        }
        self._key_types: dict[int, pa.DataType] = {}
        self._incarnation = 0
        self._ring: Ring | None = None
        # The ring version at which this node got each slot.
        self._since = np.full(slots, _FOREIGN, dtype=np.int64)
        self._committed = -1
        self._epoch = -1
        self._try = 0
        self._time = 0
        self._frozen: dict[Unit, Frozen] = {}

    @property
    def committed(self) -> int:
        """The newest epoch whose effect is in the committed state."""
        return self._committed

    def assign(self, message: Assign) -> None:
        """Take the ring in force; slots keep the version at which this node got them."""
        if message.incarnation < self._incarnation:
            raise FeedRefused(f"incarnation {message.incarnation} is over", stale=True)
        if message.incarnation > self._incarnation:
            # What an older incarnation had under way is void, and its ring versions say nothing.
            self._ring = None
            self._since[:] = _FOREIGN
            self._frozen.clear()
            self._epoch, self._try = -1, 0
        elif self._ring is not None and message.ring.version < self._ring.version:
            return
        self._incarnation, self._ring = message.incarnation, message.ring
        owned = np.zeros(self._slots, dtype=bool)
        if self.node in message.ring.nodes:
            owned[message.ring.slots_of(self.node)] = True
        gained = owned & (self._since == _FOREIGN)
        self._since[gained] = message.ring.version
        self._since[~owned] = _FOREIGN

    def admit(self, feed: Feed) -> None:
        """Let a feed in, or refuse it; a newer epoch or try ends what came before."""
        self._fence(feed)
        if feed.committed > self._committed:
            self.seal(feed.committed)
        if (feed.epoch, feed.try_) > (self._epoch, self._try):
            # The older try is void; a sealed epoch left nothing frozen behind.
            self._frozen.clear()
            self._epoch, self._try, self._time = feed.epoch, feed.try_, feed.time

    def _fence(self, feed: Feed) -> None:
        if feed.incarnation != self._incarnation:
            raise FeedRefused(
                f"incarnation {feed.incarnation} is not {self._incarnation}",
                stale=feed.incarnation < self._incarnation,
            )
        if feed.job not in self._jobs:
            raise UnknownJob(f"this node runs no job {feed.job}")
        if feed.epoch <= self._committed:
            raise FeedRefused(f"epoch {feed.epoch} is committed", stale=True)
        if (feed.epoch, feed.try_) < (self._epoch, self._try):
            raise FeedRefused(
                f"try {feed.try_} of epoch {feed.epoch} was replaced by try {self._try} of "
                f"epoch {self._epoch}",
                stale=True,
            )
        since = self._since[feed.slots.start : feed.slots.stop]
        foreign = np.flatnonzero((since < 0) | (since > feed.ring))
        if len(foreign) or len(since) < len(feed.slots):
            slot = feed.slots.start + int(foreign[0]) if len(foreign) else feed.slots.stop - 1
            raise FeedRefused(
                f"slot {slot} is not owned by node {self.node} under ring {feed.ring}",
                stale=False,
            )

    def finish(self, feed: Feed, blocks: Sequence[Block], end: End) -> list[pa.RecordBatch]:
        """Reduce a complete feed, or give what its unit's first attempt gave."""
        self.admit(feed)
        ordered = sorted(blocks, key=lambda block: block.origin)
        digest = self._digest(ordered)
        if end.blocks != len(blocks) or end.digest != digest:
            raise BrokenFeed(
                f"a feed of epoch {feed.epoch} said {end.blocks} blocks with digest {end.digest}, "
                f"but {len(blocks)} with {digest} arrived; the task will run again"
            )
        unit = (feed.job, feed.slots)
        frozen = self._frozen.get(unit)
        if frozen is None:
            frozen = self._reduce(feed, ordered, digest)
            self._frozen[unit] = frozen
        elif frozen.digest != digest:
            slots = f"{feed.slots.start} to {feed.slots.stop - 1}"
            raise NotDeterministic(self._jobs[feed.job].name, feed.epoch, slots)
        return frozen.reduced.outputs

    def _reduce(self, feed: Feed, blocks: Sequence[Block], digest: str) -> Frozen:
        started = self._clock()
        batches = [from_bytes(block.data) for block in blocks]
        unit = UnitContext(feed.slots, feed.time, feed.output, feed.read)
        with without_collector():
            reduced = self._reducing[feed.job].reduce(batches, unit)
        outputs = reduced.outputs
        receipt = Receipt(
            job=feed.job,
            epoch=feed.epoch,
            try_=feed.try_,
            slots=feed.slots,
            rows=feed.rows,
            keys=reduced.keys,
            outputs=sum(batch.num_rows for batch in outputs),
            seconds=self._clock() - started,
            key_type=_key_type(batches),
            output=outputs[0].schema if outputs else None,
        )
        return Frozen(digest, reduced, receipt)

    def receipts(self, epoch: int, try_: int) -> tuple[Receipt, ...]:
        """The units frozen for an epoch and try; none once either was replaced."""
        if (epoch, try_) != (self._epoch, self._try):
            return ()
        return tuple(frozen.receipt for frozen in self._frozen.values())

    def seal(self, epoch: int) -> None:
        """Merge the frozen fragments of a committed epoch; sealing again changes nothing."""
        if epoch <= self._committed:
            return
        if epoch == self._epoch:
            for (job, _), frozen in self._frozen.items():
                with without_collector():
                    self._reducing[job].apply(frozen.reduced.fragment, self._time)
                self._learn_key_type(job, frozen.receipt.key_type)
        self._frozen.clear()
        self._committed = epoch

    def _learn_key_type(self, job: int, found: pa.DataType | None) -> None:
        known = self._key_types.get(job)
        kinds = [kind for kind in (known, found) if kind is not None]
        kind = unify_nulls(kinds) if kinds else None
        if kind is not None:
            self._key_types[job] = kind

    def get(self, job: int, key: Any) -> Any:
        """A key's committed state, or None."""
        if job not in self._jobs:
            raise UnknownJob(f"this node runs no job {job}")
        kind = self._key_types.get(job)
        if kind is None or (pa.types.is_null(kind) and key is not None):
            return None  # no key of the key's type has come this way
        canonical = canonical_key(key, kind)
        slot = hash_key(canonical, kind) % self._slots
        return self._reducing[job].get(slot, canonical)

    def items(self, job: int) -> Iterator[tuple[Any, Any]]:
        """All committed keys of a job on this node, with their state."""
        yield from self._reducing[job].items()

    def state_keys(self) -> dict[int, int]:
        """How many keys each job holds here."""
        return {job: reducing.keys for job, reducing in self._reducing.items()}


def _key_type(batches: Sequence[pa.RecordBatch]) -> pa.DataType | None:
    """The type of the keys in a unit's blocks, which reducing has found to be one."""
    return unify_nulls(b.schema.field(KEY).type for b in batches) if batches else None
