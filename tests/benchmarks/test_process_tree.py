"""What processes use is found by their mark, also when they have been started by others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.process_tree import Watched, busy_seconds, cpu_seconds, marked, memory_bytes

BUSY = "sum(range(10**7)); kept = bytearray(50_000_000); input()"


def test_the_work_and_memory_of_descendants_is_measured() -> None:
    # The one in between ends, and leaves its child behind.
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}])"
    reading, writing = os.pipe()
    with Watched("BENCHMARK_TEST=tree") as watched:
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "BENCHMARK_TEST": "tree"},
            stdin=reading,
            check=True,
        )
        [(pid, _)] = marked(b"BENCHMARK_TEST=tree")
        while memory_bytes(Path("/proc"), pid) < 50_000_000:
            os.sched_yield()
        used = cpu_seconds(Path("/proc"), pid)
    os.close(reading)
    os.close(writing)

    assert watched.usage.cpu >= used > 0
    assert watched.usage.memory >= 50_000_000


def test_a_name_with_brackets_and_spaces_is_no_field(tmp_path: Path) -> None:
    process = tmp_path / "7"
    process.mkdir()
    fields = ["S", *"0" * 10, "300", "200", *"0" * 6, "42"]
    (process / "stat").write_text(f"7 (a) b (c)) {' '.join(fields)}")
    (process / "environ").write_bytes(b"A=1\0MARK=x\0")

    assert cpu_seconds(tmp_path, 7) == 500 / os.sysconf("SC_CLK_TCK")
    assert marked(b"MARK=x", tmp_path) == [(7, 42)]
    assert marked(b"MARK=", tmp_path) == []


def test_idle_time_and_time_that_the_host_took_is_not_busy(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 20 30 9999 8888 4 6 7777 0 0\ncpu0 1\n")

    assert busy_seconds(tmp_path) == 160 / os.sysconf("SC_CLK_TCK")
