"""Which epochs are committed, according to the links of a chain."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millstream.checkpoints.lineage import EMPTY, Lineage, lineage_of
from millstream.checkpoints.manifest import Claim, Link, Manifest
from tests.checkpoints.links import chain_of, claim, manifest, numbered


def epochs(lineage: Lineage) -> list[int]:
    return [found.epoch for found in lineage.manifests]


def test_before_the_first_link_there_is_nothing() -> None:
    assert (EMPTY.position, EMPTY.incarnation, EMPTY.epoch) == (0, 0, -1)
    assert EMPTY.newest is None and EMPTY.claim is None


def test_manifests_follow_each_other() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1))

    assert epochs(lineage) == [0, 1] and lineage.epoch == 1
    assert lineage.position == 3 and lineage.incarnation == 1
    assert lineage.newest == lineage.manifest(1) and lineage.manifest(2) is None


def test_a_claim_withdraws_later_epochs() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1), manifest(2), claim(0, incarnation=2))

    assert epochs(lineage) == [0] and lineage.incarnation == 2
    assert lineage.claim is not None and lineage.claim.position == 4
    assert lineage.position == 5


def test_manifests_after_a_claim_replace_withdrawn_ones() -> None:
    again = manifest(1, incarnation=2)
    lineage = chain_of(claim(), manifest(0), manifest(1), manifest(2), claim(0, 2), again)

    assert [(found.epoch, found.incarnation) for found in lineage.manifests] == [(0, 1), (1, 2)]


def test_a_manifest_takes_back_what_it_does_not_build_upon_also_if_its_claim_is_lost() -> None:
    links = numbered([claim(), manifest(0), manifest(1), claim(0, 2), manifest(1, incarnation=2)])
    del links[3]

    assert [found.incarnation for found in lineage_of(links).manifests] == [1, 2]


def test_a_manifest_of_several_epochs_is_known_by_its_last() -> None:
    wide = replace(manifest(7), parent=3)
    lineage = chain_of(claim(), manifest(0), replace(manifest(3), parent=0), wide)

    assert epochs(lineage) == [0, 3, 7]
    assert lineage.manifest(5) is None and lineage.manifest(7) is not None


def test_earlier_and_shortened_lineages_have_the_same_position() -> None:
    lineage = chain_of(claim(), manifest(0), manifest(1), manifest(2))

    assert epochs(lineage.upto(1)) == [0, 1] and lineage.upto(1).position == 4
    assert epochs(lineage.since(2)) == [1, 2] and lineage.since(2).position == 4
    assert lineage.since(2).claim == lineage.claim and lineage.upto(1).incarnation == 1


def model(links: list[Link]) -> dict[int, int]:
    """Epochs and the positions of their manifests: a list that is cut and appended to."""
    found: dict[int, int] = {}
    for link in links:
        base = link.after if isinstance(link, Claim) else link.parent
        found = {epoch: position for epoch, position in found.items() if epoch <= base}
        if isinstance(link, Manifest):
            found[link.epoch] = link.position
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[Link]:
    """Drivers that come, commit a few epochs each, and go back as far as they like."""
    links: list[Link] = []
    epoch, incarnation = -1, 0
    for step in draw(st.lists(st.integers(0, 5), max_size=20)):
        if step == 0 or not links:
            incarnation += 1
            epoch = draw(st.integers(-1, epoch))
            links.append(claim(epoch, incarnation))
        else:
            links.append(replace(manifest(epoch + step, incarnation=incarnation), parent=epoch))
            epoch += step
    return numbered(links)


@given(histories(), st.integers(0, 20))
def test_any_history_is_what_is_left_when_claims_have_cut_it(links: list[Link], cut: int) -> None:
    lineage = lineage_of(links)

    assert {found.epoch: found.position for found in lineage.manifests} == model(links)
    assert epochs(lineage) == sorted(epochs(lineage))
    # Read in two parts, as a driver does that goes on from what it knows.
    known = lineage_of(links[:cut])
    for link in links[cut:]:
        known = known.then(link)
    assert known == lineage
