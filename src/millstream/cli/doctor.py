"""``millstream doctor``: whether what runs need is there, and what to do about what is not."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from millstream.checkpoints.location import open_checkpoint
from millstream.checkpoints.tables import as_text
from millstream.cli.java import find_java
from millstream.cli.text_table import table
from millstream.errors import MillstreamError
from millstream.wire.run_registry import RunRegistry

_LEAST_MEMORY = 2 * 2**30
_LARGEST_SKEW = 1.0
_OLDEST_PYTHON = (3, 11)
# What the tasks and nodes of a run import, whatever the workflow is.
_NEEDED = ("pyarrow", "pandas", "numpy", "xxhash", "cloudpickle", "google_crc32c")
_ASK_WORKER = (
    "import importlib.util, sys; print('%d.%d' % sys.version_info[:2], "
    "*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))"
)
_EXTRAS = {
    "dashboard": ("starlette", "uvicorn"),
    "redis": ("redis",),
    "rocksdb": ("rocksdict",),
    "postgresql": ("psycopg",),
    "objects": ("fsspec",),
    "tls": ("cryptography",),
}
_PROBLEMS = (
    MillstreamError,
    OSError,
    subprocess.SubprocessError,
    importlib.metadata.PackageNotFoundError,
)


@dataclass(frozen=True)
class Finding:
    """What was found about one thing; ``is_fine`` is None for what is optional and not there."""

    about: str
    is_fine: bool | None
    text: str


def add_to(commands: Any) -> None:
    """Add ``doctor``."""
    about = "check Java, Python, packages, ports, memory, stores and clocks"
    parser = commands.add_parser(
        "doctor",
        help=about,
        description=f"{about.capitalize()}.",
        epilog="example: millstream doctor --store redis://localhost:6379/0\n\n"
        "exit codes: 0 all is well, 1 something is wrong, 2 wrong arguments",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--store", action="append", default=[], metavar="URL", help="also check a store, by writing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    findings = [
        *of_this_host(),
        *(_checked(f"store {url}", partial(_store, url)) for url in options.store),
        *(_extra(name, packages) for name, packages in _EXTRAS.items()),
    ]
    if options.json:
        print(as_text([asdict(finding) for finding in findings]))
    else:
        marks = {True: "ok", False: "WRONG", None: "not installed"}
        print(table(("CHECK", "", ""), [(f.about, marks[f.is_fine], f.text) for f in findings]))
    return 1 if any(finding.is_fine is False for finding in findings) else 0


def of_this_host() -> list[Finding]:
    """What was found about this host."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("java", lambda: str(find_java())),
        ("python", _python),
        ("python of workers", _worker_python),
        ("pyspark", lambda: importlib.metadata.version("pyspark")),
        ("memory", _memory),
        ("loopback port", _port),
        ("socket folder", _socket_folder),
        ("registry", lambda: f"{len(RunRegistry.of_user().runs())} workflows are running"),
        ("clock", _clock),
    ]
    return [_checked(about, check) for about, check in checks]


def _checked(about: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(about, True, check())
    except _PROBLEMS as problem:
        return Finding(about, False, str(problem).splitlines()[0])


def _wrong(text: str) -> MillstreamError:
    return MillstreamError(text)


def _python() -> str:
    if sys.version_info < _OLDEST_PYTHON:
        raise _wrong(f"{platform.python_version()}; 3.11 or newer is needed")
    return f"{platform.python_version()} ({sys.executable})"


def _worker_python() -> str:
    """Workers must have the version of the driver: functions are sent to them as byte code."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return "that of the driver"
    found = shutil.which(chosen)
    if found is None:  # it may be on the executors' hosts
        version, missing = Path(chosen).name.removeprefix("python"), ""
    else:
        asked = [found, "-c", _ASK_WORKER, *_NEEDED]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        version, _, missing = done.stdout.strip().partition(" ")
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != ours and (found is not None or version.startswith("3.")):
        raise _wrong(
            f"PYSPARK_PYTHON is {chosen}, of version {version or 'unknown'}, but the driver is "
            f"{platform.python_version()}"
        )
    if missing:
        raise _wrong(f"PYSPARK_PYTHON is {chosen}, which lacks {missing}: pip install {missing}")
    return f"PYSPARK_PYTHON is {chosen}"


def _memory() -> str:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return "not known on this system"
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    if available < _LEAST_MEMORY:
        raise _wrong(f"{available / 2**30:.1f} GiB are available; a JVM and nodes need 2 GiB")
    return f"{available / 2**30:.1f} GiB are available"


def _port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address, timeout=5):
            return "127.0.0.1 accepts connections"


def _socket_folder() -> str:
    with (
        tempfile.TemporaryDirectory(prefix="millstream-") as folder,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        listening.bind(f"{folder}/s.sock")
    return tempfile.gettempdir()


def _store(url: str) -> str:
    key, begun = f"doctor/{os.getpid()}", time.perf_counter()
    store = open_checkpoint(url)
    try:
        store.put({key: b"checked"})
        if store.get([key]) != {key: b"checked"}:
            raise _wrong("what was written is not read again")
        store.delete([key])
    finally:
        store.close()
    return f"written, read and deleted in {1000 * (time.perf_counter() - begun):.0f} ms"


def _clock() -> str:
    """The clock that file times come from, which may be another host's, against our own."""
    with tempfile.NamedTemporaryFile(dir=Path.home()) as file:
        file.write(b"x")
        file.flush()
        skew = os.stat(file.name).st_mtime - time.time()
    if abs(skew) > _LARGEST_SKEW:
        raise _wrong(f"files in {Path.home()} are {skew:+.1f} s off; synchronise the clocks")
    return f"files in {Path.home()} are within {_LARGEST_SKEW:g} s"


def _extra(name: str, packages: tuple[str, ...]) -> Finding:
    missing = [each for each in packages if importlib.util.find_spec(each) is None]
    text = f"pip install 'millstream[{name}]'" if missing else ", ".join(packages)
    return Finding(f"extra {name}", None if missing else True, text)
