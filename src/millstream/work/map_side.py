"""The map side of a task: rows go through the fused steps behind them, and become blocks for jobs.

Whoever runs a task, Spark's workers or the simulator, hands rows in and receives blocks, and the
chunks for sinks and for steps in the JVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.work.chunk import Chunk
from millstream.work.event_time_gate import Gate, MaybeLate, runs_of
from millstream.work.event_time_meter import TimeMeter
from millstream.work.job_clock import JobClock, tally_block
from millstream.work.keyed_batches import KeyedBatch, Pairs, Timed
from millstream.work.keyed_values import keyed
from millstream.work.late_outputs import unpacked
from millstream.work.maybe_late import MaybeLatePacker
from millstream.work.outlets import Outlet, push
from millstream.work.packers.aggregate_packer import AggregatePacker
from millstream.work.packers.block_weight import FLUSH_BYTES, Weigher
from millstream.work.packers.packer import FLUSH_ROWS, Packer, cut, packer_for
from millstream.work.packers.value_packers import ValuePacker
from millstream.work.program import Program
from millstream.work.shared_maps import SharedMaps


class Receiver(Outlet, Protocol):
    """Where the output of a map side goes."""

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        """Take blocks for partitions of a job, made of so many values of the user."""


class MapSide:
    """One attempt of one task: the fused steps, and the values packed so far."""

    def __init__(
        self,
        program: Program,
        receiver: Receiver,
        *,
        time: int,
        clocks: Mapping[int, JobClock],
        key_types: Mapping[int, pa.DataType | None],
        partitions: Sequence[int],
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        """``time``, ``clocks``, known ``key_types`` and ``partitions`` are those of the epoch.

        The packed values of a job are sent whenever they take ``flush_bytes``.
        """
        self._program = program
        self._receiver = receiver
        self._time = time
        self._clocks = clocks
        self._key_types = key_types
        self._partitions = partitions
        self._flush_bytes = flush_bytes
        self._packers: dict[int, Packer] = {}
        self._gates: dict[int, Gate] = {}
        self._meters: dict[int, TimeMeter] = {}
        self._maybe_late: dict[tuple[int, pa.Schema | None], MaybeLatePacker] = {}
        self._weighers: dict[int, Weigher] = {}
        self._held: dict[int, int] = {}
        self._maps = SharedMaps(program.map_sharers)
        self._origin: int | None = None

    def read(self, at: int, chunk: Chunk) -> None:
        """Take rows that begin at a vertex."""
        before, self._origin = self._origin, self._program.origins[at]
        push(self._program, at, chunk, self._to_job, self._receiver)
        self._origin = before

    def results(self, job: int, output: pa.RecordBatch) -> None:
        """Take results of a job."""
        if self._program.jobs[job].windowing is None:
            self.read(job, Chunk(batch=output))
            return
        timed = self._program.gives_time(job)
        results, late = unpacked(output)
        for batch in late:
            for at, side in self._program.sides(job).items():
                if side == "late":
                    self.read(at, Chunk(batch=batch))
        for batch in results:
            for window, chunk in runs_of(batch, timed=timed):
                for reader in self._program.readers_of(job, window):
                    self.read(reader, chunk)

    def finish(self) -> None:
        """Send all packed values, and the tallies."""
        for (job, _), maybe_late in self._maybe_late.items():
            self._send(job, maybe_late)
        for job, packer in self._packers.items():
            self._flush(job, packer)
        counters: dict[int, Gate | TimeMeter] = {**self._gates, **self._meters}
        for job, counter in counters.items():
            if counter.tallies:
                self._receiver.blocks(job, [(0, tally_block(counter.tallies))], 0)

    def _to_job(self, job: int, chunk: Chunk) -> None:
        vertex = self._program.jobs[job]
        kind = self._key_types.get(job)
        if vertex.key_type is None and kind is not None:
            vertex = replace(vertex, key_type=kind)
        if job not in self._packers:
            self._begin(job, vertex)
        gate, meter = self._gates.get(job), self._meters.get(job)
        for values in keyed(vertex, chunk, self._maps.results(job, vertex, chunk)):
            if gate is not None:
                self._pack_admitted(job, vertex, gate, values, chunk.time)
                continue
            times = None if meter is None else meter.measure(values, self._origin, chunk.time)
            if times is None:
                self._pack(job, values)
            else:
                self._pack_timed(job, Timed(values, times))

    def _begin(self, job: int, vertex: JobVertex) -> None:
        self._weighers[job] = Weigher(vertex, limit=self._flush_bytes)
        self._held[job] = 0
        folding = True
        if vertex.windowing is not None:
            clock = self._clocks[job]
            folding = clock.folding
            self._gates[job] = Gate(vertex, clock, self._time, self._program.sides(job).values())
        elif vertex.has_timers:
            self._meters[job] = TimeMeter(vertex, self._clocks[job])
        self._packers[job] = packer_for(vertex, self._program.slots, folding=folding)

    def _pack(self, job: int, values: Pairs | KeyedBatch) -> None:
        packer = self._packers[job]
        if isinstance(packer, ValuePacker):
            taken = packer.add_columns(values, self._flush_bytes)
            if taken is not None:
                self._count(job, packer, taken)
                return
        for part, weight in self._weighers[job].parts(values):
            packer.add(part)
            self._count(job, packer, weight)

    def _pack_timed(self, job: int, values: Timed) -> None:
        packer = self._packers[job]
        for part, weight in self._weighers[job].parts(values):
            packer.add(part.values, part.times)
            self._count(job, packer, weight)

    def _pack_admitted(
        self,
        job: int,
        vertex: JobVertex,
        gate: Gate,
        values: Pairs | KeyedBatch,
        time: int | None,
    ) -> None:
        """Pack the values that windows include; the others go to the side outputs."""
        admitted = gate.admit(values, self._origin, time)
        self._pack_timed(job, admitted.taken)
        if admitted.maybe_late is not None:
            self._pack_maybe_late(job, vertex, admitted.maybe_late)
        for at, side in self._program.sides(job).items():
            if side in admitted.sides:
                self.read(at, admitted.sides[side])

    def _pack_maybe_late(self, job: int, vertex: JobVertex, found: MaybeLate) -> None:
        records = found.records
        schema = records.batch().schema if records is not None and records.is_batch else None
        packer = self._maybe_late.get((job, schema))
        if packer is None:
            packer = self._maybe_late[job, schema] = MaybeLatePacker(vertex, self._program.slots)
        start = 0
        for part, weight in self._weighers[job].parts(found.values):
            stop = start + len(part.times)
            of_part = None if records is None else records.part(start, stop)
            packer.add(part, self._origin, of_part, weight)
            start = stop
            if packer.rows >= FLUSH_ROWS or packer.bytes >= self._flush_bytes:
                self._send(job, packer)

    def _count(self, job: int, packer: Packer, weight: int) -> None:
        """Send the packed values of a job if they make a full block."""
        if isinstance(packer, AggregatePacker):
            self._held[job] = packer.bytes
        else:
            self._held[job] += weight
        if packer.rows >= FLUSH_ROWS or self._held[job] >= self._flush_bytes:
            self._flush(job, packer)

    def _flush(self, job: int, packer: Packer) -> None:
        self._held[job] = 0
        self._send(job, packer)

    def _send(self, job: int, packer: Packer | MaybeLatePacker) -> None:
        count, packed = packer.rows, packer.flush()
        if packed is not None:
            shares = cut(packed, self._program.slots, self._partitions)
            self._receiver.blocks(job, list(shares), count)
