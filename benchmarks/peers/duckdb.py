"""The limit in DuckDB: one query over all files, in memory."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb

from benchmarks.peers.protocol import Ran, Task, write_counts

THREADS = 2
_QUERY = """
    CREATE OR REPLACE TABLE counts AS
    SELECT word, count(*) AS n
    FROM (SELECT unnest(string_split(line, ' ')) AS word FROM read_csv(
        ?, columns = {'line': 'VARCHAR'}, header = false, auto_detect = false,
        delim = '\x01', quote = '', escape = ''))
    GROUP BY word
"""


def group_by(task: Task) -> Ran:
    """The batch answer."""
    with duckdb.connect(":memory:", config={"threads": THREADS}) as database:
        began = time.perf_counter()
        database.execute(_QUERY, [task.paths()])
        seconds = time.perf_counter() - began
        if task.answer:
            write_counts(task.answer, database.execute("FROM counts").fetchall())
    return Ran(seconds=seconds)


def query(task: Task) -> Ran:
    """The batch answer of a workload of rows, as a Parquet file."""
    with duckdb.connect(":memory:", config={"threads": THREADS}) as database:
        for name, columns in task.options["tables"].items():
            timed = "REPLACE (make_timestamp(epoch_us(ts)) AS ts)" if "ts" in columns else ""
            rows = f"read_parquet('{task.folder}/{name}/*.parquet')"
            database.execute(f"CREATE VIEW {name} AS SELECT * {timed} FROM {rows}")
        began = time.perf_counter()
        database.execute(f"CREATE TABLE answer AS {task.options['duckdb']}")
        seconds = time.perf_counter() - began
        if task.answer:
            Path(task.answer).mkdir()
            database.execute(f"COPY answer TO '{task.answer}/answer.parquet'")
    return Ran(seconds=seconds)


FORMS = {"group_by": group_by, "query": query}
PACKAGES = ("duckdb",)
