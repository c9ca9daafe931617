"""Opens sources: turns a description into a streaming DataFrame of Spark."""

from __future__ import annotations

import os

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from millstream.errors import ConfigError, WorkflowError
from millstream.flow import sources as flow
from millstream.spark.folder import Folder
from millstream.spark.replay import open_replay


def open_source(spark: SparkSession, source: flow.Source) -> DataFrame:
    """Open a source as a streaming DataFrame. Nothing is read yet, except a missing schema."""
    match source:
        case flow.TextSource():
            return _folder_reader(spark, source).text(_stream_path(spark, source.path))
        case flow.FilesSource():
            return _open_files(spark, source)
        case flow.RateSource():
            rate = spark.readStream.format("rate")
            return rate.option("rowsPerSecond", source.rows_per_second).load()
        case flow.SocketSource():
            lines = spark.readStream.format("socket")
            return lines.option("host", source.host).option("port", source.port).load()
        case flow.KafkaSource():
            return _open_kafka(spark, source)
        case flow.ReplaySource():
            return open_replay(spark, source)
        case flow.DataFrameSource() if isinstance(source.frame, DataFrame):
            return source.frame
    raise WorkflowError(
        f"{type(source).__name__} cannot be opened as a Spark stream",
        "use a function of millstream, or a streaming DataFrame",
    )


def _open_files(spark: SparkSession, source: flow.FilesSource) -> DataFrame:
    reader = _folder_reader(spark, source).format(source.format).options(**dict(source.options))
    return reader.schema(_schema_of(spark, source)).load(_stream_path(spark, source.path))


def _open_kafka(spark: SparkSession, source: flow.KafkaSource) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", source.servers)
    if source.pattern is not None:
        reader = reader.option("subscribePattern", source.pattern)
    else:
        reader = reader.option("subscribe", ",".join(source.topics))
    if source.max_rows_per_epoch is not None:
        reader = reader.option("maxOffsetsPerTrigger", source.max_rows_per_epoch)
    reader = reader.option("startingOffsets", source.start).options(**dict(source.options))
    try:
        return reader.load()
    except AnalysisException as problem:
        if problem.getCondition() != "KAFKA_DATA_SOURCE_NOT_ENABLED":
            raise
        raise ConfigError(
            "Spark's Kafka connector is missing; make the session with spark.jars.packages="
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
        ) from problem


def _folder_reader(spark: SparkSession, source: flow.FolderSource) -> DataStreamReader:
    reader = spark.readStream
    if source.max_files_per_epoch is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_epoch)
    return reader


def _schema_of(spark: SparkSession, source: flow.FilesSource) -> StructType | str:
    if isinstance(source.schema, str):
        return source.schema
    if isinstance(source.schema, pa.Schema):
        return from_arrow_schema(source.schema)
    try:
        return spark.read.options(**dict(source.options)).parquet(source.path).schema
    except AnalysisException as problem:
        raise ConfigError(
            f"cannot infer the schema of {source.path} from its files ({problem.getCondition()}); "
            "put a file there first, or pass schema="
        ) from problem


def _stream_path(spark: SparkSession, path: str) -> str:
    """Spell the path of a single file as a glob that matches only it.

    Spark's stream treats a path without a glob as the base of partition folders, and fails in
    the first epoch ("basePath must be a directory") if it is a file.
    """
    name = os.path.basename(path)
    if not name or any(sign in path for sign in "*?[{") or not Folder(spark, path).is_file(""):
        return path
    return f"{path[:-1]}[{path[-1]}]"
