"""The chain decides who commits, also among drivers that slept while old links were deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.checkpoints.chain import Chain, CommitUnknown, Superseded
from millstream.checkpoints.lineage import EMPTY, Lineage
from tests.checkpoints.links import manifest
from tests.checkpoints.memory_store import MemoryStore


def claimed(chain: Chain, seen: Lineage | None = None) -> Lineage:
    seen = chain.read() if seen is None else seen
    lineage = chain.claim(seen, seen.epoch, 0, "host", 7)
    assert lineage is not None
    return lineage


def committed(chain: Chain, lineage: Lineage, epochs: int) -> Lineage:
    for _ in range(epochs):
        following = manifest(lineage.epoch + 1, incarnation=lineage.incarnation)
        lineage = chain.commit(lineage, following)
    return lineage


@pytest.fixture
def chain() -> Chain:
    return Chain(MemoryStore())


def test_a_driver_that_was_replaced_commits_nothing(chain: Chain) -> None:
    old = committed(chain, claimed(chain), 1)
    claimed(chain)

    with pytest.raises(Superseded) as told:
        committed(chain, old, 1)

    assert told.value.by == 2
    assert chain.read().epoch == 0


def test_a_claim_that_comes_late_is_made_again(chain: Chain) -> None:
    seen = chain.read()
    committed(chain, claimed(chain), 1)

    assert chain.claim(seen, seen.epoch, 0, "host", 7) is None


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_claim_where_links_were_deleted_does_not_count(chain: Chain, before: int) -> None:
    newest = committed(chain, claimed(chain), 3)
    chain.forget(before)

    assert chain.claim(EMPTY, EMPTY.epoch, 0, "host", 7) is None
    assert committed(chain, newest, 1).newest == chain.read().newest


def test_a_manifest_where_links_were_deleted_does_not_count(chain: Chain) -> None:
    slept = claimed(chain)
    newest = committed(chain, claimed(chain), 3)
    chain.forget(newest.position - 1)

    with pytest.raises(Superseded):
        committed(chain, slept, 1)

    assert chain.links()[0] == [newest.newest]


def test_a_link_in_a_hole_connects_nothing(chain: Chain) -> None:
    first, second = claimed(chain), claimed(chain)
    newest = committed(chain, claimed(chain), 3)
    chain.forget(newest.position - 1)
    chain._put(replace(manifest(0), position=first.position))  # and died before it looked

    with pytest.raises(Superseded):
        committed(chain, second, 1)


def test_a_manifest_counts_when_all_before_it_was_deleted_at_once(chain: Chain) -> None:
    lineage = committed(chain, claimed(chain), 2)
    chain.forget(lineage.position)

    assert committed(chain, lineage, 1).epoch == 2


def test_whether_a_manifest_counts_behind_which_others_went_on_is_left_open(chain: Chain) -> None:
    slept = claimed(chain)
    newest = committed(chain, claimed(chain), 1)
    chain.forget(newest.position - 1)
    assert (slept.position, newest.position) == (1, 3)

    with pytest.raises(CommitUnknown):
        committed(chain, slept, 1)

    assert chain.read().newest == newest.newest


def test_who_was_replaced_is_told_before_it_removes_anything(chain: Chain) -> None:
    old = committed(chain, claimed(chain), 1)
    chain.require_newest(old)
    claimed(chain)

    with pytest.raises(Superseded):
        chain.require_newest(old)
