"""Each protection of the protocol is needed: without it, the simulator finds a violation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millstream.checkpoints.chain import Chain, key_of
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import Link, Manifest, Staged, encode
from millstream.coordinator import sink_recovery
from millstream.coordinator.failure_evidence import FailureEvidence, Verdict
from millstream.coordinator.journal import Journal
from millstream.coordinator.ledger import Ledger, PreparedEpoch
from millstream.coordinator.rereplication import Rereplication
from millstream.coordinator.roster import Roster
from millstream.coordinator.service import Coordinator
from millstream.coordinator.sink_folders import SinkFolders, staged_folder
from millstream.coordinator.sink_layout import epoch_folder
from millstream.coordinator.watermarks import Watermarks
from millstream.node import service
from millstream.node.current_epoch import CurrentEpoch
from millstream.node.feed_blocks import blocks_of
from millstream.node.held_units import Block, Unit, Work
from millstream.node.holdings import Holdings
from millstream.node.machine import NodeMachine
from millstream.node.pending_epochs import PendingEpochs
from millstream.node.replicator import Replicator
from millstream.node.scan_views import View, Views
from millstream.node.slot_operations import SlotOperations
from millstream.node.slot_store import SlotStore
from millstream.node.tuple_replay import TupleReplay
from millstream.ring.masks import SlotMask
from millstream.sim.scenario import play
from millstream.sim.scratch_disk import ScratchDisk
from millstream.sim.search import Kind, first_broken, in_memory, stored
from millstream.sim.slowness import Slowness
from millstream.sim.spark import SparkBody
from millstream.sim.store import StoreView
from millstream.state.blocks import PANE
from millstream.state.key_view import GONE, Change, KeyView
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.panes.fragments import PaneFragment, decode_panes
from millstream.state.panes.state import PaneState
from millstream.state.spill import SpillingState
from millstream.stores.store import StoreFullError
from millstream.wire.epoch_record import EpochRecord
from millstream.wire.feed import End, Feed
from millstream.wire.replication import Snapshot
from millstream.work.unit import Reduced, UnitContext
from millstream.work.windows.time_windows import TimeWindowOperator

pytestmark = pytest.mark.slow

SEEDS = 400
Patch = pytest.MonkeyPatch


def no_receipts(patch: Patch) -> None:
    patch.setattr(Ledger, "missing", lambda ledger: {})


def no_freezing(patch: Patch) -> None:
    patch.setattr(CurrentEpoch, "matching", lambda current, work: None)
    patch.setattr(CurrentEpoch, "require_agreement", lambda current, owned: None)


def no_limit_to_forgiveness(patch: Patch) -> None:
    """Whatever a try fails of, it runs again."""
    patch.setattr(Coordinator, "is_retryable", lambda coordinator, problem: True)


def no_fence(patch: Patch) -> None:
    patch.setattr(Holdings, "fence", lambda holdings, feed: None)


def no_continuity(patch: Patch) -> None:
    def follows(store: SlotStore, epoch: int) -> SlotMask:
        behind: SlotMask = store.holdings.through < epoch
        return behind

    def applicable(store: SlotStore, slots: range, since: int, through: int) -> SlotMask:
        mask = np.zeros(store.slots, dtype=bool)
        mask[slots.start : slots.stop] = True
        return mask & store.holdings.fed & (store.holdings.through < through)

    patch.setattr(SlotStore, "follows", follows)
    patch.setattr(SlotStore, "applicable", applicable)


def no_end_markers(patch: Patch) -> None:
    def received(items: Iterator[Any]) -> tuple[list[Block], End]:
        found = list(items)
        blocks = [b for item in found if not isinstance(item, End) for b in blocks_of(item)]
        return blocks, End(len(blocks), "")

    def work(machine: NodeMachine, feed: Feed, blocks: list[Block], end: End) -> Work:
        ordered = sorted(blocks, key=lambda block: block.origin)
        return Work(feed, ordered, machine._digest(ordered))

    patch.setattr(service, "received", received)
    patch.setattr(NodeMachine, "_work", work)


def no_eviction_by_epoch(patch: Patch) -> None:
    """A checkpoint evicts whatever is there, not only what it covers."""
    evict = PendingEpochs.evict
    patch.setattr(
        PendingEpochs,
        "evict",
        lambda pending_epochs, held, through: evict(pending_epochs, np.zeros_like(held), through),
    )


def no_replay_order(patch: Patch) -> None:
    logs = TupleReplay._logs

    def newest_first(replays: TupleReplay) -> Iterator[tuple[int, Unit]]:
        return reversed(list(logs(replays)))

    def due(replays: TupleReplay, epoch: int) -> SlotMask:
        return replays._store.holdings.owned

    patch.setattr(TupleReplay, "_logs", newest_first)
    patch.setattr(TupleReplay, "_due", due)


def no_tombstones(patch: Patch) -> None:
    encode = KeyedState.encode

    def without(state: KeyedState, fragment: KeyedFragment) -> bytes:
        def alive(entries: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in entries.items() if value is not GONE}

        plain = {s: {k: alive(e) for k, e in keys.items()} for s, keys in fragment.plain.items()}
        other = {
            s: {k: Change(alive(c.writes), False, c.plain) for k, c in keys.items()}
            for s, keys in fragment.other.items()
        }
        return encode(state, KeyedFragment(plain, other, fragment.visits))

    patch.setattr(KeyedState, "encode", without)


def no_touches_with_copies(patch: Patch) -> None:
    """When keys were last touched, only the one that has reduced them knows."""
    encode = KeyedState.encode

    def without(state: KeyedState, fragment: KeyedFragment) -> bytes:
        return encode(state, KeyedFragment(fragment.plain, fragment.other))

    patch.setattr(KeyedState, "encode", without)


def no_timers_of_copies(patch: Patch) -> None:
    """When timers are due, only the one that has reduced their keys knows."""
    decode, apply = KeyedState.decode, KeyedState.apply

    class Copied(KeyedFragment):
        pass

    def decoded(state: KeyedState, data: bytes | pa.Buffer) -> KeyedFragment:
        found = decode(state, data)
        return Copied(found.plain, found.other, found.visits)

    def applied(state: KeyedState, fragment: KeyedFragment, slots: SlotMask | None = None) -> None:
        timers = state._timers
        if isinstance(fragment, Copied):
            state._timers = None
        apply(state, fragment, slots)
        state._timers = timers

    patch.setattr(KeyedState, "decode", decoded)
    patch.setattr(KeyedState, "apply", applied)


def no_voiding_of_cold_keys(patch: Patch) -> None:
    """What could not be removed from a full disk is read again."""
    patch.setattr(SpillingState, "_make_void", lambda state, keys: None)


def no_private_copies(patch: Patch) -> None:
    patch.setattr(KeyView, "_copy_of", lambda state, name, value: value)


def no_retention(patch: Patch) -> None:
    patch.setattr(Roster, "_retained", lambda roster, short: np.zeros_like(roster.synced))


def no_waiting_for_copies(patch: Patch) -> None:
    patch.setattr(Roster, "_is_ready", lambda roster: np.ones_like(roster.synced[:, 0]))


def no_publishing_after_the_manifest(patch: Patch) -> None:
    staged = SparkBody.staged

    def published(body: SparkBody, record: EpochRecord) -> Staged:
        found = staged(body, record)
        body.publish(found)
        return found

    patch.setattr(SparkBody, "staged", published)


def no_holding_of_outputs(patch: Patch) -> None:
    """With an interval, outputs are shown when their epoch is committed in memory."""
    commit = Coordinator.commit

    def at_once(coordinator: Coordinator, staged: Staged) -> tuple[PreparedEpoch, bool]:
        prepared, _ = commit(coordinator, staged)
        return prepared, True

    patch.setattr(Coordinator, "commit", at_once)


def no_decision_by_the_chain(patch: Patch) -> None:
    def put(chain: Chain, link: Link) -> bool:
        chain._store.put({key_of(link.position): encode(link)})
        return True

    patch.setattr(Chain, "_put", put)


def no_incarnations(patch: Patch) -> None:
    """A driver commits at the first position that is free, whoever claimed before it."""
    commit = Chain.commit

    def anywhere(chain: Chain, seen: Lineage, manifest: Manifest) -> Lineage:
        _, position = chain.links(lambda damage: None)
        return commit(chain, replace(seen, position=position), manifest)

    patch.setattr(Chain, "commit", anywhere)
    patch.setattr(Chain, "_is_linked", lambda chain, seen, manifest: True)


def no_connection(patch: Patch) -> None:
    """A free position is taken for the chain's end, also where links were deleted."""
    patch.setattr(Chain, "_is_linked", lambda chain, seen, manifest: True)


