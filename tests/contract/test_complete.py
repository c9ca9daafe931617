"""No store escapes the suite."""

from __future__ import annotations

import re

import pytest

from millstream.errors import ConfigError
from millstream.stores.registry import open_store
from tests.contract.backends import SCHEMES, Backend, backend_of, missing

ABILITIES = ("outage", "crash", "power_cut", "damage", "fill_up")


def test_every_store_that_can_be_opened_is_held_to_the_contract() -> None:
    with pytest.raises(ConfigError) as raised:
        open_store("nonsense://", "w")
    known = str(raised.value).partition("begins with")[2]
    assert sorted(re.findall(r"(\w+)://", known)) == sorted(SCHEMES)
    assert not [reason for scheme in SCHEMES if (reason := missing(scheme)) is not None]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_backend_simulates_each_fault_or_gives_a_reason(scheme: str) -> None:
    kind = type(backend_of(scheme))
    able = {name for name in ABILITIES if getattr(kind, name) is not getattr(Backend, name)}
    assert able.isdisjoint(kind.lacks)
    assert able | set(kind.lacks) == set(ABILITIES)
    assert all(kind.lacks.values())
