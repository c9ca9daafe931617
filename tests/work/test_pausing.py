from __future__ import annotations

import gc

import pytest

from millstream.work.pausing import without_collector


def test_the_collector_rests_until_the_last_caller_is_done() -> None:
    assert gc.isenabled()
    with without_collector():
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_wakes_the_collector_too() -> None:
    with pytest.raises(ValueError), without_collector():
        raise ValueError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
