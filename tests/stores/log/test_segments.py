"""What this process knows of segments, from several threads at once."""

from __future__ import annotations

import threading

import pytest

from millstream.stores.log.format import Header
from millstream.stores.log.segments import Catalogue, Segment


def test_segments_that_are_noted_at_once_have_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogue = Catalogue()
    noted: list[Segment] = []
    other = threading.Thread(target=lambda: noted.append(catalogue.add("other", Header(1, 1))))
    plain = Segment.__post_init__

    def overtaken(segment: Segment) -> None:
        plain(segment)
        if segment.name == "first":
            # Long enough for the other to be done, if it need not wait for us.
            other.start()
            other.join(0.1)

    monkeypatch.setattr(Segment, "__post_init__", overtaken)
    noted.append(catalogue.add("first", Header(1, 1)))
    other.join(10)

    assert sorted(segment.number for segment in noted) == [0, 1]
    for segment in noted:
        assert catalogue[segment.number] is catalogue.named(segment.name) is segment
    assert len(catalogue.all()) == 2
