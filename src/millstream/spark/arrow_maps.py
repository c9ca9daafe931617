"""``mapInArrow`` for frames that are built again in every epoch.

PySpark names all columns of a frame one by one, each with some calls to the JVM. The columns are
the same in every epoch, so they are named once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.classic.column import _to_seq
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ArrowMaps:
    """Applies functions to frames with known columns."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, ...], Any] = {}

    def apply(
        self, frame: DataFrame, names: Sequence[str], function: Function, schema: StructType
    ) -> DataFrame:
        """``frame.mapInArrow(function, schema)`` for a frame with these columns."""
        kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        made: Any = UserDefinedFunction(function, returnType=schema, evalType=kind)
        call = made._judf.apply(self._named(frame, tuple(names)))
        return DataFrame(frame._jdf.mapInArrow(call, False, None), frame.sparkSession)

    def _named(self, frame: DataFrame, names: tuple[str, ...]) -> Any:
        if names not in self._columns:
            columns: list[Any] = [sf.col("`" + name.replace("`", "``") + "`") for name in names]
            jvm_columns = [column._jc for column in columns]
            self._columns[names] = _to_seq(frame.sparkSession.sparkContext, jvm_columns)
        return self._columns[names]
