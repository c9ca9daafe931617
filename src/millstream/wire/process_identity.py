"""The identity of a process: its number alone is reused, and means nothing elsewhere."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDED = ("Z", "X")  # states of a process that has ended and was not waited for


@dataclass(frozen=True)
class ProcessIdentity:
    """A process: its number and start (ticks since the boot), and where these are valid.

    ``namespace`` is that of process ids: a container has its own.
    """

    pid: int
    start: int
    host: str
    boot: str
    namespace: str

    def is_running(self) -> bool | None:
        """Whether it runs; None for a process of another host or container."""
        boot = _boot()
        if (self.boot, self.namespace) == (boot, _namespace()):
            return _start_of(self.pid) == self.start
        rebooted = self.boot != boot and self.host == socket.gethostname()
        return False if rebooted else None


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    pid = os.getpid()
    start = _start_of(pid)
    if start is None:
        raise ProcessLookupError(f"there is no /proc/{pid}/stat")
    return ProcessIdentity(pid, start, socket.gethostname(), _boot(), _namespace())


def _start_of(pid: int) -> int | None:
    """When a process started; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program comes second, in parentheses, and may contain anything.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in _ENDED else int(fields[18])


def _boot() -> str:
    return _BOOT.read_text().strip()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
