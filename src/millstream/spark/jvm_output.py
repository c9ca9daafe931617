"""What the JVM prints on its standard error while it starts: held back, unless it fails.

Spark, log4j and the JVM itself greet with warnings that nobody can act on, before a session exists
whose log could be set. From then on all is passed on, such as what users' functions print, but for
the stack traces of Python workers whose task was cancelled: they find that nobody reads any more.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway


@contextmanager
def quiet_start(conf: SparkConf) -> Iterator[None]:
    """Launch the JVM, unless there is one; what it prints before the end of the block is dropped.

    If the block fails, it is printed.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    output = _Output()
    try:
        gateway = launch_gateway(conf, {"stderr": output.write_end})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        yield
    except BaseException:
        output.pass_on(held=True)
        raise
    else:
        output.pass_on(held=False)
    finally:
        os.close(output.write_end)  # the JVM has its own


class _Output:
    """Reads the JVM's output as long as it lives."""

    def __init__(self) -> None:
        read_end, self.write_end = os.pipe()
        self._held: list[bytes] | None = []
        self._lock = threading.Lock()
        threading.Thread(
            target=self._pump, args=(read_end,), name="millstream-jvm-output", daemon=True
        ).start()

    def pass_on(self, *, held: bool) -> None:
        """Print what comes from now on, and, if wanted, what was held back."""
        with self._lock:
            before, self._held = self._held or [], None
            if held:
                for part in before:
                    _print(part)

    def _pump(self, read_end: int) -> None:
        lines = without_broken_pipes(os.fdopen(read_end, "rb"))
        for line in lines:
            with self._lock:
                if self._held is None:
                    _print(line)
                else:
                    self._held.append(line)


def without_broken_pipes(lines: Iterable[bytes]) -> Iterator[bytes]:
    """All lines but the stack traces of workers of PySpark that could not write any more."""
    trace: list[bytes] = []
    for line in lines:
        if line.startswith(b"Traceback (most recent call last)"):
            yield from trace
            trace = [line]
        elif trace and line.startswith(b"  "):
            trace.append(line)
        else:
            frames = [each for each in trace if each.startswith(b"  File ")]
            is_daemon = bool(frames) and all(b"pyspark/daemon.py" in each for each in frames)
            if not (is_daemon and line.startswith(b"BrokenPipeError")):
                yield from trace
                yield line
            trace = []
    yield from trace


def _print(part: bytes) -> None:
    sys.stderr.write(part.decode(errors="replace"))
    sys.stderr.flush()
