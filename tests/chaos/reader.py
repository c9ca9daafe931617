"""A reader that polls sinks and remembers everything that was ever visible."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow.parquet as pq

from tests.chaos.workload import Rows

_EVERY = 0.02
_Seen = tuple[tuple[str, int, int], ...]


class Reader:
    """Looks at sinks from a thread of its own, until it is left."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self.rows: dict[str, Rows] = {folder.name: {} for folder in folders}
        self.problems: list[str] = []
        self.looks = 0

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._end.wait(_EVERY):
            try:
                self.look()
            except Exception as problem:
                self.problems.append(f"reader: {problem!r}")
                return

    def look(self) -> None:
        """Compare what is visible with all that was."""
        self.looks += 1
        for folder in self._folders:
            visible = {path.name: path for path in folder.glob("epoch=*")}
            for sink, name in self._seen:
                if sink == folder.name and name not in visible:
                    self._report(f"{sink} {name} was withdrawn")
            for name, path in visible.items():
                self._compare(folder.name, name, path)

    def _compare(self, sink: str, name: str, path: Path) -> None:
        try:
            files = sorted(path.glob("*.parquet"))
            seen = tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files)
            if self._seen.get((sink, name)) == seen:
                return
            rows = sorted(row for file in files for row in _rows(file))
        except FileNotFoundError:
            self._report(f"{sink} {name} was withdrawn while it was read")
            return
        known = self.rows[sink].setdefault(int(name.partition("=")[2]), rows)
        if known != rows:
            self._report(f"{sink} {name} changed from {known} to {rows}")
        self._seen[sink, name] = seen

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _rows(file: Path) -> list[tuple[Any, ...]]:
    # Not by its path: a name with "=" would give a column.
    with file.open("rb") as data:
        return [tuple(row.values()) for row in pq.read_table(data).to_pylist()]
