"""All workloads by name, and their recordings as what a field runs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from benchmarks.peers.entries import DUCKDB
from benchmarks.peers.peer import Peer, PeerError
from benchmarks.peers.protocol import Task
from benchmarks.workloads.matching import MATCHES
from benchmarks.workloads.nexmark import NEXMARK
from benchmarks.workloads.sessions import SESSIONS
from benchmarks.workloads.trending import TRENDING
from benchmarks.workloads.wide_rows import WIDE_ROWS
from benchmarks.workloads.workload import FILES_PER_EPOCH, LATENESS, Workload, read_answer, write

WORKLOADS: Mapping[str, Workload] = {
    each.name: each for each in (SESSIONS, *NEXMARK, TRENDING, MATCHES, WIDE_ROWS)
}
_ANSWERING = 600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A size of a recording."""

    epochs: int
    rows_per_epoch: int

    def record(self, name: str, folder: Path) -> Recording:
        """Write a recording of a workload."""
        write(WORKLOADS[name], folder, epochs=self.epochs, rows=self.rows_per_epoch)
        return Recording(name, folder, self.epochs, self.rows_per_epoch)


@dataclass(frozen=True)
class Recording:
    """A recording of a workload."""

    unit: ClassVar[str] = "rows"
    name: str
    folder: Path
    epochs: int
    items_per_epoch: int

    @property
    def items(self) -> int:
        return self.epochs * self.items_per_epoch

    @property
    def workload(self) -> Workload:
        return WORKLOADS[self.name]

    @property
    def options(self) -> Mapping[str, object]:
        """What engines are told: the name, and SQL for those that do not share this code."""
        workload = self.workload
        tables = {**workload.generate(np.random.default_rng(0), 0, 16), **(workload.fixed or {})}
        return {
            "workload": self.name,
            "lateness": LATENESS // timedelta(seconds=1),
            "tables": {name: _columns(table.schema) for name, table in tables.items()},
            "answer": _columns(workload.answer),
            "duckdb": workload.duckdb,
            "flink": workload.flink,
        }

    def first_epochs(self, epochs: int, folder: Path) -> Recording:
        return Rows(epochs=epochs, rows_per_epoch=self.items_per_epoch).record(self.name, folder)

    def read_answer(self, path: Path) -> pa.Table:
        return read_answer(self.workload, path, self.epochs)

    def right_answer(self) -> pa.Table:
        """What DuckDB gives in one batch query."""
        if not DUCKDB.is_installed:
            raise PeerError("there is no DuckDB to give the right answer: type make peers")
        with tempfile.TemporaryDirectory(prefix="millstream-answer-") as folder:
            answer = Path(folder, "answer")
            task = Task(
                form="query",
                folder=str(self.folder),
                files=self.epochs * FILES_PER_EPOCH,
                epochs=self.epochs,
                work=folder,
                answer=str(answer),
                options=self.options,
            )
            peer = Peer(DUCKDB, Path(folder, "log"))
            try:
                peer.run(task, _ANSWERING)
            finally:
                peer.stop()
            return self.read_answer(answer)


def _columns(schema: pa.Schema) -> dict[str, str]:
    """The columns with their types in SQL."""
    return {field.name: _sql(field.type) for field in schema}


def _sql(type: pa.DataType) -> str:
    if pa.types.is_timestamp(type):
        return "TIMESTAMP(3)"
    return {pa.int64(): "BIGINT", pa.string(): "STRING"}[type]