def no_connection_of_claims(patch: Patch) -> None:
    patch.setattr(Chain, "_later", lambda chain, position: [])


def no_receipts_for_what_is_stored(patch: Patch) -> None:
    patch.setattr(NodeMachine, "_counts", lambda machine, unit: unit.effective)
    patch.setattr(NodeMachine, "unstored", lambda machine: [])


def no_respect_for_successors(patch: Patch) -> None:
    """A driver that wakes up while it starts cleans the sinks of the one that replaced it."""
    patch.setattr(sink_recovery, "incarnation_of", lambda attempt: 0)
    patch.setattr(Journal, "require_claim", lambda journal: None)


def no_respect_for_what_is_published(patch: Patch) -> None:
    """What is staged takes the place of what is published, as if that were half of it."""
    publish = SinkFolders.publish

    def replacing(folders: SinkFolders, epoch: int, attempt: str) -> None:
        if folders._tree.exists(staged_folder(epoch, attempt)):
            folders._tree.delete(epoch_folder(epoch))
        publish(folders, epoch, attempt)

    patch.setattr(SinkFolders, "publish", replacing)


def no_withdrawal(patch: Patch) -> None:
    """A run that goes back leaves in sight what followed."""
    patch.setattr(SinkFolders, "visible", lambda folders, after: [])


