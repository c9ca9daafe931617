"""Persons, auctions and bids in the proportions of NEXMark's generator.

Of 50 events one is a person, three are auctions, and 46 are bids. Half of the bids are for a hot
auction, three in four come from a hot bidder, and three in four auctions from a hot seller, which
change all the time; the others are of those that came last.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.workloads.workload import Ints, Random, Tables, times

CATEGORIES = 5
FIRST_CATEGORY = 10
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_PERSONS, _AUCTIONS, _BIDS = 1, 3, 46
_HOT = 100  # one in so many is hot at a time
_IN_FLIGHT = 100
_ACTIVE = 1_000


def bids(random: Random, epoch: int, rows: int) -> Tables:
    """Only bids."""
    before = epoch * rows + np.arange(rows)
    columns = {
        "auction": _known(random, before * _AUCTIONS // _BIDS, _IN_FLIGHT, 1 / 2),
        "bidder": _known(random, before * _PERSONS // _BIDS, _ACTIVE, 3 / 4),
        "price": np.round(100 * 10 ** (6 * random.random(rows))).astype(np.int64),
    }
    return {"bids": pa.table({**columns, "ts": times(random, epoch, rows)})}


def persons_and_auctions(random: Random, epoch: int, rows: int) -> Tables:
    """Only persons and auctions."""
    new = rows * _PERSONS // (_PERSONS + _AUCTIONS)
    ids = epoch * new + np.arange(new)
    persons = {
        "id": ids,
        "name": _drawn(random, [f"{first} {last}" for first in _FIRST for last in _LAST], new),
        "state": _drawn(random, STATES, new),
    }
    offered = rows - new
    auctions = epoch * offered + np.arange(offered)
    columns = {
        "auction": auctions,
        "seller": _known(random, auctions * _PERSONS // _AUCTIONS, _ACTIVE, 3 / 4),
        "category": random.integers(FIRST_CATEGORY, FIRST_CATEGORY + CATEGORIES, offered),
    }
    return {
        "persons": pa.table({**persons, "ts": times(random, epoch, new)}),
        "auctions": pa.table({**columns, "ts": times(random, epoch, offered)}),
    }


def _known(random: Random, newest: Ints, alive: int, hot: float) -> Ints:
    """The hot one of those that there are, or another of the last."""
    others = np.maximum(newest - random.integers(0, alive, len(newest)), 0)
    return np.where(random.random(len(newest)) < hot, newest // _HOT * _HOT, others)


def _drawn(random: Random, of: tuple[str, ...] | list[str], number: int) -> pa.Array:
    return pa.array(of).take(pa.array(random.integers(0, len(of), number)))
