"""``millstream state``: the committed state of a running workflow's jobs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millstream.api import contract as c
from millstream.api.client import ApiClient
from millstream.checkpoints.tables import as_text, table_of
from millstream.cli.argument_types import number
from millstream.cli.commands import add_command
from millstream.cli.run_client import connect
from millstream.cli.text_table import table
from millstream.errors import ConfigError

_NO_SUCH_KEY = 1


def add_to(commands: Any) -> None:
    """Add ``state`` and its commands."""
    about = "read the committed state of a running workflow"
    parser = commands.add_parser("state", help=about, description=f"{about.capitalize()}.")
    state = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    jobs = "list the jobs whose state can be read"
    add_command(state, "jobs", _jobs, jobs, "millstream state jobs wordcount")
    get = _of_job(state, "get", _get, "print the state of keys", "wordcount counts mill stream")
    get.add_argument("keys", nargs="+", metavar="KEY", help='a tuple is written as ["a", 1]')
    scan = _of_job(
        state, "scan", _scan, "print keys with their state", "wordcount counts --prefix m"
    )
    scan.add_argument("--prefix", metavar="TEXT", help="only keys that begin so")
    scan.add_argument("--start", metavar="KEY", help="only keys from this one on")
    scan.add_argument("--stop", metavar="KEY", help="only keys before this one")
    scan.add_argument(
        "--limit", type=number, default=1000, metavar="N", help="at most; default: %(default)s"
    )
    top = _of_job(state, "top", _top, "print the keys with the largest values", "wordcount counts")
    top.add_argument("-n", type=number, default=10, metavar="N", help="default: %(default)s")
    top.add_argument("--by", metavar="ENTRY", help="the entry of the values to compare")
    export = _of_job(
        state,
        "export",
        _export,
        "write keys with their state to a Parquet file",
        "wordcount counts counts.parquet",
    )
    export.add_argument("file", type=Path, metavar="FILE", help="must not exist yet")


def _of_job(state: Any, name: str, command: Any, about: str, example: str) -> Any:
    parser = add_command(state, name, command, about, f"millstream state {name} {example}")
    parser.add_argument("job", metavar="JOB")
    return parser


def _jobs(options: argparse.Namespace) -> int:
    jobs = connect(options).client.get("/state", list[c.StateJob])
    if options.json:
        print(as_text([asdict(job) for job in jobs]))
    else:
        rows = [(job.job, job.key_type, job.state_keys) for job in jobs]
        print(table(("JOB", "KEYS OF TYPE", "KEYS"), rows))
    return 0


def _get(options: argparse.Namespace) -> int:
    request = c.GetManyRequest(job=options.job, keys=options.keys)
    found = connect(options).client.post("/state/get-many", request, c.StateItems)
    _print(options, found)
    return 0 if all(item.found for item in found.items) else _NO_SUCH_KEY


def _scan(options: argparse.Namespace) -> int:
    pages = _pages(connect(options).client, options.job, options.limit, _bounds(options))
    items: list[c.StateItem] = []
    epoch = -1
    for page in pages:
        epoch, items = page.epoch, items + page.items
    _print(options, c.StateItems(job=options.job, epoch=epoch, items=items))
    return 0


def _top(options: argparse.Namespace) -> int:
    client = connect(options).client
    found = client.get("/state/top", c.StateItems, job=options.job, n=options.n, by=options.by)
    _print(options, found)
    return 0


def _export(options: argparse.Namespace) -> int:
    if options.file.exists():
        raise ConfigError(f"{options.file} is there already; name another file, or remove it")
    pages = list(_pages(connect(options).client, options.job, None, {}))
    rows = table_of((item.key, item.value) for page in pages for item in page.items)
    epoch = pages[-1].epoch
    about = {"millstream.job": options.job, "millstream.epoch": str(epoch)}
    pq.write_table(rows.replace_schema_metadata(about), options.file)
    facts = {"job": options.job, "epoch": epoch, "file": str(options.file), "rows": rows.num_rows}
    print(as_text(facts) if options.json else f"{rows.num_rows} keys of epoch {epoch}")
    return 0


def _bounds(options: argparse.Namespace) -> dict[str, str | None]:
    return {"prefix": options.prefix, "start": options.start, "stop": options.stop}


def _pages(
    client: ApiClient, job: str, limit: int | None, bounds: dict[str, str | None]
) -> Iterator[c.StateItems]:
    """The pages of a scan, all of one epoch."""
    left, continuation, asked = limit, None, bounds
    while left is None or left > 0:
        size = c.MOST_ITEMS if left is None else min(left, c.MOST_ITEMS)
        page = client.get(
            "/state/scan", c.StateItems, job=job, limit=size, continuation=continuation, **asked
        )
        yield page
        if page.continuation is None:
            return
        left = None if left is None else left - len(page.items)
        continuation, asked = page.continuation, {}


def _print(options: argparse.Namespace, found: c.StateItems) -> None:
    if options.json:
        print(as_text(asdict(found)))
        return
    rows = [(item.text, as_text(item.value) if item.found else None) for item in found.items]
    print(f"epoch {found.epoch}")
    print(table(("KEY", "STATE"), rows))
