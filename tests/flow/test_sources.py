from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError, WorkflowError
from millstream.flow import read, sources


class Frame:
    """As much of a DataFrame as a description looks at."""

    def __init__(self, *, streaming: bool) -> None:
        self.isStreaming = streaming


def test_files_end_unless_they_are_followed() -> None:
    assert read.text("in").bounded
    assert not read.text("in", follow=True).bounded
    assert read.parquet("in").bounded
    assert not read.parquet("in", follow=True).bounded


def test_clocks_and_sockets_never_end() -> None:
    assert not read.rate(5).bounded
    assert not read.socket("localhost", 9999).bounded


def test_sources_that_forget_committed_rows_are_known() -> None:
    kept = [read.text("in"), read.rate(5), read.replay([{"n": 1}]), read.kafka("h:1", "topic")]
    cleaned = read.parquet("in", options={"cleanSource": "archive"})
    forgetting = [read.socket("h", 1), read.dataframe(Frame(streaming=True)), cleaned]

    assert not any(source.forgets for source in kept)
    assert not read.parquet("in", options={"CLEANSOURCE": "OFF"}).forgets
    assert all(source.forgets for source in forgetting)


def test_a_path_object_is_kept_as_text() -> None:
    assert read.text(Path("some") / "folder").path == "some/folder"
    assert read.replay(Path("some") / "file.csv").recording == "some/file.csv"


@pytest.mark.parametrize("path", ["", None, 7, b"in"])
def test_what_is_not_a_path_is_refused(path: object) -> None:
    with pytest.raises(ConfigError, match="path"):
        read.text(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3"])
def test_a_limit_is_a_whole_number_of_at_least_one(count: object) -> None:
    with pytest.raises(ConfigError, match="max_files_per_epoch"):
        read.text("in", max_files_per_epoch=count)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rows_per_epoch"):
        read.replay([{"n": 1}], rows_per_epoch=count)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rows_per_second"):
        read.rate(count)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [read.json, read.csv])
def test_json_and_csv_need_a_schema(function: Callable[..., sources.FilesSource]) -> None:
    with pytest.raises(ConfigError, match="need a schema"):
        function("in", schema=None)

    assert function("in", schema="n bigint").schema == "n bigint"


def test_a_schema_may_be_one_of_pyarrow() -> None:
    schema = pa.schema({"n": pa.int64()})

    assert read.json("in", schema=schema).schema == schema


@pytest.mark.parametrize("schema", ["", 7, ["n"]])
def test_other_schemas_are_refused(schema: object) -> None:
    with pytest.raises(ConfigError, match="schema must be"):
        read.parquet("in", schema=schema)


def test_options_are_kept_in_an_order_of_their_own() -> None:
    one = read.parquet("in", options={"b": "2", "a": "1"})
    two = read.parquet("in", options={"a": "1", "b": "2"})

    assert one == two
    assert hash(one) == hash(two)


