"""What an epoch is restored from: base records, and the delta records after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.checkpoints.epoch_contents import (
    Contents,
    EpochIncompleteError,
    contents_of,
    newest_bases,
)
from millstream.checkpoints.garbage import garbage, named
from millstream.checkpoints.lineage import EMPTY, Lineage
from millstream.checkpoints.manifest import (
    BaseRecord,
    DeltaRecord,
    JobMetadata,
    Manifest,
    WorkflowMetadata,
)
from millstream.checkpoints.records import base_key, delta_key
from tests.checkpoints.links import ALL, NOTE, SLOTS, base, chain_of, claim, delta, manifest

LEFT, RIGHT = range(0, 2), range(2, 4)


def epochs_of(contents: Contents) -> list[int]:
    return [found.through for found in contents.deltas]


def test_without_a_base_all_deltas_are_needed_oldest_first() -> None:
    contents = contents_of(chain_of(claim(), manifest(0), manifest(1), manifest(2)), 2)

    assert epochs_of(contents) == [0, 1, 2] and contents.bases == ()
    assert contents.since == -1 and contents.workflow == NOTE
    assert contents.keys == [delta(epoch).key for epoch in range(3)]
    assert contents.bytes == 300


def test_an_older_epoch_is_restored_as_it_was() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1), manifest(2, base(1)))

    assert epochs_of(contents_of(lineage, 1)) == [0, 1]


def test_a_base_replaces_older_records() -> None:
    lineage = chain_of(
        claim(), manifest(0), manifest(1), manifest(2, base(1)), manifest(3, base(1))
    )
    contents = contents_of(lineage, 3)

    assert contents.bases == (base(1),) and epochs_of(contents) == [2, 3]
    assert contents.since == 1 and contents.bytes == 1200
    # With its links gone, too.
    assert contents_of(lineage.since(3), 3) == contents


def test_slots_without_a_base_need_all_their_deltas() -> None:
    old = manifest(0, deltas=[delta(0, LEFT), delta(0, RIGHT)])
    lineage = chain_of(claim(), old, manifest(1), manifest(2, base(1, LEFT)))
    contents = contents_of(lineage, 2)

    assert contents.since == -1
    assert [(p.through, p.slots) for p in contents.deltas] == [(0, RIGHT), (1, ALL), (2, ALL)]


def test_of_several_bases_the_newest_counts_for_each_slot() -> None:
    bases = (base(0), base(2, LEFT), base(1, LEFT))
    through, kept = newest_bases(bases, SLOTS, 5)

    assert through.tolist() == [2, 2, 0, 0]
    assert kept == (base(2, LEFT), base(0))


def test_a_base_that_goes_beyond_the_epoch_does_not_count() -> None:
    wide = base(1, reaches=3)
    lineage = chain_of(claim(), manifest(0), manifest(1), manifest(2, wide), manifest(3, wide))

    assert contents_of(lineage, 2).bases == () and epochs_of(contents_of(lineage, 2)) == [0, 1, 2]
    # It is complete through epoch 1, and what is newer in it is applied again with the deltas.
    assert contents_of(lineage, 3).bases == (wide,)
    assert epochs_of(contents_of(lineage, 3)) == [2, 3]


def test_a_manifest_of_several_epochs_may_begin_before_a_base() -> None:
    wide = replace(manifest(4, base(2), deltas=[replace(delta(4), since=0)]), parent=0)
    contents = contents_of(chain_of(claim(), manifest(0), wide), 4)

    assert contents.since == 2 and epochs_of(contents) == [4]


def test_epochs_without_changes_have_no_deltas_and_are_complete() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1, deltas=[]), manifest(2, deltas=[]))

    assert epochs_of(contents_of(lineage, 2)) == [0]


def test_an_epoch_without_a_manifest_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(EpochIncompleteError, match=r"epoch 7 .* no manifest; .* from 0 to 1"):
        contents_of(chain_of(claim(), manifest(0), manifest(1)), 7)
    with pytest.raises(EpochIncompleteError, match=r"epoch 0 .* no manifest; .*: none"):
        contents_of(chain_of(claim()), 0)


def test_a_gap_between_manifests_is_an_error_unless_a_base_follows_it() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1), manifest(2), manifest(3, base(1)))
    without = replace(lineage, manifests=(lineage.manifests[0], *lineage.manifests[2:]))

    with pytest.raises(
        EpochIncompleteError, match=r"epoch 2 .* the manifest of epoch 1 is missing"
    ):
        contents_of(without, 2)
    assert epochs_of(contents_of(without, 3)) == [2, 3]


def test_withdrawn_records_are_not_part_of_an_epoch() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1), claim(0, 2), manifest(1, incarnation=2))

    assert contents_of(lineage, 1).keys == [delta(0).key, delta(1, incarnation=2).key]


# -- jobs that are not durable -------------------------------------------------------------------

FLEETING = WorkflowMetadata("flow", SLOTS, (JobMetadata("count", "stateful", "", durable=False),))


def fleeting(epoch: int, workflow: WorkflowMetadata = FLEETING) -> Manifest:
    return replace(manifest(epoch, deltas=[]), workflow=workflow)


@pytest.mark.parametrize("workflow", [FLEETING, replace(FLEETING, jobs=())])
def test_a_workflow_without_durable_state_needs_nothing_from_before(
    workflow: WorkflowMetadata,
) -> None:
    lineage = chain_of(claim(), *(fleeting(epoch, workflow) for epoch in range(4)))
    contents = contents_of(lineage, 3)

    assert contents.keys == [] and contents.since == 3
    assert contents_of(lineage.since(4), 3) == contents
    assert garbage(lineage, [], retain=1).links_before == 4  # else the chain grows for ever


def test_jobs_that_became_durable_need_no_older_records() -> None:
    lineage = chain_of(claim(), fleeting(0), fleeting(1), claim(1, 2), manifest(2), manifest(3))
    contents = contents_of(lineage, 3)

    assert epochs_of(contents) == [2, 3] and contents.since == 1
    assert contents_of(lineage.since(2), 3) == contents


# -- any history ---------------------------------------------------------------------------------


@dataclass
class History:
    """A checkpoint as nodes write it, and which epochs have changed each slot."""

    lineage: Lineage = EMPTY
    changed: list[set[int]] = field(default_factory=lambda: [set() for _ in ALL])
    parts: dict[str, dict[int, int]] = field(default_factory=dict)
    bases: tuple[BaseRecord, ...] = ()

    def commit(self, draw: st.DrawFn, cuts: Sequence[int]) -> None:
        """Commit one or several epochs at once; nodes may have sealed later ones already."""
        parent = self.lineage.epoch
        epoch = parent + draw(st.integers(1, 3))
        for slot in ALL:
            self.changed[slot] |= draw(st.sets(st.integers(parent + 1, epoch)))
        deltas = tuple(
            DeltaRecord(
                delta_key(epoch, 0, 0, "count", slots, "node"), "count", slots, parent, epoch, 1
            )
            for slots in cut(cuts)
            if any(self.changes(slot, parent, epoch) for slot in slots)
        )
        for slots in cut(draw(cutting)):
            if draw(st.booleans()):
                self.base(slots, [draw(st.integers(0, epoch + 1)) for _ in slots])
        _, kept = newest_bases(self.bases, SLOTS, epoch)
        self.lineage = self.lineage.then(
            replace(
                manifest(epoch, *kept, deltas=deltas),
                parent=parent,
                position=self.lineage.position,
            )
        )

    def base(self, slots: range, through: list[int]) -> None:
        key = base_key(max(through), 0, slots, "node", len(self.parts))
        self.parts[key] = dict(zip(slots, through, strict=True))
        self.bases = (*self.bases, BaseRecord(key, slots, min(through), max(through), 1))

    def changes(self, slot: int, since: int, through: int) -> set[int]:
        return {epoch for epoch in self.changed[slot] if since < epoch <= through}

    def restored(self, contents: Contents, slot: int) -> set[int]:
        """The changes that a slot has seen when it was brought back."""
        reached = -1
        for found in contents.bases:
            if slot in found.slots:
                reached = self.parts[found.key][slot]
                break
        seen = self.changes(slot, -1, reached)
        for part in contents.deltas:
            if slot in part.slots and part.through > reached:
                seen |= self.changes(slot, part.since, part.through)
        return seen


def cut(at: Sequence[int]) -> list[range]:
    bounds = [0, *sorted(set(at)), SLOTS]
    return [range(a, b) for a, b in pairwise(bounds)]


cutting = st.lists(st.integers(1, SLOTS - 1), max_size=3)


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for _ in range(draw(st.integers(1, 6))):
        history.commit(draw, draw(cutting))
    return history


@given(histories(), st.data())
def test_any_epoch_is_restored_with_every_change_and_no_later_one(
    history: History, data: st.DataObject
) -> None:
    epoch = data.draw(st.sampled_from([found.epoch for found in history.lineage.manifests]))
    contents = contents_of(history.lineage, epoch)

    for slot in ALL:
        assert history.restored(contents, slot) == history.changes(slot, -1, epoch)


@given(histories(), st.data())
def test_with_missing_manifests_an_epoch_is_restored_completely_or_not_at_all(
    history: History, data: st.DataObject
) -> None:
    lineage = history.lineage
    kept = tuple(m for m in lineage.manifests[:-1] if data.draw(st.booleans()))
    less = replace(lineage, manifests=(*kept, lineage.manifests[-1]))
    try:
        contents = contents_of(less, lineage.epoch)
    except EpochIncompleteError:
        needed = contents_of(lineage, lineage.epoch).since
        gone = set(lineage.manifests) - set(kept) - {lineage.newest}
        assert any(found.epoch > needed for found in gone)
    else:
        assert contents == contents_of(lineage, lineage.epoch)


@given(histories(), st.integers(1, 3), st.booleans())
def test_what_is_garbage_is_needed_by_no_retained_epoch(
    history: History, retain: int, seen: bool
) -> None:
    lineage = history.lineage
    published = lineage.epoch - 1 if seen else -1
    newest = replace(lineage.manifests[-1], published=published)
    lineage = replace(lineage, manifests=(*lineage.manifests[:-1], newest))
    # By an older incarnation: all that nobody needs may go.
    keys = [key for one in lineage.manifests for key in named(one)]
    found = garbage(replace(lineage, incarnation=1), keys, retain)
    left = lineage.since(found.links_before)

    for one in lineage.manifests[-retain:]:
        contents = contents_of(left, one.epoch)
        assert contents == contents_of(lineage, one.epoch)
        assert not set(contents.keys) & set(found.records)
    unpublished = [one for one in lineage.manifests if one.epoch > published]
    assert set(unpublished) <= set(left.manifests)
