"""Who is compared: engines with their environments, and their forms of the workloads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
CORES = "2"  # for everyone, as the other adapters have it


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine: the module that adapts it, and whether it has an environment of its own.

    ``variables`` are set for its process.
    """

    module: str
    own: bool = True
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def python(self) -> Path:
        return PEERS / self.module / "bin" / "python" if self.own else Path(sys.executable)

    @property
    def is_installed(self) -> bool:
        return self.python.exists()


class Speed(Enum):
    """How much of an input a form is given, so that a round takes about as long for all."""

    FAST = "all epochs"
    SLOW = "a few epochs"
    CRAWLING = "small epochs"


class Timing(Enum):
    """Where the time comes from."""

    EPOCHS = "the second half of the epochs"
    DIFFERENCE = "a long run less a short one, which takes out what it costs to start"
    WHOLE = "one batch query"


MILLSTREAM = Engine(module="ours", own=False)
SPARK = Engine(module="spark", own=False)
FLINK = Engine(module="flink")
BYTEWAX = Engine(module="bytewax")
PATHWAY = Engine(module="pathway", variables=(("PATHWAY_THREADS", CORES),))
DUCKDB = Engine(module="duckdb")
POLARS = Engine(module="polars", variables=(("POLARS_MAX_THREADS", CORES),))
ARROW = Engine(module="arrow", own=False)
PYTHON = Engine(module="python_loop", own=False)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A form of an engine, under the name that it has in results.

    ``answers`` tells whether every run gives its answer; else one run before the timed ones does,
    with a sink that the timed ones can do without.
    """

    name: str
    title: str
    engine: Engine
    form: str
    durable: str
    timing: Timing
    speed: Speed = Speed.FAST
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        return self.timing is not Timing.DIFFERENCE


_EPOCH = "every epoch, synced; one replica"
_CHANGELOG = "every epoch, RocksDB with changelog"
_INTERVAL = "every second"
_NOT = "no"


def _ours(name: str, title: str, form: str, **more: object) -> Entry:
    return Entry(
        name=name,
        title=f"Millstream, {title}",
        engine=MILLSTREAM,
        form=form,
        durable=str(more.pop("durable", _EPOCH)),
        timing=Timing.EPOCHS,
        options=more,
    )


def _spark(name: str, title: str, speed: Speed = Speed.FAST) -> Entry:
    return Entry(
        name=f"spark_{name}",
        title=f"Spark, {title}",
        engine=SPARK,
        form=name,
        durable=_CHANGELOG,
        timing=Timing.EPOCHS,
        speed=speed,
    )


def _continuous(engine: Engine, title: str, form: str, durable: str, speed: Speed) -> Entry:
    return Entry(
        name=f"{engine.module}_{form}",
        title=title,
        engine=engine,
        form=form,
        durable=durable,
        timing=Timing.DIFFERENCE,
        speed=speed,
    )


def _limit(engine: Engine, title: str, form: str) -> Entry:
    return Entry(
        name=engine.module,
        title=title,
        engine=engine,
        form=form,
        durable=_NOT,
        timing=Timing.WHOLE,
    )


_OFF = {"checkpoint": None, "replicas": 0, "durable": _NOT}

BUILTIN = _ours("builtin", "built-in count, Arrow map", "builtin_arrow")
SQL = _ours("sql", "built-in count, SQL map", "builtin_sql")
STATEFUL = _ours("stateful", "stateful function", "stateful")
BUILTIN_OFF = _ours("builtin_off", "built-in count, not durable", "builtin_arrow", **_OFF)
STATEFUL_OFF = _ours("stateful_off", "stateful function, not durable", "stateful", **_OFF)
GROUPBY = _spark("groupby", "groupBy().count()")
TWS_PANDAS = _spark("tws_pandas", "transformWithStateInPandas", Speed.CRAWLING)
TWS_ROW = _spark("tws_row", "transformWithState", Speed.CRAWLING)
PANDAS_WITH_STATE = _spark("pandas_with_state", "applyInPandasWithState", Speed.CRAWLING)
FLINK_SQL = _continuous(FLINK, "Flink SQL, mini-batches", "sql", _INTERVAL, Speed.FAST)
FLINK_DATASTREAM = _continuous(
    FLINK, "PyFlink DataStream, thread mode", "datastream", _INTERVAL, Speed.SLOW
)
BYTEWAX_MAP = _continuous(BYTEWAX, "Bytewax stateful_map", "stateful_map", _INTERVAL, Speed.SLOW)
BYTEWAX_BATCH = _continuous(
    BYTEWAX, "Bytewax stateful_batch", "stateful_batch", _INTERVAL, Speed.SLOW
)
PATHWAY_GROUPBY = _continuous(
    PATHWAY, "Pathway groupby().reduce()", "group_by", f"{_INTERVAL}, its input", Speed.SLOW
)
PACED = _ours("paced", "records at a rate", "paced")
SPARK_PACED = _spark("paced", "records at a rate")
LIMITS = (
    _limit(DUCKDB, "DuckDB, one batch query", "group_by"),
    _limit(POLARS, "Polars, one batch query", "group_by"),
    _limit(ARROW, "pyarrow, one batch query", "group_by"),
    _limit(PYTHON, "Python, a loop on one core", "loop"),
)
ROWS_MILLSTREAM = Entry(
    name="millstream",
    title="Millstream",
    engine=MILLSTREAM,
    form="workload",
    durable=_EPOCH,
    timing=Timing.EPOCHS,
)
ROWS_SPARK = Entry(
    name="spark",
    title="Spark",
    engine=SPARK,
    form="workload",
    durable=_CHANGELOG,
    timing=Timing.EPOCHS,
)
ROWS_FLINK = Entry(
    name="flink_sql",
    title="Flink SQL",
    engine=FLINK,
    form="query",
    durable=_INTERVAL,
    timing=Timing.DIFFERENCE,
)
ROWS_DUCKDB = _limit(DUCKDB, "DuckDB, one batch query", "query")
ROWS = {each.name: each for each in (ROWS_MILLSTREAM, ROWS_SPARK, ROWS_FLINK, ROWS_DUCKDB)}
"""The forms of the workloads of rows, by the names that they have in results."""
BYTEWAX_FORMS = (BYTEWAX_MAP, BYTEWAX_BATCH)
CRAWLING = (PANDAS_WITH_STATE, TWS_ROW, TWS_PANDAS)
PROMISED = (BUILTIN, SQL, STATEFUL, GROUPBY, FLINK_SQL, *BYTEWAX_FORMS)
STREAMING = (*PROMISED, FLINK_DATASTREAM, PATHWAY_GROUPBY)
BY_NAME = {
    entry.name: entry
    for entry in (*STREAMING, *CRAWLING, *LIMITS, BUILTIN_OFF, STATEFUL_OFF, PACED, SPARK_PACED)
}
