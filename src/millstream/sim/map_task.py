"""The map side of a simulated task: what ``millstream.spark.stage`` does, without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.coordinator.record import EpochRecord, JobTypes
from millstream.flow.vertices import JobVertex
from millstream.sim.workload import Outputs
from millstream.state.blocks import to_bytes
from millstream.work.chunk import Chunk
from millstream.work.clocks import tally_block
from millstream.work.keying import keyed
from millstream.work.packing import Packer, cut, packer_for
from millstream.work.program import Program
from millstream.work.routing import push
from millstream.work.sharing import SharedMaps
from millstream.work.timing import Gate, runs_of
from millstream.work.window_packing import WindowPacker, window_packer_for

Row = tuple[Any, ...]


class MapTask:
    """Takes rows of sources, or results of jobs; gives blocks, and what sinks see."""

    def __init__(self, program: Program, record: EpochRecord, stage: int, task: int) -> None:
        self.blocks: list[Row] = []
        self.shown: Outputs = {}
        self._program = program
        self._record = record
        self._place = (stage, task)
        self._packers: dict[int, Packer] = {}
        self._windowed: dict[int, tuple[Gate, WindowPacker]] = {}
        self._maps = SharedMaps(program.map_sharers)
        self._origin: int | None = None

    def read(self, source: int, records: list[Any]) -> None:
        """Take records of a source."""
        self._push(source, Chunk(records=records))

    def take(self, job: int, output: pa.RecordBatch) -> None:
        """Take results of a job."""
        if self._program.jobs[job].windowing is None:
            self._push(job, Chunk(batch=output))
            return
        for window, chunk in runs_of(output, timed=True):
            for reader in self._program.readers_of(job, window):
                self._push(reader, chunk)

    def finish(self) -> None:
        """Give all blocks."""
        for job, packer in self._packers.items():
            self._flush(job, packer)
        for job, (gate, windowed) in self._windowed.items():
            self._flush(job, windowed)
            if gate.tallies:
                self._emit(job, 0, tally_block(gate.tallies), 0)

    def _push(self, at: int, chunk: Chunk) -> None:
        before, self._origin = self._origin, self._program.origins[at]
        push(self._program, at, chunk, self)
        self._origin = before

    # -- the outlet of the fused steps -----------------------------------------------------

    def to_job(self, job: int, chunk: Chunk) -> None:
        vertex = self._program.jobs[job]
        types = self._record.types.get(job, JobTypes())
        if vertex.key_type is None and types.key is not None:
            vertex = replace(vertex, key_type=types.key)
        if vertex.windowing is not None:
            self._to_windows(job, vertex, chunk)
            return
        if job not in self._packers:
            self._packers[job] = packer_for(vertex, self._program.slots)
        for values in keyed(vertex, chunk, self._maps.results(job, vertex, chunk)):
            self._packers[job].add(values)

    def _to_windows(self, job: int, vertex: JobVertex, chunk: Chunk) -> None:
        sides = self._program.sides(job)
        if job not in self._windowed:
            clock = self._record.clocks[job]
            self._windowed[job] = (
                Gate(vertex, clock, self._record.time, sides.values()),
                window_packer_for(vertex, self._program.slots, folding=clock.folding),
            )
        gate, packer = self._windowed[job]
        for values in keyed(vertex, chunk, self._maps.results(job, vertex, chunk)):
            admitted = gate.admit(values, self._origin, chunk.time)
            packer.add(admitted.taken)
            for at, side in sides.items():
                if side in admitted.sides:
                    self._push(at, admitted.sides[side])

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        self.shown.setdefault(sink, []).extend(chunk.records())

    def to_frame(self, frame: int, chunk: Chunk) -> None:
        raise NotImplementedError("simulated workflows have no steps in the JVM")

    def _flush(self, job: int, packer: Packer | WindowPacker) -> None:
        count, packed = packer.rows, packer.flush()
        if packed is not None:
            for part, rows in cut(packed, self._program.slots, self._program.partitions):
                self._emit(job, part, rows, count)
                count = 0  # told once, with the first block

    def _emit(self, job: int, part: int, rows: pa.RecordBatch, count: int) -> None:
        place = (*self._place, len(self.blocks))
        self.blocks.append((part, job, part, *place, count, to_bytes(rows)))
