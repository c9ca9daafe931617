"""Links as they are stored: there and back, and what is no link of ours."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.checkpoints.manifest import (
    FORMAT,
    BadManifestError,
    BaseRecord,
    Claim,
    DeltaRecord,
    JobMetadata,
    Link,
    Manifest,
    Staged,
    WorkflowMetadata,
    as_json,
    decode,
    encode,
)

OUTPUT = pa.schema([pa.field("word", pa.string()), pa.field("n", pa.int64())], {"a": "b"})
KEY = pa.struct([("_1", pa.string()), ("_2", pa.timestamp("us", "UTC"))])
CLAIM = Claim(3, 2, 7, 1_700_000_000_000_000, "höst", 99, "token")
MANIFEST = Manifest(
    position=4,
    incarnation=2,
    epoch=9,
    try_=1,
    parent=7,
    time=1_700_000_000_000_001,
    workflow=WorkflowMetadata(
        "flow",
        16,
        (
            JobMetadata("count", "stateful", "a function", "count@1", True, KEY, OUTPUT),
            JobMetadata("sum", "aggregate", "sum(n)", "sum@2", durable=False),
            JobMetadata(
                "mean", "windowed", "mean(n)", "mean@2", windows="tumbling 1m", fused=("most",)
            ),
        ),
        ("lines (file)", "more (rate)"),
        "renamed",
    ),
    deltas=(DeltaRecord("data/9/2/x", "count@1", range(0, 5), 7, 9, 123),),
    bases=(BaseRecord("data/7/2/base", range(5, 16), 6, 7, 4567),),
    staged=(Staged(8, "2.0", ("out",)), Staged(9, "2.1")),
    published=7,
    token="other",
    clocks={"time": 5, "jobs": {"count@1": {"watermark": -(2**62), "rate": 0.1}}},
)
NOTHING = Manifest(0, 1, 0, 0, -1, 0, WorkflowMetadata("flow", 1, ()), (), (), (), -1)


@pytest.mark.parametrize("link", [CLAIM, MANIFEST, NOTHING])
def test_a_link_is_decoded_as_it_was_encoded(link: Link) -> None:
    found = decode(encode(link), "chain/4")

    assert found == link and type(found) is type(link)


def test_types_are_decoded_with_their_metadata() -> None:
    found = decode(encode(MANIFEST), "chain/4")

    assert isinstance(found, Manifest)
    first, second, _ = found.workflow.jobs
    assert first.key_type == KEY and first.output is not None
    assert first.output.equals(OUTPUT, check_metadata=True)
    assert second.key_type is None and second.output is None
    assert found.workflow.job("sum") == second and found.workflow.job("none") is None


@given(
    slots=st.integers(1, 9),
    numbers=st.tuples(*[st.integers(-1, 2**62)] * 4),
    text=st.text(max_size=20),
)
def test_any_names_and_numbers_are_decoded(
    slots: int, numbers: tuple[int, int, int, int], text: str
) -> None:
    epoch, try_, time, size = numbers
    workflow = WorkflowMetadata(text, slots, (JobMetadata(text, "arrow", text, text),), (text,))
    link = Manifest(
        position=1,
        incarnation=1,
        epoch=epoch,
        try_=try_,
        parent=-1,
        time=time,
        workflow=workflow,
        deltas=(DeltaRecord(text, text, range(0, slots), -1, epoch, size),),
        bases=(),
        staged=(Staged(epoch, text, (text,)),),
        published=-1,
    )

    assert decode(encode(link), "chain/1") == link


def test_an_unknown_format_is_an_error_with_advice() -> None:
    newer = {**json.loads(encode(CLAIM)), "format": FORMAT + 1}

    with pytest.raises(
        BadManifestError, match=rf"chain/3 has format {FORMAT + 1}.* reads {FORMAT}"
    ):
        decode(json.dumps(newer).encode(), "chain/3")


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"7", b"{}", b"\xff\xfe", b'"text"'])
def test_other_json_is_an_error_that_names_the_key(data: bytes) -> None:
    with pytest.raises(BadManifestError, match="chain/3 is not a link"):
        decode(data, "chain/3")


def test_a_kind_that_is_neither_is_rejected() -> None:
    other = {**json.loads(encode(CLAIM)), "kind": "compaction"}

    with pytest.raises(BadManifestError):
        decode(json.dumps(other).encode(), "chain/3")


@pytest.mark.parametrize("link", [CLAIM, MANIFEST])
def test_every_field_is_needed(link: Link) -> None:
    whole: dict[str, Any] = json.loads(encode(link))
    for name in whole.keys() - {"clocks", "layout"}:  # earlier versions had no layout
        less = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(BadManifestError):
            decode(json.dumps(less).encode(), "chain/3")


@given(st.data())
def test_damage_is_detected_or_harmless_but_never_another_error(data: st.DataObject) -> None:
    whole = bytearray(encode(MANIFEST))
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start, min(len(whole), start + 8)))
    whole[start:stop] = data.draw(st.binary(max_size=8))
    try:
        found = decode(bytes(whole), "chain/4")
    except BadManifestError as problem:
        assert "chain/4" in str(problem)
    else:
        assert isinstance(found, Manifest)


@given(st.data())
def test_damaged_types_are_detected_or_harmless(data: st.DataObject) -> None:
    whole: dict[str, Any] = json.loads(encode(MANIFEST))
    job = whole["workflow"]["jobs"][0]
    schema = bytearray(base64.b64decode(job["output"]))
    at = data.draw(st.integers(0, len(schema) - 1))
    schema[at:] = data.draw(st.binary(max_size=2)) + schema[at + 2 :]
    job["output"] = base64.b64encode(schema).decode()
    try:
        decode(json.dumps(whole).encode(), "chain/4")
    except BadManifestError as problem:
        assert "chain/4 is not a link" in str(problem)


def test_tools_see_types_as_text() -> None:
    shown = as_json(MANIFEST)

    assert shown["kind"] == "manifest" and shown["try"] == 1
    assert shown["workflow"]["jobs"][0]["output"] == {"word": "string", "n": "int64"}
    assert shown["workflow"]["jobs"][0]["key_type"] == str(KEY)
    assert shown["workflow"]["jobs"][1]["key_type"] is None
    assert shown["deltas"][0]["slots"] == [0, 5]
    assert as_json(CLAIM)["host"] == "höst"


def test_manifests_are_hashable() -> None:
    assert len({MANIFEST, replace(MANIFEST, clocks={}), NOTHING, NOTHING}) == 3
