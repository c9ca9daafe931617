from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.node.output_spool import OutputSpool
from millstream.sim import World
from millstream.state.records import decode_records
from millstream.wire.commit import Seal
from millstream.work.feeder import end_of
from tests.node.machines import ME, placed
from tests.node.scenes import Scene, rows_of


def batch(text: str, rows: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"key": [f"{text}{row}" for row in range(rows)], "n": range(rows)})


def on_disk(batches: list[pa.RecordBatch]) -> bool:
    """Whether rows are read from a file: then Arrow has not allocated them."""
    address = batches[0].column(0).buffers()[2].address
    maps = Path("/proc/self/maps").read_text().splitlines()
    lines = [line for line in maps if _within(address, line)]
    return any("millstream-outputs" in line for line in lines)


def _within(address: int, line: str) -> bool:
    start, stop = line.split()[0].split("-")
    return int(start, 16) <= address < int(stop, 16)


def size(*batches: pa.RecordBatch) -> int:
    return sum(batch.nbytes for batch in batches)


@pytest.fixture
def spool(tmp_path: Path) -> OutputSpool:
    return OutputSpool(lambda: str(tmp_path), limit=2 * size(batch("a")))


def test_outputs_stay_in_memory_up_to_the_bound(spool: OutputSpool) -> None:
    first, second = [batch("a")], [batch("b")]
    before = first[0]

    spool.bound(first)
    spool.bound(second)

    assert first[0] is before and not on_disk(first) and not on_disk(second)
    assert spool.held == size(*first, *second)


def test_beyond_the_bound_outputs_are_on_disk_and_the_same(spool: OutputSpool) -> None:
    spool.bound(held := [batch("a"), batch("b")])
    outputs = [batch("c"), batch("d").slice(10, 20), batch("e").slice(0, 0)]
    wanted = [one.to_pylist() for one in outputs]

    spool.bound(outputs)

    assert on_disk(outputs) and not on_disk(held)
    assert [one.to_pylist() for one in outputs] == wanted
    assert outputs[0].schema == batch("c").schema
    assert spool.held == size(*held)


def test_freed_outputs_make_room(spool: OutputSpool) -> None:
    spool.bound(released := [batch("a"), batch("b")])
    released.clear()
    gc.collect()

    assert spool.held == 0
    spool.bound(outputs := [batch("c")])
    assert not on_disk(outputs)


def test_no_file_stays_behind(spool: OutputSpool, tmp_path: Path) -> None:
    spool.bound(outputs := [batch("a", 1000)])

    assert on_disk(outputs) and list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_leaves_outputs_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = OutputSpool(lambda: str(tmp_path / "missing"), limit=10)

    spool.bound(outputs := [batch("a")])

    assert outputs[0].to_pylist() == batch("a").to_pylist()
    assert "could not spill" in caplog.text and spool.held == size(*outputs)


# -- in a node ---------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


def feed(scene: Scene, pairs: list[Any], **options: Any) -> list[Any]:
    """What a feed gives; not through the simulated network, which remembers every answer."""
    rows = rows_of(pairs)
    records: list[Any] = []

    def main() -> None:
        items = iter([*rows.to_batches(), end_of(rows)])
        outputs = scene.services[ME].exchange(scene.header(0, **options), items)
        assert outputs and on_disk(outputs)
        records.extend(record for batch in outputs for record in decode_records(batch))

    scene.run(main, process=ME)
    return sorted(records)


def mapped() -> bool:
    gc.collect()
    return "millstream-outputs" in Path("/proc/self/maps").read_text()


def test_a_node_spills_outputs_gives_them_again_and_lets_go_of_them_at_the_seal(
    world: World, tmp_path: Path
) -> None:
    scene = Scene(world, placed([ME]), spool=OutputSpool(lambda: str(tmp_path), limit=0))
    pairs = [(f"key{n}", n) for n in range(50)]

    first = feed(scene, pairs)
    again = feed(scene, pairs, attempt=1)

    assert first == again and len(first) == 50 and mapped()
    scene.call(ME, Seal(scene.commit_of(0)))
    assert not mapped()


def test_a_try_that_is_void_lets_go_of_its_outputs(world: World, tmp_path: Path) -> None:
    scene = Scene(world, placed([ME]), spool=OutputSpool(lambda: str(tmp_path), limit=0))
    feed(scene, [("a", 1)])
    assert mapped()

    scene.feed(0, [], try_=1)

    assert not mapped()
