"""The plan as text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.coordinator.pane_cost import folds
from millstream.flow.labels import place_text
from millstream.flow.plan import plan
from millstream.flow.vertices import RecordStep
from millstream.flow.windows import TimeWindow, Windowing
from millstream.flow.workflow import Workflow

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def words(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def reading(row: dict[str, Any]) -> Iterator[tuple[str, float, datetime]]:
    yield row["sensor"], row["temp"], row["at"]


def parse(line: str) -> dict[str, Any]:
    return {"order": line}


def is_paid(order: dict[str, Any]) -> bool:
    return bool(order["paid"])


def customer(order: dict[str, Any]) -> str:
    return str(order["customer"])


def median(key: str, values: list[float], window: Any) -> Iterator[float]:
    yield sorted(values)[len(values) // 2]


def remind(key: str, orders: list[Any], state: Any) -> Iterator[str]:
    yield key


def word_count() -> Workflow:
    flow = Workflow("word_count")
    lines = flow.source("lines", ms.read.text("books"))
    counts = lines.map_reduce("counts", map=words, reduce=ms.count())
    counts.sink("out", ms.write.parquet("counts"))
    return flow


def averages() -> Workflow:
    flow = Workflow("averages")
    indoor = flow.source("indoor", ms.read.rate(rows_per_second=9), lateness=10 * SECOND)
    outdoor = flow.source("outdoor", ms.read.socket("localhost", 99), idle_after=5 * MINUTE)
    both = indoor.union(outdoor)
    options: Any = {"map": reading, "reduce": ms.aggregate(n=ms.count(), avg=ms.mean())}
    hourly = both.map_reduce("hourly", window=ms.sliding(HOUR, 5 * MINUTE), **options)
    both.map_reduce("quarters", window=ms.tumbling(15 * MINUTE), **options)
    both.map_reduce("medians", map=reading, reduce=median, window=ms.session(MINUTE))
    hourly.untimed.sink("untimed", ms.write.console())
    days = flow.stream("quarters").key_by("key").window(ms.tumbling(24 * HOUR), panes=True)
    days.reduce("days", ms.max(column="avg"), durable=False)
    return flow


def orders() -> Workflow:
    flow = Workflow("orders")
    files = ms.read.csv("orders", schema="line string", follow=True)
    lines = flow.source("lines", files)
    paid, unpaid = lines.map(parse).split(is_paid)
    paid.key_by(customer).reduce("revenue", ms.sum(column="total"), ttl=HOUR)
    reminders = unpaid.key_by(customer).reduce("reminders", remind)
    reminders.sink("mails", ms.write.callback(print))
    reminders.map(ms.sql("value", where="value <> ''")).sink("archive", ms.write.json("mails"))
    lines.map(parse).sink("log", ms.write.csv("log"))
    return flow


def test_a_word_count_is_explained() -> None:
    assert (
        word_count().explain()
        == """\
workflow word_count: 1 source, 1 job, 1 sink, 1 shuffle

sources
  lines: text files in books; ends
    read by Python tasks

stage 0: read
  lines → job counts

stage 1: shuffle and reduce
  job counts
    reads    lines
    map      words
    key      of the pairs
    reduce   value=count()
    state    a partial result per key, for ever
  job counts → sink out

sinks
  out: parquet files in counts
"""
    )


def test_windows_are_explained_with_their_panes_and_who_shares_them() -> None:
    assert (
        averages().explain()
        == """\
workflow averages: 2 sources, 4 jobs, 1 sink, 2 shuffles

sources
  indoor: by the clock, 9 a second; goes on
    lateness 10s, idle after 30s, at most 1d ahead
  outdoor: lines from localhost:99; goes on
    lateness 0s, idle after 5m, at most 1d ahead

stage 0: read
  indoor → union
    → job hourly
    → job medians
  outdoor → union (above)
  job hourly, untimed → sink untimed

stage 1: shuffle and reduce
  job hourly
    reads    union
    map      reading, run once for this and job medians
    key      of the pairs
    reduce   n=count(), avg=mean()
    window   sliding 1h every 5m, tumbling 15m
    time     event time; watermark: least of indoor less 10s and outdoor less 0s
    panes    of 5m, shared by 2 windows
             two stacks: sliding 1h every 5m
             panes pay above 0.0036 values/s per key; measured rates decide
    state    a partial result per key and pane, for 1h and the lateness of 10s
    fused    sliding 1h every 5m: for hourly
             tumbling 15m: for quarters
    sides    untimed
  job medians
    reads    union
    map      reading, run once for this and job hourly
    key      of the pairs
    reduce   median
    window   session, gap 1m
    time     event time; watermark: least of indoor less 10s and outdoor less 0s
    state    all values per key and open session, until 1m after it and the lateness of 10s
  quarters → job days

stage 2: shuffle and reduce
  job days
    reads    quarters
    key      column key
    reduce   value=max(column='avg')
    window   tumbling 1d
    time     event time; watermark: the watermark of job hourly
    panes    of 1d
             partial results, always
    state    a partial result per key and pane, for 1d
             copied to peers, and not in the store

