"""Folders and files of a simulated disk, which outlives the processes that write to it.

A rename of a folder is atomic. All else takes its steps: a folder is deleted file by file, and a
file is opened, written and moved by any process that is alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.coordinator.sink_layout import SinkBusyError
from millstream.sim.network import SimNet, World
from millstream.sim.tasks import Process

Rows = list[Any]
_PATIENCE = 30.0
_LOOK_AGAIN = 0.05


class Disk:
    """What is on it: rows of files by path, and folders; ``version`` counts the changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[str, Rows] = {}
        self.version = 0
        self.locked_by: Process | None = None
        self._folders: set[str] = set()

    def exists(self, name: str) -> bool:
        return name in self.files or name in self._folders

    def names(self, name: str) -> list[str]:
        """List a folder."""
        prefix = f"{name}/" if name else ""
        paths = [path for path in (*self.files, *self._folders) if path.startswith(prefix)]
        return sorted({path[len(prefix) :].partition("/")[0] for path in paths})

    def make(self, folder: str) -> None:
        """Create a folder and its parents."""
        while folder:
            self._folders.add(folder)
            folder = folder.rpartition("/")[0]

    def create(self, path: str) -> Rows:
        """Open a new file; what is added to its rows is in it, wherever it is moved."""
        self.make(path.rpartition("/")[0])
        rows: Rows = []
        self.files[path] = rows
        self.version += 1
        return rows

    def rename(self, source: str, target: str) -> bool:
        """Rename a file or a folder; into the target, if that is a folder."""
        if not self.exists(source):
            return False
        if target in self._folders:
            target = f"{target}/{source.rpartition('/')[2]}"
        self.make(target.rpartition("/")[0])
        for path in self.below(source):
            self.files[target + path[len(source) :]] = self.files.pop(path)
        for path in [f for f in self._folders if f == source or f.startswith(f"{source}/")]:
            self._folders.discard(path)
            self._folders.add(target + path[len(source) :])
        self.version += 1
        return True

    def below(self, name: str) -> list[str]:
        """The files of a folder, at any depth; of a file, itself."""
        return [path for path in self.files if path == name or path.startswith(f"{name}/")]

    def remove(self, path: str) -> None:
        """Delete a file."""
        if self.files.pop(path, None) is not None:
            self.version += 1

    def remove_folders(self, name: str) -> None:
        """Delete a folder and those in it, unless a file was created there meanwhile."""
        below = [f for f in self._folders if f == name or f.startswith(f"{name}/")]
        for folder in sorted(below, key=len, reverse=True):
            if not self.names(folder):
                self._folders.discard(folder)


class DiskView:
    """The disk as one process uses it, step by step."""

    def __init__(self, disk: Disk, net: SimNet) -> None:
        self._disk = disk
        self._net = net

    def _step(self, what: str) -> None:
        self._disk.world.step(f"sink {what}", self._net.process)
        self._net.sleep(self._disk.world.delay())

    def exists(self, name: str) -> bool:
        self._step(f"look for {name}")
        return self._disk.exists(name)

    def names(self, name: str) -> list[str]:
        self._step(f"list {name}")
        return self._disk.names(name)

    def rename(self, source: str, target: str) -> bool:
        self._step(f"rename {source}")
        done = self._disk.rename(source, target)
        if done:
            self._disk.world.note(f"{self._net.process.name} renames {source} to {target}")
        return done

    def delete(self, name: str) -> None:
        self._step(f"delete {name}")
        for path in self._disk.below(name):
            self._disk.remove(path)
            self._step(f"delete next to {path}")
        self._disk.remove_folders(name)

    def create(self, path: str) -> Rows:
        self._step(f"open {path}")
        self._disk.world.note(f"{self._net.process.name} opens {path}")
        return self._disk.create(path)

    def write(self, file: Rows, rows: Rows) -> None:
        """Write rows to an open file, some earlier and some later."""
        middle = self._disk.world.random.randint(0, len(rows))
        for part in (rows[:middle], rows[middle:]):
            if part:
                self._step("write")
                file.extend(part)
                self._disk.version += 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The lock of what is published; it is released when its process dies."""
        disk, mine = self._disk, self._net.process
        deadline = disk.world.now + _PATIENCE
        self._step("lock")
        while disk.locked_by is not None and disk.locked_by.alive:
            if disk.world.now > deadline:
                raise SinkBusyError("sim://sink", "epochs")
            self._net.sleep(_LOOK_AGAIN)
        disk.locked_by = mine
        try:
            yield
        finally:
            if disk.locked_by is mine:
                disk.locked_by = None