def no_errors_of_full_disks(patch: Patch) -> None:
    """A batch of which some was refused is taken for durable."""
    put = StoreView.put

    def optimistic(store: StoreView, items: Mapping[str, bytes]) -> None:
        with suppress(StoreFullError):
            put(store, items)

    patch.setattr(StoreView, "put", optimistic)


def no_watermark_in_the_record(patch: Patch) -> None:
    """Windows close by the newest time of the epoch under way, not of those before."""
    reduce = TimeWindowOperator.reduce

    def by_the_newest(
        operator: TimeWindowOperator[Any], blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[PaneFragment[Any]]:
        assert unit.clock is not None
        panes = [pc.max(block.column(PANE)).as_py() for block in blocks if block.num_rows]
        watermark = max([unit.clock.watermark, *panes])
        clock = replace(unit.clock, watermark=watermark)
        return reduce(operator, blocks, replace(unit, clock=clock))

    patch.setattr(TimeWindowOperator, "reduce", by_the_newest)


def no_clocks_in_the_manifest(patch: Patch) -> None:
    patch.setattr(Journal, "clocks", lambda journal, timings: Watermarks(tuple(timings)))


def no_eviction_by_slot(patch: Patch) -> None:
    """What a fragment says is no more needed goes from all slots, also from those behind it."""
    apply = PaneState.apply

    def from_all(
        state: PaneState[Any], fragment: PaneFragment[Any], slots: SlotMask | None = None
    ) -> None:
        apply(state, fragment, slots)
        everywhere = np.ones(state._slots, dtype=bool)
        for _, before in fragment.gone:
            state._evict({start for start in state.starts if start < before}, everywhere)

    patch.setattr(PaneState, "apply", from_all)


def no_forgetting_of_stacks(patch: Patch) -> None:
    """Stacks are used again, although others have changed the panes meanwhile."""
    patch.setattr(PaneState, "forget_stacks", lambda state, slots: None)


def no_dirty_panes_with_copies(patch: Patch) -> None:
    """Dirty panes are known to the node only that reduced them."""

    def without_dirty(data: Any, algebra: Any) -> PaneFragment[Any]:
        return replace(decode_panes(data, algebra), dirty=[])

    patch.setattr("millstream.state.panes.state.decode_panes", without_dirty)


def no_patience(patch: Patch) -> None:
    """A node that misses a ping is declared dead."""
    patch.setattr(FailureEvidence, "failed", lambda evidence, *_: Verdict.DEAD)


def no_rereplication(patch: Patch) -> None:
    patch.setattr(Rereplication, "begin", lambda rereplication: None)


def no_locks_for_copies(patch: Patch) -> None:
    """State is read for a copy while somebody else may change it."""

    def snapshot(operations: SlotOperations, slots: range) -> Iterator[Snapshot]:
        yield from operations._machine.snapshots(slots)

    patch.setattr(SlotOperations, "snapshot", snapshot)


def no_locks_for_sizes(patch: Patch) -> None:
    """Logs are weighed while others may add to them."""
    patch.setattr(
        Replicator, "relieve_log_pressure", lambda replicator: replicator._machine.log_bytes
    )


def no_views(patch: Patch) -> None:
    """A scan sees what is there, of whatever epoch."""

    def present(views: Views, view: View, slots: range, through: Any) -> Iterator[Any]:
        yield slots, views._operators[view.job].state.snapshot(slots)

    patch.setattr(Views, "parts", present)


# -- kinds of scenarios in which each protection is soon needed -------------------------------

_CALM = {"kill": 0.0, "speculate": 0.0, "rerun": 0.0, "twice": 0.0, "partly": 0.0, "flaky": 0.0}
_TROUBLE: dict[str, Any] = {"node_faults": 6, "rate": 0.03, "may_lose_state": False}
_NO_FAULTS = {"lose_request": 0.0, "lose_answer": 0.0, "duplicate": 0.0, "break_feed": 0.0}
_FEW = {"nodes": 3, "executors": 3}
CRASHES = in_memory(spark_faults=_CALM, **_TROUBLE)
UNSTEADY_MAPS = in_memory(
    spark_faults={**_CALM, "flaky": 0.5, "rerun": 1.0},
    faults=_NO_FAULTS,
    node_faults=0,
    may_lose_state=False,
)
BROKEN_FEEDS = in_memory(
    spark_faults=_CALM, faults={"break_feed": 0.2}, node_faults=0, epochs=3, may_lose_state=False
)
LOGS = in_memory(
    spark_faults=_CALM,
    size={
        "durability": "interval",
        "log_limit": 1_000_000,
        "replicate_every": 60.0,
        "replicas": 2,
        "nodes": 4,
    },
    faults=_NO_FAULTS,
    slowness=Slowness(reduce=0.5),
    changes=0.0,
    epochs=8,
    node_faults=4,
    rate=0.01,
    kinds=("crash",),
    may_lose_state=False,
)
MOVES = in_memory(
    spark_faults=_CALM,
    size={"replicas": 1, **_FEW},
    changes=0.9,
    node_faults=0,
    epochs=7,
    may_lose_state=False,
)
_MOVING: dict[str, Any] = {
    "spark_faults": _CALM,
    "faults": _NO_FAULTS,
    "changes": 0.9,
    "node_faults": 0,
}
TIMERS = in_memory("timers", size={"replicas": 1, **_FEW}, epochs=9, **_MOVING)
EXPIRY = in_memory("expiring", size={"replicas": 1, **_FEW}, epochs=7, **_MOVING)
FULL_SPILL_DISKS = in_memory(
    size={"replicas": 1, **_FEW, "disk": ScratchDisk(keys=500, outputs=0, full=0.3)},
    epochs=7,
    **_MOVING,
)
REREPLICATION = in_memory(
    spark_faults=_CALM,
    faults=_NO_FAULTS,
    size={"replicas": 1, "nodes": 4, "executors": 4},
    node_faults=2,
    rate=0.004,
    kinds=("crash",),
    may_lose_state=False,
)
SLOW_NODES = in_memory(
    spark_faults=_CALM,
    faults=_NO_FAULTS,
    slowness=Slowness(reduce=2.0, seal=2.0, encode=2.0, pause=4.0, pauses=0.5, bandwidth=5_000.0),
    size={"replicas": 1, **_FEW},
    node_faults=0,
    may_lose_state=False,
)
READS = in_memory(
    spark_faults=_CALM,
    faults=_NO_FAULTS,
    slowness=Slowness(seal=0.5),
    node_faults=0,
    reads=0.05,
    may_lose_state=False,
)
DRIVERS = stored(deaths=5, death_rate=0.1, node_faults=0, records=25)
SHORT_STARTS = stored(deaths=6, death_rate=0.1, node_faults=0, records=20, size={"nodes": 1})
UNSURE_STORE = stored(
    deaths=3,
    death_rate=0.05,
    node_faults=4,
    rate=0.02,
    lose=0.005,
    mixed=False,
    size={"durability": "epoch"},
)
LATE_WRITERS = stored(
    deaths=6,
    death_rate=0.1,
    node_faults=0,
    records=20,
    restores=0,
    size={"nodes": 1},
    options={"spark_faults": {"late": 0.5, "speculate": 0.5}},
)
GOING_BACK = stored(
    deaths=0,
    node_faults=0,
    records=25,
    restores=3,
    fulls=0,
    size={"nodes": 1},
    options={"retain": 3},
)
FULL_STORES = stored(deaths=2, node_faults=2, records=25, restores=0, fulls=5, full_rate=0.1)


def moving_windows(variant: int, epochs: int = 9) -> Kind:
    return in_memory(
        f"windows-{variant}",
        spark_faults=_CALM,
        size={"nodes": 2, "executors": 2, "replicas": 1},
        shape={"partitions": 2, "tasks": 1},
        faults=_NO_FAULTS,
        changes=0.9,
        node_faults=0,
        epochs=epochs,
    )


@pytest.mark.parametrize(
    ("switch_off", "kind"),
    [
        (no_receipts, CRASHES),
        (no_freezing, UNSTEADY_MAPS),
        (no_limit_to_forgiveness, UNSTEADY_MAPS),
        (no_fence, LOGS),
        (no_continuity, MOVES),
        (no_end_markers, BROKEN_FEEDS),
        (no_eviction_by_epoch, MOVES),
        (no_replay_order, LOGS),
        (no_tombstones, MOVES),
        (no_touches_with_copies, EXPIRY),
        (no_timers_of_copies, TIMERS),
        (no_voiding_of_cold_keys, FULL_SPILL_DISKS),
        (no_private_copies, MOVES),
        (no_retention, MOVES),
        (no_waiting_for_copies, MOVES),
        (no_publishing_after_the_manifest, DRIVERS),
        (no_holding_of_outputs, DRIVERS),
        (no_decision_by_the_chain, DRIVERS),
        (no_incarnations, DRIVERS),
        (no_connection, DRIVERS),
        (no_connection_of_claims, DRIVERS),
        (no_receipts_for_what_is_stored, UNSURE_STORE),
        (no_respect_for_successors, SHORT_STARTS),
        (no_respect_for_what_is_published, LATE_WRITERS),
        (no_withdrawal, GOING_BACK),
        (no_errors_of_full_disks, FULL_STORES),
        (no_patience, SLOW_NODES),
        (no_rereplication, REREPLICATION),
        (no_locks_for_copies, REREPLICATION),
        (no_locks_for_sizes, LOGS),
        (no_views, READS),
        (no_watermark_in_the_record, moving_windows(0)),
        (no_clocks_in_the_manifest, stored("windows-0", deaths=3)),
        (no_eviction_by_slot, moving_windows(2)),
        (no_forgetting_of_stacks, moving_windows(3, epochs=16)),
        (no_dirty_panes_with_copies, moving_windows(1)),
    ],
)
def test_without_a_protection_an_invariant_is_violated(
    switch_off: Callable[[Patch], None], kind: Kind, record_property: Callable[[str, object], None]
) -> None:
    with Patch.context() as patch:
        switch_off(patch)
        broken = first_broken(kind, range(SEEDS))

    assert broken is not None, f"{SEEDS} seeds went well without it"
    record_property("found", f"{switch_off.__name__}: {broken.problem.splitlines()[0]:.120}")
    play(kind(broken.seed))  # with all protections, all is well
