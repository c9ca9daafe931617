"""The stages of an epoch as one physical plan, which Spark makes once and not in every epoch.

From epoch to epoch only the functions of the stages change, and what they are applied to. So
Spark analyses, optimises and plans a chain of ``mapInArrow`` and shuffles when it is new; later
epochs exchange the functions in the physical plan that came of it. The classes that this takes are
internal to Spark: if they are others than we know, every epoch is planned from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType
from pyspark.sql.udf import _wrap_function

from millstream.spark.arrow_maps import ArrowMaps, Function

log = logging.getLogger("millstream")

_MAP = "org.apache.spark.sql.execution.python.MapInArrowExec"
_UDF = "org.apache.spark.sql.catalyst.expressions.PythonUDF"
_FUNCTION = "org.apache.spark.api.python.SimplePythonFunction"
_RDD = "org.apache.spark.sql.execution.SQLExecutionRDD"
_LIST = "scala.collection.immutable.$colon$colon"
_NO_LIST = "scala.collection.immutable.Nil$"
_LARGEST = 1 << 20  # of a pickled function; PySpark broadcasts larger ones
_MOST_TEMPLATES = 16


@dataclass(frozen=True)
class Chain:
    """What a chain consists of: a function and its schema for each stage, shuffles between them.

    ``names`` are the columns that the first stage reads; before the stage at ``i + 1``, rows go to
    ``widths[i]`` tasks by the number in their column ``route``.
    """

    names: tuple[str, ...]
    functions: tuple[Function, ...]
    schemas: tuple[StructType, ...]
    widths: tuple[int, ...]


class EpochRows:
    """The rows that the last stage of a chain returns, for one try of an epoch."""

    def __init__(self, session: SparkSession, plan: Any) -> None:
        self._session = session
        self._plan = plan

    @cached_property
    def frame(self) -> DataFrame:
        """The rows as a DataFrame; several evaluations share the shuffles of the chain."""
        session = self._session._jsparkSession
        made = session.internalCreateDataFrame(self._rdd, self._plan.schema(), False)
        return DataFrame(made, self._session)

    def evaluate(self) -> None:
        """Run every task, and drop the rows."""
        _evaluate(self._rdd)

    @cached_property
    def _rdd(self) -> Any:
        jvm: Any = self._session._jvm
        settings = self._session._jsparkSession.sessionState().conf()
        return _class(jvm, _RDD)(self._plan.execute(), settings)


def evaluate_frame(frame: DataFrame) -> None:
    """Run every task of a DataFrame, and drop its rows."""
    _evaluate(frame._jdf.queryExecution().toRdd())


def _evaluate(rdd: Any) -> None:
    """Run every task of an RDD, and drop its rows.

    Not by a write to ``noop``, which is a query of its own around this one; and not by ``count``,
    for which Spark reads the byte code of two of its largest classes.
    """
    try:
        rdd.toJavaRDD().countAsync().get()
    except Py4JJavaError as failed:
        thrown = failed.java_exception
        if thrown.getClass().getSimpleName() != "ExecutionException":
            raise
        raise Py4JJavaError("the tasks of an epoch failed", thrown.getCause()) from None


class StageChains:
    """Turns chains into rows; each shape of a chain is planned once."""

    def __init__(self, maps: ArrowMaps) -> None:
        self._maps = maps
        self._route = sf.col("route")
        self._templates: dict[tuple[object, ...], _Template] = {}
        self._is_known = True  # whether Spark's classes are those that we know

    def rows(self, below: DataFrame, chain: Chain) -> EpochRows:
        """The rows of a chain over a DataFrame."""
        session = below.sparkSession
        if not self._is_known:
            return EpochRows(session, _physical_plan(self._frame(below, chain)))
        # Files that users add (addPyFile) become part of the functions.
        includes = tuple(session.sparkContext._python_includes or ())
        shape = (chain.names, chain.widths, includes, *map(id, chain.schemas))
        if shape not in self._templates:
            planned = _physical_plan(self._frame(below, chain))
            try:
                template = _Template(session, planned, chain)
            except (Py4JError, UnknownPlanError) as problem:
                log.info("every epoch is planned anew: %s", problem)
                self._is_known = False
                return EpochRows(session, planned)
            while len(self._templates) >= _MOST_TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[shape] = template
        filled = self._templates[shape].filled(_physical_plan(below), chain.functions)
        return EpochRows(session, filled)

    def _frame(self, below: DataFrame, chain: Chain) -> DataFrame:
        """The chain as a DataFrame."""
        frame, names = below, chain.names
        widths: tuple[int | None, ...] = (None, *chain.widths)
        for function, schema, width in zip(chain.functions, chain.schemas, widths, strict=True):
            if width is not None:
                frame = frame.repartitionById(width, self._route)
            frame = self._maps.apply(frame, names, function, schema)
            names = tuple(schema.names)
        return frame


class UnknownPlanError(Exception):
    """Spark planned a chain in a way that we do not know; the text says what is different."""


class _Template:
    """A physical plan, in which functions can be exchanged, and what they are applied to."""

    def __init__(self, session: SparkSession, planned: Any, chain: Chain) -> None:
        jvm: Any = session._jvm
        self._context = session.sparkContext
        self._udf_class = _class(jvm, _UDF)
        self._map_class = _class(jvm, _MAP)
        self._function_class = _class(jvm, _FUNCTION)
        self._list_class = _class(jvm, _LIST)
        self._no_list = getattr(_class(jvm, _NO_LIST), "MODULE$")
        self._schemas = chain.schemas
        self._stages: list[_Stage] = []
        above: list[Any] = []
        node = planned
        while len(self._stages) < len(chain.functions):
            children = node.children()
            if children.size() != 1:
                raise UnknownPlanError(f"{node.nodeName()} has {children.size()} children")
            if node.getClass().getName() == _MAP:
                self._stages.append(_Stage(node, above[::-1]))
                above = []
            else:
                above.append(node)
            node = children.head()
        self._stages.reverse()
        # Also to see that Spark's classes can be made as we make them.
        self.filled(node, chain.functions)

    def filled(self, below: Any, functions: Sequence[Function]) -> Any:
        """The plan with these functions, over another plan."""
        plan = below
        for stage, function, schema in zip(self._stages, functions, self._schemas, strict=True):
            shipped = self._shipped(function, schema, stage)
            call = self._udf_class(stage.udf[0], shipped, *stage.udf[1:])
            plan = self._map_class(call, stage.output, plan, *stage.options)
            for node in stage.above:
                plan = node.withNewChildren(self._list_class(plan, self._no_list))
        return plan

    def _shipped(self, function: Function, schema: StructType, stage: _Stage) -> Any:
        """A function as Spark gets it; but for its pickled form it is as the planned one."""
        pickled = CloudPickleSerializer().dumps((function, schema))  # type: ignore[no-untyped-call]
        broadcast = next(iter(self._context._pickled_broadcast_vars), None)
        if len(pickled) > _LARGEST or broadcast is not None or stage.broadcasts:
            return _wrap_function(self._context, function, schema)
        return self._function_class(bytearray(pickled), *stage.function)


class _Stage:
    """A stage of a template: what its node consists of, and the nodes up to the next stage."""

    def __init__(self, node: Any, above: list[Any]) -> None:
        udf = node.func()
        self.udf = (
            udf.name(),
            udf.dataType(),
            udf.children(),
            udf.evalType(),
            udf.udfDeterministic(),
            udf.resultId(),
        )
        planned = udf.func()
        self.broadcasts = not planned.broadcastVars().isEmpty()
        self.function = (
            planned.envVars(),
            planned.pythonIncludes(),
            planned.pythonExec(),
            planned.pythonVer(),
            planned.broadcastVars(),
            planned.accumulator(),
        )
        self.output = node.output()
        self.options = (node.isBarrier(), node.profile())
        self.above = above


def _class(jvm: Any, name: str) -> Any:
    found = getattr(jvm, name)
    if not isinstance(found, JavaClass):
        raise UnknownPlanError(f"there is no class {name}")
    return found


def _physical_plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().executedPlan()
