"""The registry of running workflows: how a user's commands find them, and authenticate.

A run has a file in ``millstream/runs`` of the user's state folder, with the address of its HTTP API
and tokens for it. Whoever can read the file can change the run, and whoever can write one can send
commands elsewhere. So folder and files belong to the user alone; anything else is rejected. The
folder is opened once for each operation, and its files are opened through it: what was checked
cannot be replaced afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError
from millstream.wire.process_identity import ProcessIdentity, this_process

log = logging.getLogger("millstream")

FOLDERS = ("millstream", "runs")
_SUFFIX = ".json"
_PART = ".part-"
_ABANDONED = 3600.0  # seconds, of a part file whose writer has crashed
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe in the place of a file would block without O_NONBLOCK.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 1 << 20
_numbers = itertools.count(1)


class RegistryUnusableError(MillstreamError):
    """The folder of the registry cannot be used."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return (
            f"{self.folder} cannot list running workflows: {self.reason}; it must be a folder of "
            "yours that nobody else can write (or set XDG_STATE_HOME to another folder)"
        )


@dataclass(frozen=True)
class ApiAccess:
    """The HTTP API of a run: its address, and tokens for it that are valid until they expire."""

    url: str
    viewer: str = field(repr=False)
    operator: str = field(repr=False)
    expires: float


@dataclass(frozen=True)
class RegisteredRun:
    """A run, its driver process, and how to reach it; ``started`` is in seconds since 1970.

    A driver process counts its runs: ``number`` is 1 for the first.
    """

    workflow: str
    process: ProcessIdentity
    number: int
    started: float
    api: ApiAccess | None = None


