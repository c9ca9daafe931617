from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.streams import Stream
from millstream.flow.workflow import Workflow
from tests.flow.places import line_of, line_of_call


class Custom:
    pass


def split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def length(line: str) -> int:
    return len(line)


def takes_two(first: Any, second: Any) -> Any:
    return first, second


def takes_three(first: Any, second: Any, third: Any) -> Any:
    return first, second, third


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    yield word, sum(ones)


def thin_out(key: str, values: list[int]) -> list[int]:
    return [sum(values)]


def gives_lists(line: str) -> Iterator[tuple[list[str], int]]:
    yield line.split(), 1


def gives_dicts(line: str) -> Iterator[tuple[dict[str, int], int]]:
    yield {}, 1


def gives_customs(line: str) -> Iterator[tuple[Custom, int]]:
    yield Custom(), 1


def custom_key(line: str) -> Custom:
    return Custom()


def over_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.fixture
def flow() -> Workflow:
    return Workflow("w")


@pytest.fixture
def lines(flow: Workflow) -> Stream:
    return flow.source("lines", ms.read.text("books"))


# -- functions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda lines: lines.map(takes_two),
        lambda lines: lines.flat_map(takes_two),
        lambda lines: lines.filter(takes_two),
        lambda lines: lines.split(takes_two),
        lambda lines: lines.map(ms.arrow(takes_two)),
        lambda lines: lines.map(ms.dataframe(takes_two)),
        lambda lines: lines.key_by(takes_two),
        lambda lines: lines.map_reduce("n", map=takes_two, reduce=count),
        lambda lines: lines.map_reduce("n", map=ms.arrow(takes_two), reduce=count),
        lambda lines: lines.map_reduce("n", key=takes_two, reduce=count),
        lambda lines: lines.map_reduce("n", reduce=takes_two),
        lambda lines: lines.key_by("a").reduce("n", takes_two),
        lambda lines: lines.map_reduce(
            "n", reduce=ms.combinable(zero=takes_two, add=takes_two, merge=takes_two)
        ),
    ],
)
def test_the_wrong_number_of_arguments_is_refused_with_the_functions_line(
    lines: Stream, use: Callable[[Stream], object]
) -> None:
    with pytest.raises(WorkflowError, match="positional argument") as caught:
        use(lines)

    assert caught.value.place == line_of(takes_two)


def test_an_arrow_reducer_with_three_arguments_is_refused_with_its_line(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match=r"\(rows, state\)") as caught:
        lines.map_reduce("n", reduce=ms.arrow(takes_three))

    assert caught.value.place == line_of(takes_three)


def test_a_combine_takes_key_and_values(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match=r"combine of job 'n'.*\(key, values\)") as caught:
        lines.map_reduce("n", map=split, combine=takes_three, reduce=count)

    assert caught.value.place == line_of(takes_three)


@pytest.mark.parametrize(
    "use",
    [
        lambda lines, function: lines.map(function),
        lambda lines, function: lines.flat_map(function),
        lambda lines, function: lines.filter(function),
        lambda lines, function: lines.split(function),
        lambda lines, function: lines.map(ms.arrow(function)),
        lambda lines, function: lines.key_by(function),
        lambda lines, function: lines.map_reduce("n", map=function, reduce=count),
        lambda lines, function: lines.map_reduce("n", map=ms.arrow(function), reduce=count),
        lambda lines, function: lines.map_reduce("n", map=split, combine=function, reduce=count),
        lambda lines, function: lines.map_reduce("n", key=function, reduce=count),
        lambda lines, function: lines.map_reduce("n", reduce=function),
        lambda lines, function: lines.map_reduce("n", reduce=ms.arrow(function)),
        lambda lines, function: lines.key_by("a").reduce("n", function),
    ],
)
def test_a_function_that_cannot_be_pickled_is_refused_with_its_line(
    lines: Stream, use: Callable[..., object], tmp_path: Path
) -> None:
    lock = threading.Lock()

    def locked(*arguments: Any) -> Any:
        with lock:
            return arguments

    with open(tmp_path / "log", "w") as log:

        def logged(*arguments: Any) -> Any:
            log.write(str(arguments))
            return arguments

        for function in (locked, logged):
            with pytest.raises(WorkflowError, match=r"pickled.*; create what it holds") as caught:
                use(lines, function)

            assert caught.value.place == line_of(function)


