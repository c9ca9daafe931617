"""CPU time and memory of processes, from ``/proc``: of all that one process has started.

Descendants are found by a mark in the environment that they inherit, because some outlive the
process that started them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.25
_KEPT = ("RssAnon", "RssShmem")
Pid = tuple[int, int]
"""A process id and when the process started: ids are reused."""


@dataclass(frozen=True)
class Usage:
    """CPU time in seconds, and the most memory at one time in bytes.

    ``others`` is the CPU time of all other processes meanwhile. Memory is what the processes do
    not share with files.
    """

    cpu: float
    memory: int
    others: float


class Watched:
    """Measures the processes with a mark while it is entered."""

    def __init__(self, mark: str, proc: Path = Path("/proc")) -> None:
        self._mark = mark.encode()
        self._proc = proc
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._began: Mapping[Pid, float] = {}
        self._cpu: dict[Pid, float] = {}
        self._most = 0
        self._busy = 0.0

    def __enter__(self) -> Watched:
        self._sample()
        self._began = dict(self._cpu)
        self._busy = busy_seconds(self._proc)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._sample()
        self._busy = busy_seconds(self._proc) - self._busy

    @property
    def usage(self) -> Usage:
        """What was used, after the exit."""
        cpu = sum(used - self._began.get(pid, 0.0) for pid, used in self._cpu.items())
        return Usage(cpu, self._most, max(0.0, self._busy - cpu))

    def _watch(self) -> None:
        while not self._stopped.wait(_EVERY):
            self._sample()

    def _sample(self) -> None:
        memory = 0
        for pid in marked(self._mark, self._proc):
            try:
                self._cpu[pid] = cpu_seconds(self._proc, pid[0])
                memory += memory_bytes(self._proc, pid[0])
            except (OSError, IndexError):
                continue  # it has ended
        self._most = max(self._most, memory)


def marked(mark: bytes, proc: Path = Path("/proc")) -> list[Pid]:
    """The processes whose environment has the mark."""
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((int(entry.name), int(_stat(proc, int(entry.name))[19])))
            except (OSError, IndexError):
                continue
    return found


def cpu_seconds(proc: Path, pid: int) -> float:
    """The CPU time of a process, without that of its children."""
    fields = _stat(proc, pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(proc: Path, pid: int) -> int:
    """The memory of a process that is not backed by files."""
    lines = (proc / str(pid) / "status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(1024 * int(sizes[name].split()[0]) for name in _KEPT if name in sizes)


def busy_seconds(proc: Path = Path("/proc")) -> float:
    """The CPU time of all processes, since the machine started; not what the host took away."""
    fields = (proc / "stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / _TICKS


def _stat(proc: Path, pid: int) -> list[str]:
    """The fields of ``stat`` from the state on: the name before it may contain anything."""
    return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