def test_options_that_are_not_strings_are_refused() -> None:
    with pytest.raises(ConfigError, match="options are strings"):
        read.parquet("in", options={"a": 1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("topics", "changes", "wanted"),
    [
        ((), {}, "either topics or pattern"),
        (("a",), {"pattern": "a.*"}, "either topics or pattern"),
        (("a,b",), {}, "without commas"),
        (("a",), {"start": "now"}, "earliest, latest"),
        (("a",), {"max_rows_per_epoch": 0}, "max_rows_per_epoch"),
        (("a",), {"options": {"a": 1}}, "options are strings"),
    ],
)
def test_topics_that_make_no_sense_are_refused(
    topics: tuple[str, ...], changes: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(ConfigError, match=wanted):
        read.kafka("localhost:9092", *topics, **changes)


def test_a_kafka_server_is_a_host_and_a_port() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        read.kafka("localhost", "orders")


def test_topics_end_only_if_they_are_not_followed() -> None:
    assert not read.kafka("localhost:9092", "orders").bounded
    assert read.kafka("localhost:9092", pattern="orders.*", follow=False).bounded


@pytest.mark.parametrize("port", [0, 65536, "80", True])
def test_a_port_out_of_range_is_refused(port: object) -> None:
    with pytest.raises(ConfigError, match="port"):
        read.socket("localhost", port)  # type: ignore[arg-type]


def test_a_replay_ends_and_is_paced_only_if_asked() -> None:
    records = [{"at": 1, "n": 1}]

    assert read.replay(records).bounded
    assert not read.replay(records).paced
    assert not read.replay(records, rows_per_epoch=10).paced
    assert read.replay(records, rate=10).paced
    assert read.replay(records, speedup=2, time_column="at").paced


def test_records_may_have_different_keys() -> None:
    source = read.replay([{"a": 1}, {"b": "x"}])

    assert isinstance(source.recording, pa.Table)
    assert source.recording.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_rate_and_speedup_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        read.replay([{"at": 1}], rate=1, speedup=1, time_column="at")


def test_speedup_needs_to_know_the_time_column() -> None:
    with pytest.raises(ConfigError, match="time_column"):
        read.replay([{"at": 1}], speedup=1)


def test_a_time_column_that_is_not_recorded_is_refused() -> None:
    with pytest.raises(ConfigError, match="no column 'when'; it has at, n"):
        read.replay([{"at": 1, "n": 2}], time_column="when")


@pytest.mark.parametrize("pace", [0, -1, float("inf"), float("nan"), "1", True])
def test_a_pace_is_a_number_above_zero(pace: object) -> None:
    with pytest.raises(ConfigError, match="rate must be"):
        read.replay([{"at": 1}], rate=pace)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="speedup must be"):
        read.replay([{"at": 1}], speedup=pace, time_column="at")  # type: ignore[arg-type]


@pytest.mark.parametrize("recording", [7, [], [1, 2], {"a": 1}, [{}], pa.table({})])
def test_what_is_not_a_recording_is_refused(recording: object) -> None:
    with pytest.raises(ConfigError):
        read.replay(recording)


def test_a_streaming_frame_is_wrapped() -> None:
    frame = Frame(streaming=True)

    source = read.dataframe(frame)

    assert source.frame is frame
    assert not source.bounded
    assert read.dataframe(frame, bounded=True).bounded


def test_a_frame_that_does_not_stream_is_refused_with_a_way_out() -> None:
    with pytest.raises(WorkflowError, match="readStream"):
        read.dataframe(Frame(streaming=False))


def test_what_is_not_a_frame_is_refused() -> None:
    with pytest.raises(WorkflowError, match="got list"):
        read.dataframe([1, 2])


@pytest.mark.parametrize(
    "source",
    [
        read.text("in", follow=True),
        read.csv("in", schema="n bigint", options={"sep": ";"}),
        read.kafka("localhost:9092", "orders"),
        read.rate(3),
        read.socket("localhost", 1),
    ],
)
def test_descriptions_survive_pickling(source: sources.Source) -> None:
    assert pickle.loads(pickle.dumps(source)) == source


def test_the_kinds_that_checkpoints_record_do_not_change() -> None:
    kinds: dict[type[sources.Source], str] = {
        sources.TextSource: "text",
        sources.FilesSource: "files",
        sources.RateSource: "rate",
        sources.SocketSource: "socket",
        sources.KafkaSource: "kafka",
        sources.ReplaySource: "replay",
        sources.DataFrameSource: "dataframe",
    }
    assert {source: source.kind for source in kinds} == kinds


def test_two_replays_are_never_taken_for_one() -> None:
    one, two = read.replay([{"n": 1}]), read.replay([{"n": 2}])

    assert len({one, two}) == 2
    assert one != two


def test_two_frames_are_never_taken_for_one() -> None:
    one, two = (read.dataframe(Frame(streaming=True)) for _ in range(2))

    assert one != two


def test_descriptions_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        read.text("in").path = "out"  # type: ignore[misc]
