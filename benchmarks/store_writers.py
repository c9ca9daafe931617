"""Processes that write to stores, several at once: they begin together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count
from multiprocessing.synchronize import Barrier

from benchmarks.store_work import Share, Timed, drive, load

_PATIENCE = 300.0  # seconds that one waits until the others are ready

_barriers: Mapping[int, Barrier] = {}


def _know(barriers: Mapping[int, Barrier]) -> None:
    """In a writer's process: with whom it begins."""
    global _barriers
    _barriers = barriers


def _drive(share: Share) -> Timed:
    together = _barriers[share.step]
    try:
        return drive(share, lambda: together.wait(_PATIENCE))
    except BaseException:
        together.abort()
        raise


class Writers:
    """Processes that write; each measurement opens the stores anew."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._seeds = count()

    def load(self, url: str, keys: int) -> float:
        """Fill a store; how long it took."""
        return self._pool.submit(load, url, "loader", keys).result()

    def drive(
        self, url: str, keys: int, writers: int, batch: int, seconds: float, calls: int
    ) -> list[Timed]:
        """Let so many writers at a store at once."""
        shares = [
            Share(
                url=url,
                writer=f"writer{number}",
                keys=keys,
                first=number,
                step=writers,
                batch=batch,
                seconds=seconds,
                calls=calls,
                seed=next(self._seeds),
            )
            for number in range(writers)
        ]
        return list(self._pool.map(_drive, shares))


@contextmanager
def writers_for(numbers: Iterable[int]) -> Iterator[Writers]:
    """As many processes as the largest of some numbers of writers."""
    context = multiprocessing.get_context("spawn")
    barriers = {number: context.Barrier(number) for number in {1, *numbers}}
    with ProcessPoolExecutor(
        max(barriers), mp_context=context, initializer=_know, initargs=(barriers,)
    ) as pool:
        yield Writers(pool)
