"""Fixtures of tests with a store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.sim import World
from tests.node.durability.durable_scenes import FailingStore


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()
