from __future__ import annotations

import pytest

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.epoch_contents import contents_of
from millstream.checkpoints.garbage import Garbage, garbage, remove
from millstream.checkpoints.manifest import encode
from millstream.checkpoints.records import delta_key
from millstream.errors import ConfigError
from tests.checkpoints.links import ALL, base, chain_of, claim, delta, manifest, numbered
from tests.checkpoints.memory_store import MemoryStore

LOW, HIGH = range(0, 2), range(2, 4)


def test_what_only_dropped_epochs_needed_is_garbage() -> None:
    old, new = base(0), base(2)
    lineage = chain_of(claim(), manifest(0), *(manifest(e, old) for e in (1, 2)), manifest(3, new))
    keys = [old.key, new.key, *(delta(epoch).key for epoch in range(4))]

    found = garbage(lineage, keys, retain=1)

    # Of epoch 2, which the base ends with, a record could still be on its way.
    assert found == Garbage((old.key, delta(0).key, delta(1).key), links_before=4)


def test_without_a_number_every_epoch_of_the_chain_can_be_restored() -> None:
    old, new = base(0), base(2)
    lineage = chain_of(claim(), manifest(0), manifest(1, old), manifest(2, old), manifest(3, new))
    keys = [old.key, new.key, *(delta(epoch).key for epoch in range(4))]

    found = garbage(lineage, keys)

    assert found == Garbage((), links_before=1)
    assert {key for e in range(4) for key in contents_of(lineage, e).keys} <= set(keys)


def test_links_that_lead_from_a_base_to_a_retained_epoch_stay() -> None:
    lineage = chain_of(claim(), manifest(0), *(manifest(e, base(0)) for e in (1, 2, 3, 4)))

    found = garbage(lineage, [delta(e).key for e in range(5)], retain=2)

    assert found == Garbage((), links_before=2)


def test_a_slot_without_a_base_needs_everything_since_the_beginning() -> None:
    half = base(2, LOW)
    deltas = {epoch: [delta(epoch, LOW), delta(epoch, HIGH)] for epoch in range(4)}
    lineage = chain_of(
        claim(),
        *(manifest(e, deltas=deltas[e]) for e in range(3)),
        manifest(3, half, deltas=deltas[3]),
    )
    keys = [delta.key for pair in deltas.values() for delta in pair]

    found = garbage(lineage, [*keys, half.key], retain=1)

    assert found == Garbage((), links_before=1)


def test_of_the_newest_incarnation_younger_records_without_a_name_are_left_alone() -> None:
    """They may be on their way into the next manifest."""
    lineage = chain_of(claim(), *(manifest(e) for e in range(3)), manifest(3, base(2)))
    under_way = [delta(4).key, delta_key(3, 1, 1, "count", ALL, "node"), base(3).key, base(2).key]

    assert garbage(lineage, under_way, retain=1).records == ()


def test_a_base_for_later_epochs_is_retained() -> None:
    early = base(1, reaches=4)
    lineage = chain_of(
        claim(), *(manifest(e) for e in range(3)), claim(2, 2), manifest(3, early, incarnation=2)
    )

    assert garbage(lineage, [early.key], retain=1).records == ()


def test_leftovers_of_older_incarnations_are_garbage_whatever_their_epoch() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1), manifest(2), claim(1, 2))
    keys = [delta(e).key for e in range(4)]

    found = garbage(lineage, keys)

    assert found.records == (delta(2).key, delta(3).key)  # taken back, and never committed


def test_records_of_a_newer_incarnation_are_retained() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1, base(1)))

    assert garbage(lineage, [delta(0, incarnation=2).key], retain=1).records == ()


def test_links_with_outputs_that_are_not_yet_published_stay() -> None:
    lineage = chain_of(claim(), *(manifest(e, base(e), published=0) for e in range(4)))

    assert garbage(lineage, [], retain=1).links_before == 2


def test_a_retained_manifest_stays_even_if_a_base_holds_all_of_it() -> None:
    lineage = chain_of(claim(), *(manifest(e, base(e), published=e) for e in range(4)))

    assert garbage(lineage, [], retain=2).links_before == 3


def test_the_claim_is_retained_while_it_is_the_only_link() -> None:
    assert garbage(chain_of(claim(), claim(-1, 2)), []).links_before == 1
    assert garbage(chain_of(), []) == Garbage((), 0)


def test_keys_that_are_not_those_of_records_are_left_alone() -> None:
    lineage = chain_of(claim(), manifest(0), claim(0, 2))

    assert garbage(lineage, ["data/strange", "other/000/000/x", delta(1).key]).records == (
        delta(1).key,
    )


def test_an_incomplete_epoch_retains_the_records_that_it_names() -> None:
    first, *rest = numbered([claim(), *(manifest(e, incarnation=1) for e in range(4))])
    lineage = chain_of(first, *rest[2:], claim(3, 2))

    assert garbage(lineage, [delta(e).key for e in range(4)]).records == (
        delta(0).key,
        delta(1).key,
    )


@pytest.mark.parametrize("retain", [0, -1])
def test_retaining_no_epoch_is_rejected(retain: int) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        garbage(chain_of(), [], retain)


def test_removing_leaves_a_chain_that_reads_the_same_retained_epochs() -> None:
    store = MemoryStore()
    links = numbered([claim(), manifest(0), manifest(1, base(0)), manifest(2, base(1))])
    for link in links:
        store.put_if_absent(f"chain/{link.position:012d}", encode(link))
    keys = [base(0).key, base(1).key, *(delta(e).key for e in range(3))]
    store.put(dict.fromkeys(keys, b"x"))
    lineage = Chain(store).read()
    before = contents_of(lineage, 2)

    remove(store, garbage(lineage, keys, retain=1))

    assert set(store.scan()) == {"chain/000000000003", *before.keys, delta(1).key}
    assert contents_of(Chain(store).read(), 2) == before
