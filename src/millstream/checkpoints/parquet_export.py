"""Writes the state of a job to a Parquet file, without holding all of it in memory."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from millstream.checkpoints.stored_state import StoredState
from millstream.checkpoints.tables import StateTable, complete, union
from millstream.errors import ConfigError


@dataclass(frozen=True)
class Exported:
    """A file with the state of a job."""

    job: str
    epoch: int
    file: str
    rows: int
    bytes: int
    columns: dict[str, str]


def export(state: StoredState, folder: Path) -> Exported:
    """Write ``<job>.parquet`` into a folder; its types are inferred in a first pass."""
    file = folder / f"{state.job.name}.parquet"
    if file.exists():
        raise ConfigError(f"{file} is there already; export to another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    table, ranges = StateTable(state), state.ranges()
    schema = complete(union(table.schema_of(slots) for slots in ranges))
    about = {"millstream.job": state.job.name, "millstream.epoch": str(state.epoch)}
    hidden = folder / f".{file.name}.{uuid.uuid4().hex[:8]}"
    rows = 0
    try:
        with pq.ParquetWriter(hidden, schema.with_metadata(about)) as writer:
            for slots in ranges:
                for batch in table.rows(slots, schema):
                    writer.write_batch(batch)
                    rows += batch.num_rows
        hidden.rename(file)
    finally:
        with suppress(FileNotFoundError):
            hidden.unlink()
    columns = {field.name: str(field.type) for field in schema}
    return Exported(state.job.name, state.epoch, str(file), rows, file.stat().st_size, columns)