sinks
  untimed: console

shared
  job quarters is fused into job hourly, which reduces for both
"""
    )


def test_splits_and_shared_steps_are_explained() -> None:
    flow = orders()
    ((at, step),) = plan(flow).of_kind(RecordStep)
    (again,) = plan(flow).merged[at]

    assert (
        flow.explain()
        == f"""\
workflow orders: 1 source, 2 jobs, 3 sinks, 1 shuffle

sources
  lines: csv files in orders; goes on
    read by Spark: it parses csv

stage 0: read
  lines → map parse
    → split is_paid
        → if not is_paid → job reminders
        → if is_paid → job revenue
    → sink log

stage 1: shuffle and reduce
  job reminders
    reads    if not is_paid
    key      customer
    reduce   remind
    state    what the function keeps per key, for ever
  job revenue
    reads    if is_paid
    key      customer
    reduce   value=sum(column='total')
    state    a partial result per key, until nothing came for 1h
  job reminders
    → sink mails
    → sql value where value <> '' → sink archive

sinks
  mails: callback print
  archive: json files in mails
  log: csv files in log

shared
  map parse ({place_text(step.place)}) runs once, also for {place_text(again)}
"""
    )


@pytest.mark.parametrize(
    ("panes", "reduce", "line"),
    [
        (True, ms.count(), "partial results, always"),
        (False, ms.count(), "hold all values, as panes=False"),
        (None, ms.count(), "panes pay above 0.0036 values/s per key; measured rates decide"),
        (None, median, "hold all values: a function reduces them, not partial results"),
    ],
)
def test_the_rule_for_panes_is_explained(panes: bool | None, reduce: object, line: str) -> None:
    flow = Workflow("w")
    keyed = flow.source("in", ms.read.rate()).flat_map(reading).key_by()
    keyed.window(ms.sliding(HOUR, 5 * MINUTE), panes=panes).reduce("n", reduce)

    assert line in flow.explain()


@pytest.mark.parametrize(
    ("window", "state"),
    [
        (ms.count_window(5, 1), "the last 5 values per key, for ever"),
        (ms.session(MINUTE), "a partial result per key and open session, until 1m after it"),
        (ms.global_window(ms.every(3)), "a partial result per key, for ever"),
        (ms.tumbling(HOUR), "a partial result per key and pane, for 1h"),
    ],
    ids=str,
)
def test_the_state_of_each_window_is_explained(window: object, state: str) -> None:
    flow = Workflow("w")
    flow.source("in", ms.read.rate()).map_reduce("n", map=reading, reduce=ms.count(), window=window)

    assert f"    state    {state}\n" in flow.explain()


def test_a_function_without_a_name_is_identified_by_its_line() -> None:
    flow = Workflow("w")
    nameless = lambda record: record  # noqa: E731
    flow.source("in", ms.read.rate()).map(nameless).sink("out", ms.write.console())

    line = nameless.__code__.co_firstlineno
    assert f"in → map <lambda> (test_explanation.py:{line}) → sink out" in flow.explain()


def test_a_stream_that_two_paths_reach_is_printed_once() -> None:
    flow = Workflow("w")
    source = flow.source("in", ms.read.rate())
    source.map(parse).union(source.filter(is_paid)).map(customer).sink("out", ms.write.console())

    text = flow.explain()

    assert text.count("map customer") == 1
    assert "filter is_paid → union (above)" in text


def test_explaining_and_drawing_do_not_need_spark() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from tests.flow.test_explanation import averages\n"
        "flow = averages(); print(len(flow.explain()), len(flow.draw().dot))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "windows",
    [
        (ms.sliding(HOUR, 5 * MINUTE),),
        (ms.sliding(HOUR, 5 * MINUTE), ms.tumbling(15 * MINUTE)),
        (ms.sliding(HOUR, MINUTE), ms.sliding(2 * HOUR, HOUR)),
    ],
    ids=lambda windows: ", ".join(map(str, windows)),
)
def test_the_explained_rate_is_the_one_that_decides(windows: tuple[TimeWindow, ...]) -> None:
    windowing = Windowing(windows)
    rate = windowing.paying_rate
    assert rate is not None

    assert folds(1.3 * rate, windowing.paying_rate, before=False)
    assert not folds(0.7 * rate, windowing.paying_rate, before=True)


def test_windows_that_use_no_value_twice_have_no_rate() -> None:
    assert Windowing((ms.tumbling(HOUR),)).paying_rate is None
    # The values of every hour, and of every minute: 2 t, against t and 61 panes in 60 minutes.
    both = Windowing((ms.tumbling(MINUTE), ms.tumbling(HOUR))).paying_rate
    assert both == pytest.approx(2 / 60)


def test_the_rule_for_one_window_is_that_of_the_thesis() -> None:
    size, slide, pane = 3600, 300, 300
    rate = Windowing((ms.sliding(HOUR, 5 * MINUTE),)).paying_rate
    assert rate == pytest.approx(size / pane / (size - slide))
