"""The limit in DuckDB: one query over all files, in memory."""

from __future__ import annotations

import time

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


FORMS = {"group_by": group_by}
PACKAGES = ("duckdb",)
