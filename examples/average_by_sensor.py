"""Average temperature by sensor: an Arrow map and built-in aggregates, combined map-side."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import millstream as ms

SENSORS, READINGS, FILES = 50, 20_000, 4


def celsius(batch: pa.RecordBatch) -> pa.RecordBatch:
    degrees = pc.divide(pc.multiply(pc.subtract(batch["fahrenheit"], 32.0), 5.0), 9.0)
    return pa.record_batch({"sensor": batch["sensor"], "degrees": degrees})


def readings(number: int) -> pa.Table:
    rows = range(number * READINGS, (number + 1) * READINGS)
    return pa.table(
        {
            "sensor": [f"s{row * 7 % SENSORS:02d}" for row in rows],
            "fahrenheit": [float(50 + row % 36) for row in rows],
        }
    )


def workflow(folder: Path) -> ms.Workflow:
    flow = ms.Workflow("sensors")
    source = ms.read.parquet(folder / "readings", max_files_per_epoch=1)
    flow.source("readings", source).map_reduce(
        "average",
        map=ms.arrow(celsius),
        key="sensor",
        reduce=ms.aggregate(mean=ms.mean("degrees"), n=ms.count()),
    ).sink("out", ms.write.parquet(folder / "averages"))
    return flow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", help="the Spark master (default: local[2])", default="local[2]")
    master = parser.parse_args().master

    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            Path(folder, "readings").mkdir(exist_ok=True)
            pq.write_table(readings(number), Path(folder, "readings", f"{number}.parquet"))

        with ms.start(workflow(Path(folder)), nodes=2, master=master) as run:
            run.await_termination()
            found = dict(run.state("average").items())

    together = pa.concat_tables([readings(number) for number in range(FILES)])
    degrees = celsius(together.combine_chunks().to_batches()[0])
    batch = (
        pa.table(degrees).group_by("sensor").aggregate([("degrees", "mean"), ("degrees", "count")])
    )
    expected = {row["sensor"]: row for row in batch.to_pylist()}
    for sensor in sorted(found)[:3]:
        print(f"{sensor}  {found[sensor]['mean']:.3f}  ({found[sensor]['n']} readings)")
    exact = found.keys() == expected.keys() and all(
        found[s]["n"] == row["degrees_count"] and abs(found[s]["mean"] - row["degrees_mean"]) < 1e-9
        for s, row in expected.items()
    )
    if not exact:
        raise SystemExit("the averages differ from the batch answer")
    print("exact: yes")


if __name__ == "__main__":
    main()