@pytest.mark.parametrize(
    "use",
    [
        lambda lines, given: lines.map(given),
        lambda lines, given: lines.flat_map(given),
        lambda lines, given: lines.filter(given),
        lambda lines, given: lines.map_reduce("n", map=given, reduce=count),
        lambda lines, given: lines.map_reduce("n", map=split, combine=given, reduce=count),
    ],
)
@pytest.mark.parametrize("given", ["split", 7, ["a"]])
def test_what_cannot_be_called_is_refused_with_the_line_of_the_call(
    lines: Stream, use: Callable[..., object], given: object
) -> None:
    with pytest.raises(WorkflowError, match="cannot be called; pass a function") as caught:
        use(lines, given)

    assert caught.value.place == line_of(use)


def test_filter_refuses_an_arrow_function(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match=r"filter got an Arrow function; .*\.map") as caught:
        lines.filter(ms.arrow(over_batch))

    assert caught.value.place == line_of_call(caught)


def test_filter_refuses_sql_that_selects(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match=r"value > 1; give .* ms\.sql\(where=") as caught:
        lines.filter(ms.sql("value > 1"))

    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("step", [ms.sql("value"), ms.dataframe(length)])
def test_an_output_cannot_be_declared_for_a_step_of_spark(lines: Stream, step: Any) -> None:
    with pytest.raises(WorkflowError, match="leave output= out") as caught:
        lines.map(step, output={"value": str})

    assert caught.value.place == line_of_call(caught)


# -- keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", (), ("a", 7), ["a", "b"], 7, ms.sql("a"), ms.arrow(length)])
def test_a_bad_key_is_refused(lines: Stream, key: Any) -> None:
    with pytest.raises(WorkflowError, match=r"key got .*; give a column name") as caught:
        lines.key_by(key)
    assert caught.value.place == line_of_call(caught)

    with pytest.raises(WorkflowError, match=r"key got .*; give a column name") as caught:
        lines.map_reduce("n", key=key, reduce=count)
    assert caught.value.place == line_of_call(caught)


def test_a_key_column_beside_a_map_of_records_is_refused(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match="key='word' beside a map of records") as caught:
        lines.map_reduce("n", map=split, key="word", reduce=count)

    assert "yield (key, value) pairs" in caught.value.fix
    assert caught.value.place == line_of_call(caught)


def test_a_key_function_beside_an_arrow_map_is_refused(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match="key function beside an Arrow map; name") as caught:
        lines.map_reduce("n", map=ms.arrow(over_batch), key=length, reduce=count)

    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("time", ["", 7, timedelta(1)])
def test_a_time_is_the_name_of_a_column(lines: Stream, time: Any) -> None:
    with pytest.raises(WorkflowError, match=r"time=.*; give the name of a column") as caught:
        lines.map_reduce("n", key="word", time=time, reduce=count)

    assert caught.value.place == line_of_call(caught)


def test_a_time_column_beside_a_function_of_records_is_refused(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match=r"yield \(key, value, timestamp\)") as caught:
        lines.map_reduce("n", map=split, time="at", reduce=count)
    assert caught.value.place == line_of_call(caught)

    with pytest.raises(WorkflowError, match=r"yield \(key, value, timestamp\)") as caught:
        lines.key_by(length).window(ms.tumbling(timedelta(hours=1)), time="at").reduce(
            "n", ms.count()
        )
    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize(
    ("map", "kind"),
    [(gives_lists, r"list\[str\]"), (gives_dicts, r"dict\[str, int\]"), (gives_customs, "Custom")],
)
def test_a_map_annotated_with_a_key_that_is_not_allowed_is_refused_with_its_line(
    lines: Stream, map: Callable[[Any], Any], kind: str
) -> None:
    with pytest.raises(WorkflowError, match=f"keys of type {kind}, which is not") as caught:
        lines.map_reduce("n", map=map, reduce=count)

    assert f"the map {map.__name__} of job 'n'" in caught.value.what
    assert caught.value.fix.startswith("use one of str, bytes, int")
    assert caught.value.place == line_of(map)


