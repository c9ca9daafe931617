"""Moving average convergence/divergence of stock prices, in three forms of one workflow.

Two moving averages, over 5 and 10 minutes, every minute, and their difference:

- ``simple``: two jobs, each with its own map, that know nothing of each other;
- ``map``: one map for both;
- ``panes``: one map, and one-minute panes that all windows of both averages are put together from.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import millstream as ms

MINUTE = timedelta(minutes=1)
FAST, SLOW = 5 * MINUTE, 10 * MINUTE
FORMS = ("simple", "map", "panes")
Pair = tuple[str, float, datetime]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
OPENING = datetime(2006, 1, 3, 14, 30, tzinfo=UTC)
_SYMBOLS = 2700
_TRADES = (100, 1703)
_DISTINCT = (71, 794)


def parse(trade: Any) -> Iterator[Pair]:
    yield trade.symbol, trade.price, trade.time


def parse_again(trade: Any) -> Iterator[Pair]:
    yield trade.symbol, trade.price, trade.time


def as_fast(average: Any) -> tuple[str, tuple[str, float]]:
    return average.key, ("fast", average.value)


def as_slow(average: Any) -> tuple[str, tuple[str, float]]:
    return average.key, ("slow", average.value)


def difference(symbol: str, averages: list[tuple[str, float]], window: Any) -> Iterator[Any]:
    """The averages of one symbol that ended in the same minute."""
    found = dict(averages)
    if len(found) == 2:
        yield {"symbol": symbol, "time": window.end, "macd": found["fast"] - found["slow"]}


def workflow(form: str, source: object, folder: Path) -> ms.Workflow:
    """The workflow in one of its forms."""
    flow = ms.Workflow(f"macd-{form}")
    raw = flow.source("trades", source)
    shared = raw.flat_map(parse) if form != "simple" else raw

    def average(name: str, size: timedelta, map: Callable[..., Any] | None) -> ms.Stream:
        prices = shared if map is None else shared.flat_map(map)
        windows = prices.key_by().window(ms.sliding(size, MINUTE), panes=form == "panes")
        return windows.reduce(name, ms.mean(), share=form == "panes")

    simple = form == "simple"
    fast = average("fast", FAST, parse if simple else None)
    slow = average("slow", SLOW, parse_again if simple else None)
    averages = fast.map(as_fast).union(slow.map(as_slow))
    results = averages.map_reduce("macd", reduce=difference, window=ms.tumbling(MINUTE))
    results.sink("out", ms.write.parquet(folder / form))
    return flow


def trades(seconds: int, seed: int = 1) -> pa.Table:
    """So many seconds of trades with the shape of a day of the NYSE, in the order of time.

    Every second has 100 to 1,703 trades in 71 to 794 different symbols; both are skewed, and a few
    symbols are traded most of the time. Prices walk at random.
    """
    rng = np.random.default_rng(seed)
    names = np.array([_name(number) for number in range(_SYMBOLS)])
    popularity = 1.0 / np.arange(1, _SYMBOLS + 1) ** 0.8
    prices = rng.uniform(5, 200, _SYMBOLS)
    chosen: list[Ints] = []
    for _ in range(seconds):
        activity = rng.beta(1.6, 6.0)
        count = int(_between(_TRADES, activity))
        distinct = min(count, int(_between(_DISTINCT, activity)))
        # The largest of noisy weights: symbols drawn without putting them back.
        noisy = np.log(popularity) + rng.gumbel(size=_SYMBOLS)
        present = np.argpartition(-noisy, distinct)[:distinct]
        weights = popularity[present] / popularity[present].sum()
        again = rng.choice(present, count - distinct, p=weights)
        chosen.append(rng.permutation(np.concatenate([present, again])))
    symbols = np.concatenate(chosen)
    steps = rng.normal(0, 0.0005, len(symbols))
    moved = prices[symbols] * np.exp(_running(symbols, steps))
    at = np.repeat(np.arange(seconds), [len(part) for part in chosen]) * 1_000_000
    start = int(OPENING.timestamp()) * 1_000_000
    return pa.table(
        {
            "symbol": pa.array(names[symbols]),
            "price": pa.array(np.round(moved, 2)),
            "time": pa.array(at + start, pa.timestamp("us", "UTC")),
        }
    )


def _between(bounds: tuple[int, int], share: float) -> float:
    low, high = bounds
    return low + (high - low) * share


def _running(symbols: Ints, steps: Floats) -> Floats:
    """For each trade, the sum of the steps of its symbol up to it."""
    order = np.argsort(symbols, kind="stable")
    sums = np.cumsum(steps[order])
    first = np.flatnonzero(np.diff(symbols[order], prepend=-1))
    before = np.repeat(sums[first] - steps[order][first], np.diff(np.append(first, len(order))))
    found = np.empty_like(steps)
    found[order] = sums - before
    return found


def _name(number: int) -> str:
    letters = ""
    number += 26  # at least two letters
    while True:
        number, letter = divmod(number, 26)
        letters = chr(65 + letter) + letters
        if number == 0:
            return letters
        number -= 1


def batch(table: pa.Table) -> dict[tuple[str, datetime], float]:
    """The same, computed at once from all trades."""
    names, symbols = np.unique(table["symbol"].to_numpy(zero_copy_only=False), return_inverse=True)
    minutes = table["time"].cast(pa.int64()).to_numpy() // 60_000_000
    prices = table["price"].to_numpy()
    first, count = int(minutes.min()), int(np.ptp(minutes)) + 1
    sums, numbers = np.zeros((len(names), count)), np.zeros((len(names), count))
    np.add.at(sums, (symbols, minutes - first), prices)
    np.add.at(numbers, (symbols, minutes - first), 1)
    found: dict[tuple[str, datetime], float] = {}
    for end in range(1, count + SLOW // MINUTE):
        means = []
        for size in (FAST // MINUTE, SLOW // MINUTE):
            within = slice(max(0, end - size), min(end, count))
            total, number = sums[:, within].sum(axis=1), numbers[:, within].sum(axis=1)
            means.append(
                np.divide(total, number, where=number > 0, out=np.full(len(names), np.nan))
            )
        time = datetime.fromtimestamp((first + end) * 60, tz=UTC)
        for at in np.flatnonzero(~np.isnan(means[0])).tolist():
            found[str(names[at]), time] = float(means[0][at] - means[1][at])
    return found


def run(form: str, table: pa.Table, folder: Path, master: str) -> dict[tuple[str, datetime], float]:
    """Run one form over a recording; give its results."""
    flow = workflow(form, ms.read.replay(table, rows_per_epoch=60_000), folder)
    ms.run(flow, nodes=2, master=master)
    rows = pq.read_table(folder / form, coerce_int96_timestamp_unit="us").to_pylist()
    return {(row["symbol"], row["time"].replace(tzinfo=UTC)): row["macd"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", help="the Spark master (default: local[2])", default="local[2]")
    parser.add_argument("--minutes", type=int, help="how long a recording", default=6)
    options = parser.parse_args()

    table = trades(60 * options.minutes)
    expected = batch(table)
    print(f"{table.num_rows} trades, {len(expected)} differences")
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            found = run(form, table, Path(folder), options.master)
            same = found.keys() == expected.keys() and all(
                abs(found[at] - value) < 1e-6 for at, value in expected.items()
            )
            print(f"{form}: {len(found)} differences found")
            if not same:
                raise SystemExit("the batch computation gives others")
    print("exact: yes")


if __name__ == "__main__":
    main()
