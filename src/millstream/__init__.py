"""Millstream: streaming MapReduce on Apache Spark, in Python.

The layers, from the user's side inwards; imports go one way, downwards, and a tool checks it:

    cli                   the command ``millstream``
    spark                 the only importer of pyspark: sessions, stages, feeds, sources, sinks
    api, dashboard        a run over HTTP, and the page that shows it
    observe               progress, its display, and traces
    coordinator, node     who decides, and who owns the state
    wire                  authenticated calls between processes
    work                  users' functions at work: mapping, packing, reducing
    elastic               load, and policies that decide from it
    checkpoints           what is in a store: the chain of commits, and what brings an epoch back
    stores                where checkpoints are durable: one protocol, several back-ends
    flow                  what users write: frozen descriptions of workflows
    state, ring           fragments, columns and codecs; keys, hashes, slots and their owners
    errors, log_context   the root of all errors; what a line of the log says about its origin

Importing this package does not start a JVM: what needs Spark is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream.checkpoints.chain import CommitUnknownError, SupersededError
from millstream.checkpoints.epoch_contents import EpochIncompleteError
from millstream.checkpoints.evolution import WorkflowChangedError, changes
from millstream.checkpoints.location import NoCheckpointError
from millstream.checkpoints.records import BadRecordError
from millstream.checkpoints.spark_logs import EpochNotRetainedError
from millstream.checkpoints.stored_state import NotInCheckpointError, UnreadableStateError
from millstream.coordinator.claim import CheckpointDamagedError, WithdrawalRefusedError
from millstream.coordinator.journal import CheckpointResult
from millstream.coordinator.ledger import TypeConflictError
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunEndedError
from millstream.coordinator.sink_folders import OutputLostError
from millstream.coordinator.sink_layout import SinkBusyError
from millstream.elastic.actions import AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.bottleneck_policy import BottleneckOptions, BottleneckPolicy
from millstream.elastic.cooldown import Cooldown
from millstream.elastic.events import Event
from millstream.elastic.latency_policy import LatencyOptions, LatencyPolicy
from millstream.elastic.load import Load
from millstream.elastic.policy import PolicyError, policy
from millstream.elastic.ring_policy import RingOptions, RingPolicy
from millstream.errors import ConfigError, DataError, MillstreamError, WorkflowError
from millstream.flow import read, write
from millstream.flow.functions import arrow, dataframe, sql
from millstream.flow.reducer_class import Reducer, ReducerContext
from millstream.flow.reducers import Combinable, combinable
from millstream.flow.streams import JobStream, KeyedStream, Stream, WindowedStream
from millstream.flow.windows import (
    count_window,
    every,
    global_window,
    on_watermark,
    processing_time,
    session,
    sliding,
    tumbling,
)
from millstream.flow.workflow import Workflow
from millstream.ring.key_types import KeyTypeError
from millstream.state.aggregates import (
    aggregate,
    approx_distinct,
    count,
    distinct,
    first,
    last,
    max,
    mean,
    min,
    sum,
    top_k,
)
from millstream.state.aggregates.errors import (
    AggregateError,
    SumOverflowError,
    UnsupportedValueError,
)
from millstream.state.timers import Timer, TimerError, Timers
from millstream.stores.store import (
    CorruptRecordError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from millstream.wire.calls import InternalError
from millstream.wire.feed import NotDeterministicError
from millstream.wire.state_reads import ScanBrokenError
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.timer_operator import TimerLoopError
from millstream.work.typed_state import StateTypeError
from millstream.work.windows.forms import CountedWindow, EndlessWindow, Window

if TYPE_CHECKING:
    from millstream.node.process import NodeStartError
    from millstream.node.typed_errors import StoreWriteError
    from millstream.spark.conform import SinkTypeError
    from millstream.spark.engine import EpochFailedError
    from millstream.spark.gateway import SparkLostError
    from millstream.spark.handle import Run
    from millstream.spark.processors import apply_in_pandas_with_state, transform_with_state
    from millstream.spark.query_log_files import QueryLogDamagedError, SourcesChangedError
    from millstream.spark.run import run, start
    from millstream.spark.sink_writers import UnsupportedColumnError
    from millstream.spark.state_frame import read_state

__version__ = "0.1.0"

_LAZY = {
    "EpochFailedError": "spark.engine",
    "NodeStartError": "node.process",
    "QueryLogDamagedError": "spark.query_log_files",
    "Run": "spark.handle",
    "SinkTypeError": "spark.conform",
    "SourcesChangedError": "spark.query_log_files",
    "SparkLostError": "spark.gateway",
    "StoreWriteError": "node.durability.write_queue",
    "UnsupportedColumnError": "spark.sink_writers",
    "apply_in_pandas_with_state": "spark.processors",
    "read_state": "spark.state_frame",
    "run": "spark.run",
    "start": "spark.run",
    "transform_with_state": "spark.processors",
}

__all__ = [
    "AddNodes",
    "AggregateError",
    "BadRecordError",
    "BottleneckOptions",
    "BottleneckPolicy",
    "CheckpointDamagedError",
    "CheckpointResult",
    "Combinable",
    "CommitUnknownError",
    "ConfigError",
    "Cooldown",
    "CorruptRecordError",
    "CountedWindow",
    "DataError",
    "EndlessWindow",
    "EpochFailedError",
    "EpochIncompleteError",
    "EpochNotRetainedError",
    "Event",
    "InternalError",
    "JobStream",
    "KeyTypeError",
    "KeyedStream",
    "LatencyOptions",
    "LatencyPolicy",
    "Load",
    "MillstreamError",
    "MoveSlots",
    "NoCheckpointError",
    "NodeStartError",
    "NotDeterministicError",
    "NotInCheckpointError",
    "OutputLostError",
    "PolicyError",
    "QueryLogDamagedError",
    "RecordError",
    "Reducer",
    "ReducerContext",
    "RemoveNodes",
    "RingOptions",
    "RingPolicy",
    "Run",
    "RunEndedError",
    "ScanBrokenError",
    "SinkBusyError",
    "SinkTypeError",
    "SourcesChangedError",
    "SparkLostError",
    "StateLostError",
    "StateTypeError",
    "StoreError",
    "StoreFullError",
    "StoreUnavailableError",
    "StoreWriteError",
    "Stream",
    "SumOverflowError",
    "SupersededError",
    "Timer",
    "TimerError",
    "TimerLoopError",
    "Timers",
    "TypeConflictError",
    "UnreadableStateError",
    "UnsupportedColumnError",
    "UnsupportedValueError",
    "UserFunctionError",
    "Window",
    "WindowedStream",
    "WithdrawalRefusedError",
    "Workflow",
    "WorkflowChangedError",
    "WorkflowError",
    "aggregate",
    "apply_in_pandas_with_state",
    "approx_distinct",
    "arrow",
    "changes",
    "combinable",
    "count",
    "count_window",
    "dataframe",
    "distinct",
    "every",
    "first",
    "global_window",
    "last",
    "max",
    "mean",
    "min",
    "on_watermark",
    "policy",
    "processing_time",
    "read",
    "read_state",
    "run",
    "session",
    "sliding",
    "sql",
    "start",
    "sum",
    "top_k",
    "transform_with_state",
    "tumbling",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"millstream.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")
