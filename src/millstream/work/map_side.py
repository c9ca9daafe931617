"""The map side of a task: rows go through the steps behind them, and become blocks for jobs.

Whoever runs a task, Spark's workers or the simulator, hands rows in and receives blocks, and what
sinks and steps in the JVM read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.ring.ring import partition_slots
from millstream.work.belated import BelatedPacker
from millstream.work.block_weight import FLUSH_BYTES, Weigher
from millstream.work.chunk import Chunk
from millstream.work.event_time_gate import Belated, Gate, runs_of
from millstream.work.job_clock import JobClock, tally_block
from millstream.work.keyed_values import KeyedBatch, Pairs, keyed
from millstream.work.outlets import push
from millstream.work.packers import FLUSH_ROWS, AggregatePacker, Packer, cut, packer_for
from millstream.work.parcels import opened
from millstream.work.program import Program
from millstream.work.shared_maps import SharedMaps
from millstream.work.window_packers import WindowAggregatePacker, WindowPacker, window_packer_for


class Receiver(Protocol):
    """Where the work of a map side goes."""

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        """Blocks for partitions of a job, made of so many values of the user."""

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        """A sink takes the chunk."""

    def to_frame(self, frame: int, chunk: Chunk) -> None:
        """A step in the JVM takes the chunk."""


class MapSide:
    """One attempt of one task: an outlet for the fused steps, and what it has packed so far."""

    def __init__(
        self,
        program: Program,
        receiver: Receiver,
        *,
        time: int,
        clocks: Mapping[int, JobClock],
        key_types: Mapping[int, pa.DataType | None],
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        """The time and the clocks are those of the epoch; key types are those it knows.

        What was packed of a job is sent on when there are ``flush_bytes`` of it.
        """
        self._program = program
        self._receiver = receiver
        self._time = time
        self._clocks = clocks
        self._key_types = key_types
        self._flush_bytes = flush_bytes
        self._packers: dict[int, Packer] = {}
        self._windowed: dict[int, tuple[Gate, WindowPacker]] = {}
        self._belated: dict[tuple[int, pa.Schema | None], BelatedPacker] = {}
        self._weighers: dict[int, Weigher] = {}
        self._held: dict[int, int] = {}
        self._maps = SharedMaps(program.map_sharers)
        self._origin: int | None = None

    def read(self, at: int, chunk: Chunk) -> None:
        """Take rows that begin at a vertex."""
        before, self._origin = self._origin, self._program.origins[at]
        push(self._program, at, chunk, self)
        self._origin = before

    def results(self, job: int, output: pa.RecordBatch) -> None:
        """Take results of a job."""
        if self._program.jobs[job].windowing is None:
            self.read(job, Chunk(batch=output))
            return
        timed = self._program.gives_time(job)
        results, late = opened(output)
        for batch in late:
            for at, side in self._program.sides(job).items():
                if side == "late":
                    self.read(at, Chunk(batch=batch))
        for batch in results:
            for window, chunk in runs_of(batch, timed=timed):
                for reader in self._program.readers_of(job, window):
                    self.read(reader, chunk)

    def finish(self) -> None:
        """Give all that was packed, and what was counted."""
        for job, packer in self._packers.items():
            self._flush(job, packer)
        parts = partition_slots(self._program.slots, self._program.partitions)
        with_slots = next(part for part, slots in enumerate(parts) if slots)
        for (job, _), belated in self._belated.items():
            self._send(job, belated)
        for job, (gate, windowed) in self._windowed.items():
            self._flush(job, windowed)
            if gate.tallies:
                self._receiver.blocks(job, [(with_slots, tally_block(gate.tallies))], 0)

    # -- the outlet of the fused steps -----------------------------------------------------

    def to_job(self, job: int, chunk: Chunk) -> None:
        vertex = self._program.jobs[job]
        kind = self._key_types.get(job)
        if vertex.key_type is None and kind is not None:
            vertex = replace(vertex, key_type=kind)
        if job not in self._weighers:
            self._weighers[job] = Weigher(vertex, limit=self._flush_bytes)
            self._held[job] = 0
        if vertex.windowing is None:
            self._pack(job, vertex, chunk)
        else:
            self._place(job, vertex, chunk)

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        self._receiver.to_sink(sink, chunk)

    def to_frame(self, frame: int, chunk: Chunk) -> None:
        self._receiver.to_frame(frame, chunk)

    def _pack(self, job: int, vertex: JobVertex, chunk: Chunk) -> None:
        if job not in self._packers:
            self._packers[job] = packer_for(vertex, self._program.slots)
        packer = self._packers[job]
        for values in self._keyed(job, vertex, chunk):
            for part, weight in self._weighers[job].parts(values):
                packer.add(part)
                self._count(job, packer, weight)

    def _place(self, job: int, vertex: JobVertex, chunk: Chunk) -> None:
        """Pack what windows take; the rest goes to the sides."""
        sides = self._program.sides(job)
        if job not in self._windowed:
            clock = self._clocks[job]
            self._windowed[job] = (
                Gate(vertex, clock, self._time, sides.values()),
                window_packer_for(vertex, self._program.slots, folding=clock.folding),
            )
        gate, packer = self._windowed[job]
        for values in self._keyed(job, vertex, chunk):
            admitted = gate.admit(values, self._origin, chunk.time)
            for part, weight in self._weighers[job].parts(admitted.taken):
                packer.add(part)
                self._count(job, packer, weight)
            if admitted.belated is not None:
                self._belate(job, vertex, admitted.belated)
            for at, side in sides.items():
                if side in admitted.sides:
                    self.read(at, admitted.sides[side])

    def _count(self, job: int, packer: Packer | WindowPacker, weight: int) -> None:
        """Send on what was packed of a job, if that is a full block now."""
        if isinstance(packer, AggregatePacker | WindowAggregatePacker):
            self._held[job] = packer.bytes
        else:
            self._held[job] += weight
        if packer.rows >= FLUSH_ROWS or self._held[job] >= self._flush_bytes:
            self._flush(job, packer)

    def _belate(self, job: int, vertex: JobVertex, belated: Belated) -> None:
        """Pack what only the reducer can tell to be late."""
        records = belated.records
        schema = records.batch().schema if records is not None and records.is_batch else None
        packer = self._belated.get((job, schema))
        if packer is None:
            packer = self._belated[job, schema] = BelatedPacker(vertex, self._program.slots)
        start = 0
        for part, weight in self._weighers[job].parts(belated.values):
            stop = start + len(part.times)
            of_part = None if records is None else records.part(start, stop)
            packer.add(part, self._origin, of_part, weight)
            start = stop
            if packer.rows >= FLUSH_ROWS or packer.bytes >= self._flush_bytes:
                self._send(job, packer)

    def _keyed(self, job: int, vertex: JobVertex, chunk: Chunk) -> Iterator[Pairs | KeyedBatch]:
        return keyed(vertex, chunk, self._maps.results(job, vertex, chunk))

    def _flush(self, job: int, packer: Packer | WindowPacker) -> None:
        self._held[job] = 0
        self._send(job, packer)

    def _send(self, job: int, packer: Packer | WindowPacker | BelatedPacker) -> None:
        count, packed = packer.rows, packer.flush()
        if packed is not None:
            shares = cut(packed, self._program.slots, self._program.partitions)
            self._receiver.blocks(job, list(shares), count)
