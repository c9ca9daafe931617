"""Joins on real Spark, against plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.words import run_to_end

pytestmark = pytest.mark.spark

START = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WITHIN = 5 * MINUTE
ORDERS: list[dict[str, Any]] = [
    {"order": n % 20, "amount": n, "at": START + n * timedelta(seconds=30)} for n in range(80)
]
PAYMENTS: list[dict[str, Any]] = [
    {"of": n % 26, "paid": 1000 + n, "when": START + n * timedelta(seconds=37)} for n in range(70)
]


def pairs() -> list[tuple[int, int, int, datetime]]:
    """Every order with every payment of it that came within five minutes."""
    return [
        (order["order"], order["amount"], payment["paid"], max(order["at"], payment["when"]))
        for order in ORDERS
        for payment in PAYMENTS
        if order["order"] == payment["of"] and abs(order["at"] - payment["when"]) <= WITHIN
    ]


def by_minute(row: Any) -> Iterator[tuple[str, int, datetime]]:
    yield "all", 1, row.time


def test_rows_of_two_sources_meet_and_their_results_can_be_put_in_windows(
    spark: SparkSession,
) -> None:
    found: list[tuple[int, int, int | None, datetime]] = []
    counts: dict[datetime, int] = {}

    def note(rows: list[Any], epoch: int) -> None:
        for row in rows:
            paid = None if row.right is None else row.right.paid
            found.append((row.key, row.left.amount, paid, row.time.astimezone(UTC)))

    def count(rows: list[Any], epoch: int) -> None:
        for row in rows:
            counts[row.window_start.astimezone(UTC)] = row.value

    flow = ms.Workflow("orders")
    orders = flow.source("orders", ms.read.replay(ORDERS, rows_per_epoch=30))
    payments = flow.source(
        "payments", ms.read.replay(PAYMENTS, rows_per_epoch=20), lateness=30 * MINUTE
    )
    joined = orders.join(
        payments,
        "paid",
        how="left",
        within=WITHIN,
        key="order",
        right_key="of",
        time="at",
        right_time="when",
        lateness=30 * MINUTE,
    )
    joined.sink("joined", ms.write.callback(note))
    by_window = joined.map_reduce(
        "per_minute", map=by_minute, reduce=ms.count(), window=ms.tumbling(10 * MINUTE)
    )
    by_window.sink("counts", ms.write.callback(count))

    run_to_end(spark, flow)

    matched = pairs()
    met = {amount for _, amount, _, _ in matched}
    alone = [(o["order"], o["amount"], None, o["at"]) for o in ORDERS if o["amount"] not in met]
    assert matched and alone
    assert Counter(found) == Counter([*matched, *alone])
    expected: Counter[datetime] = Counter()
    for *_, time in [*matched, *alone]:
        expected[START + (time - START) // (10 * MINUTE) * (10 * MINUTE)] += 1
    assert counts == expected
