"""Spark's write job in the simulator: one file a task, whatever becomes of its attempts."""

from __future__ import annotations

import pytest

from millstream.coordinator.sink_folders import STAGED
from millstream.sim.disk import Disk, DiskView
from millstream.sim.network import SimNet, World
from millstream.sim.sink_models import FileSink, visible
from millstream.sim.workload import Outputs
from millstream.sim.write_job import TaskPool

OUTPUTS: Outputs = {1: [("a", 1), ("b", 2), ("c", 3), ("d", 4)], 2: [("x", 5)]}


def pool_of(world: World, driver: SimNet, **spark_faults: float) -> TaskPool:
    return TaskPool(world, driver, lambda: ["executor-0"], **spark_faults)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_published_has_every_row_once(seed: int) -> None:
    with World(seed) as world:
        disk, driver = Disk(world), world.process("driver")
        sink = FileSink(disk, driver)

        def work() -> None:
            pool = pool_of(world, driver, kill=0.3, speculate=0.5, late=0.5)
            assert sink.stage(0, "1.0", OUTPUTS, pool)
            assert visible(disk) == {}
            sink.publish(0, "1.0")
            assert visible(disk) == {0: OUTPUTS}
            driver.sleep(100.0)
            assert visible(disk) == {0: OUTPUTS}

        world.run(work, "driver", 1000.0)


def test_an_epoch_without_rows_leaves_nothing() -> None:
    with World(1) as world:
        disk, driver = Disk(world), world.process("driver")
        sink = FileSink(disk, driver)

        def work() -> None:
            assert not sink.stage(0, "1.0", {1: [], 2: []}, pool_of(world, driver))

        world.run(work, "driver", 1000.0)
        assert disk.files == {} and disk.names(STAGED) == []


def test_some_attempts_open_their_files_after_the_publication() -> None:
    late = 0
    for seed in range(10):
        with World(seed) as world:
            disk, driver = Disk(world), world.process("driver")
            sink = FileSink(disk, driver)

            def work(sink: FileSink = sink, world: World = world, driver: SimNet = driver) -> None:
                sink.stage(0, "1.0", OUTPUTS, pool_of(world, driver, speculate=0.7, late=0.7))
                sink.publish(0, "1.0")
                opened = world.story(10_000).count("opens")
                driver.sleep(100.0)
                nonlocal late
                late += world.story(10_000).count("opens") > opened

            world.run(work, "driver", 1000.0)
    assert late > 1


def test_a_rename_to_an_existing_folder_moves_into_it() -> None:
    with World(1) as world:
        disk, driver = Disk(world), world.process("driver")
        view = DiskView(disk, driver)

        def work() -> None:
            view.write(view.create("one/part-0"), [1])
            view.write(view.create("two/part-0"), [2])
            assert view.rename("one", "two") and not view.rename("one", "two")
            assert disk.files == {"two/part-0": [2], "two/one/part-0": [1]}
            view.delete("two/one")
            assert disk.files == {"two/part-0": [2]} and not view.exists("two/one")

        world.run(work, "driver", 1000.0)