def test_a_key_function_annotated_with_what_is_no_key_is_refused_with_its_line(
    lines: Stream,
) -> None:
    with pytest.raises(WorkflowError, match=r"key function custom_key .* Custom") as caught:
        lines.key_by(custom_key).reduce("n", count)

    assert caught.value.place == line_of(custom_key)


@pytest.mark.parametrize("kind", [list, dict[str, int], Custom, pa.list_(pa.int64()), "str", 7])
def test_a_declared_key_type_that_is_not_allowed_is_refused(lines: Stream, kind: object) -> None:
    with pytest.raises(WorkflowError, match=r"key_type= of job 'n'.*; use one of str") as caught:
        lines.key_by("word", type=kind).reduce("n", count)
    assert caught.value.place == line_of_call(caught)


# -- the rest of a job ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "reducer",
    [
        ms.count(),
        ms.aggregate(n=ms.count()),
        ms.combinable(zero=lambda: 0, add=takes_two, merge=takes_two),
        ms.arrow(takes_two),
    ],
)
def test_combine_beside_a_reducer_that_does_not_use_it_is_refused(
    lines: Stream, reducer: object
) -> None:
    with pytest.raises(WorkflowError, match=r"'n' has combine=.*; leave combine= out") as caught:
        lines.map_reduce("n", map=split, combine=thin_out, reduce=reducer)

    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("ttl", [0, 60, "1 hour", timedelta(0), timedelta(seconds=-1)])
def test_a_ttl_is_a_positive_timedelta(lines: Stream, ttl: Any) -> None:
    with pytest.raises(WorkflowError, match=r"ttl=.*; give a positive datetime") as caught:
        lines.map_reduce("n", map=split, reduce=count, ttl=ttl)
    assert caught.value.place == line_of_call(caught)

    with pytest.raises(WorkflowError, match=r"ttl=.*; give a positive datetime") as caught:
        lines.key_by("word").reduce("n", count, ttl=ttl)
    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("output", [{}, "word string", {"word": Custom}, {"word": ["str"]}])
def test_a_bad_output_is_refused_with_the_line_of_the_call(lines: Stream, output: Any) -> None:
    with pytest.raises(WorkflowError, match="output=") as caught:
        lines.map_reduce("n", map=split, reduce=count, output=output)
    assert caught.value.place == line_of_call(caught)

    with pytest.raises(WorkflowError, match="output=") as caught:
        lines.map(length, output=output)
    assert caught.value.place == line_of_call(caught)


def test_a_reducer_that_is_none_is_refused_with_the_line_of_the_call(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match="not a reducer; pass a function") as caught:
        lines.key_by("word").reduce("n", "count")

    assert caught.value.place == line_of_call(caught)


def test_a_helper_of_the_user_is_where_the_error_is() -> None:
    def count_words(stream: Stream) -> Stream:
        return stream.map_reduce("n", map=split, reduce=count, ttl=0)  # type: ignore[arg-type]

    with pytest.raises(WorkflowError) as caught:
        count_words(Workflow("w").source("lines", ms.read.rate()))

    assert caught.value.place is not None
    assert caught.value.place.file == __file__
    assert caught.value.place.line == line_of(count_words).line + 1


@pytest.mark.parametrize("option", ["durable", "share"])
def test_switches_are_true_or_false(lines: Stream, option: str) -> None:
    options: dict[str, Any] = {option: "yes"}
    with pytest.raises(WorkflowError, match=f"job 'n' has {option}='yes'.*; give True") as caught:
        lines.key_by("word").window(ms.tumbling(timedelta(hours=1))).reduce(
            "n", ms.count(), **options
        )

    assert caught.value.place == line_of_call(caught)