class RunRegistry:
    """The runs in a state folder."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> RunRegistry:
        """The registry of the calling user."""
        home = environment.get("XDG_STATE_HOME", "")
        # A relative path is invalid, and ignored, by the XDG specification.
        path = Path(home) if os.path.isabs(home) else Path("~/.local/state")
        try:
            return cls(path.expanduser())
        except RuntimeError as problem:
            raise RegistryUnusableError(str(path), str(problem)) from None

    def add(self, run: RegisteredRun) -> str:
        """Add a run; return the name of its entry, which no other run ever has."""
        name = f"{run.process.pid}-{uuid.uuid4().hex}{_SUFFIX}"
        self.put(name, run)
        return name

    def put(self, name: str, run: RegisteredRun) -> None:
        """Write an entry, or replace it."""
        part = f"{_PART}{name}"
        with self._folder(create=True) as folder:
            file = os.open(part, _CREATE_FILE, 0o600, dir_fd=folder)
            try:
                with os.fdopen(file, "w") as writer:
                    json.dump(_as_json(run), writer)
                    writer.flush()
                    os.fsync(file)  # after a power cut, an entry must not be empty
                os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _remove(part, folder)
                raise

    def remove(self, name: str) -> None:
        """Remove an entry, if it is still there."""
        with contextlib.suppress(FileNotFoundError), self._folder() as folder:
            _remove(name, folder)

    def runs(self) -> list[RegisteredRun]:
        """The registered runs, oldest first; entries of drivers that have ended are removed."""
        try:
            with self._folder() as folder:
                found = [self._living(name, folder) for name in os.listdir(folder)]
        except FileNotFoundError:
            return []
        living = (run for run in found if run is not None)
        return sorted(living, key=lambda run: (run.started, run.process.pid, run.number))

    def _living(self, name: str, folder: int) -> RegisteredRun | None:
        if name.startswith(_PART):
            _remove_abandoned(name, folder)
        if name.startswith(_PART) or not name.endswith(_SUFFIX):
            return None
        try:
            run = _parsed(_content(name, folder))
        except FileNotFoundError:  # it has ended meanwhile
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            log.warning("%s is ignored: %s", self._home.joinpath(*FOLDERS, name), problem)
            return None
        if run.process.is_running() is False:
            _remove(name, folder)
            return None
        return run

    @contextlib.contextmanager
    def _folder(self, *, create: bool = False) -> Iterator[int]:
        """Open the folder, if it belongs to the user alone.

        Raises ``FileNotFoundError`` if there is none, and ``RegistryUnusableError`` for any other
        error of the operating system.
        """
        path = self._home
        with contextlib.ExitStack() as opened:
            try:
                if create:
                    os.makedirs(path, 0o700, exist_ok=True)
                folder = os.open(path, _OPEN_FOLDER)
                opened.callback(os.close, folder)
                for name in FOLDERS:
                    path = path / name
                    if create:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o700, dir_fd=folder)
                    folder = os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                    opened.callback(os.close, folder)
                    _check_folder(folder, path)
                if create:
                    os.fchmod(folder, 0o700)
                yield folder
            except FileNotFoundError:
                raise
            except OSError as problem:
                linked = problem.errno in (errno.ELOOP, errno.ENOTDIR)
                reason = "it is a symbolic link, or no folder" if linked else str(problem)
                raise RegistryUnusableError(str(path), reason) from problem


class Registration:
    """A run of this process in the registry.

    A run does not depend on it: what goes wrong is only logged.
    """

    def __init__(
        self,
        workflow: str,
        api: ApiAccess | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._run = RegisteredRun(workflow, this_process(), next(_numbers), time.time(), api)
        self._registry: RunRegistry | None = None
        try:
            registry = RunRegistry.of_user(environment)
            self._name = registry.add(self._run)
            self._registry = registry
        except (OSError, RegistryUnusableError) as problem:
            log.warning("the command millstream cannot find this run: %s", problem)

    def renew(self, api: ApiAccess) -> None:
        """Replace the tokens."""
        try:
            if self._registry is not None:
                self._registry.put(self._name, replace(self._run, api=api))
        except (OSError, RegistryUnusableError) as problem:
            log.warning("the command millstream cannot find this run soon: %s", problem)

    def remove(self) -> None:
        """Remove the entry; idempotent."""
        try:
            if self._registry is not None:
                self._registry.remove(self._name)
            self._registry = None
        except RegistryUnusableError as problem:
            log.warning("the entry of this run was not removed: %s", problem)


def _check_folder(folder: int, path: Path) -> None:
    status = os.fstat(folder)
    if status.st_uid != os.geteuid():
        raise RegistryUnusableError(str(path), f"it belongs to another user ({status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RegistryUnusableError(str(path), "others can write it")


def _content(name: str, folder: int) -> bytes:
    """The content of a file that belongs to the user alone."""
    with os.fdopen(os.open(name, _OPEN_FILE, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError("it is not a file of this user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ValueError("others can read or write it")
        return file.read(_LARGEST)


def _remove(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _remove_abandoned(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        written = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        if time.time() - written > _ABANDONED:
            _remove(name, folder)


# -- the format of an entry ------------------------------------------------------------------


def _as_json(run: RegisteredRun) -> dict[str, Any]:
    return {
        "workflow": run.workflow,
        "pid": run.process.pid,
        "process_start": run.process.start,
        "host": run.process.host,
        "boot": run.process.boot,
        "namespace": run.process.namespace,
        "number": run.number,
        "started": run.started,
        "api": None if run.api is None else asdict(run.api),
    }


def _parsed(content: bytes) -> RegisteredRun:
    entry = json.loads(content)
    process = ProcessIdentity(
        int(entry["pid"]),
        int(entry["process_start"]),
        str(entry["host"]),
        str(entry["boot"]),
        str(entry["namespace"]),
    )
    api = entry["api"]
    access = None
    if api is not None:
        access = ApiAccess(
            str(api["url"]), str(api["viewer"]), str(api["operator"]), float(api["expires"])
        )
    return RegisteredRun(
        str(entry["workflow"]),
        process,
        int(entry["number"]),
        float(entry["started"]),
        access,
    )
