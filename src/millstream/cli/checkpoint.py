"""``millstream checkpoint``: inspects a checkpoint, on any store, without Spark or a JVM."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from millstream.api.key_text import TYPES, parse_key
from millstream.checkpoints.chain import PREFIX, Chain, lost_origin
from millstream.checkpoints.epoch_contents import EpochIncompleteError, contents_of
from millstream.checkpoints.garbage import garbage, remove
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import NoCheckpointError, open_checkpoint
from millstream.checkpoints.manifest import as_json
from millstream.checkpoints.parquet_export import export
from millstream.checkpoints.records import DATA
from millstream.checkpoints.state_diff import compare
from millstream.checkpoints.stored_state import (
    NotInCheckpointError,
    StoredState,
    job_of,
    manifest_of,
)
from millstream.checkpoints.tables import as_text
from millstream.checkpoints.verification import Findings, check, check_epoch, missing
from millstream.cli import checkpoint_text as text
from millstream.cli.listing import listing
from millstream.cli.resume_check import require_offsets
from millstream.errors import ConfigError, MillstreamError
from millstream.ring.keys import KeyTypeError
from millstream.stores.store import CorruptRecordError, Damage, Store

_USAGE_STATUS = 2
_USAGE_ERRORS = (NotInCheckpointError, NoCheckpointError, ConfigError, KeyTypeError)
_EXIT_CODES = (
    "exit codes: 0 done, 1 damaged or not done, 2 wrong arguments, or no such checkpoint, epoch, "
    "job or key"
)
Command = Callable[[Store, argparse.Namespace], int]


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    checkpoint = commands.add_parser(
        "checkpoint",
        help="inspect a checkpoint: ls, show, verify, diff, get, export, restore, gc",
        description="Inspect a checkpoint, of a run that is under way or has ended. Records are "
        "pickles: inspect only checkpoints of people you trust.",
    )
    actions = checkpoint.add_subparsers(title="actions", required=True, metavar="ACTION")

    def action(
        name: str, command: Command, about: str, example: str = ""
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=f"example: millstream checkpoint {name} state/wordcount{example}\n\n"
            f"{_EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "checkpoint", metavar="CHECKPOINT", help="the run's checkpoint=, or a store's URL"
        )
        parser.add_argument("--store", metavar="URL", help="the run's store=, with its password")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=_run, command=command)
        return parser

    action("ls", _ls, "list the epochs and incarnations")
    show = action("show", _show, "show an epoch's manifest: jobs, types and records")
    show.add_argument("epoch", type=int, nargs="?", metavar="EPOCH", help="default: the newest")
    verify = action(
        "verify", _verify, "read all records that epochs need; status 1 if any is damaged"
    )
    _epoch(verify, "check this epoch only")
    diff = action("diff", _diff, "compare the state of two epochs, key by key", " 41 42")
    diff.add_argument("before", type=int, metavar="A")
    diff.add_argument("after", type=int, metavar="B")
    diff.add_argument("--job", metavar="JOB", help="default: all")
    diff.add_argument("--limit", type=int, default=10, metavar="N", help="examples of each job")
    get = action("get", _get, "print the state of a key", " counts mill")
    get.add_argument("job", metavar="JOB")
    get.add_argument("key", metavar="KEY", help="a tuple as in JSON: '[\"a\", 1]'")
    get.add_argument("--key-type", choices=TYPES, help="default: that of the job's keys")
    _epoch(get)
    out = action("export", _export, "write state to files, one for each job", " --to out")
    out.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    out.add_argument("--format", choices=["parquet"], default="parquet")
    out.add_argument("--job", metavar="JOB", help="default: all")
    _epoch(out)
    restore = action("restore", _restore, "make the next start resume from an epoch", " 41")
    restore.add_argument("epoch", type=int, metavar="EPOCH")
    restore.add_argument("--yes", action="store_true", help="do it; without, only explain")
    gc = action("gc", _gc, "delete records that no epoch needs; safe while the workflow runs")
    gc.add_argument(
        "--retain", type=int, metavar="N", help="retain the newest N epochs; default: all"
    )
    gc.add_argument("--dry-run", action="store_true", help="only print what would be deleted")


def _epoch(parser: argparse.ArgumentParser, about: str = "default: the newest") -> None:
    parser.add_argument("--epoch", type=int, metavar="N", help=about)


def _run(options: argparse.Namespace) -> int:
    try:
        with closing(open_checkpoint(options.checkpoint, options.store)) as store:
            command: Command = options.command
            return command(store, options)
    except _USAGE_ERRORS as problem:
        print(f"millstream: {problem}", file=sys.stderr)
        return _USAGE_STATUS


def _print(options: argparse.Namespace, facts: Any, lines: str) -> None:
    print(as_text(facts) if options.json else lines)


def _lineage(store: Store) -> Lineage:
    """The lineage as far as it can be read; damage is printed to stderr."""
    return Chain(store).read(_warn)


def _warn(damage: Damage) -> None:
    print(f"millstream: {damage}; see `millstream checkpoint verify`", file=sys.stderr)


# -- the actions -----------------------------------------------------------------------------


def _ls(store: Store, options: argparse.Namespace) -> int:
    links, _ = Chain(store).links(_warn)
    found = listing(links, set(store.scan(DATA)))
    _print(options, asdict(found), text.listing(found))
    return 0


def _show(store: Store, options: argparse.Namespace) -> int:
    manifest = manifest_of(_lineage(store), options.epoch)
    _print(options, as_json(manifest), text.manifest(manifest))
    return 0


def _verify(store: Store, options: argparse.Namespace) -> int:
    if options.epoch is None:
        found = check(store)
    else:
        found = check_epoch(store, Chain(store).read(_warn), options.epoch)
    facts = {**asdict(found), "ok": found.ok, "newest_complete": found.newest_complete}
    _print(options, facts, text.findings(found))
    return 0 if found.ok else 1


def _diff(store: Store, options: argparse.Namespace) -> int:
    found = compare(
        store, _lineage(store), options.before, options.after, options.job, options.limit
    )
    facts = [{**vars(job), "examples": list(map(vars, job.examples))} for job in found]
    _print(options, facts, text.differences(found))
    return 0


def _get(store: Store, options: argparse.Namespace) -> int:
    lineage = _lineage(store)
    epoch = manifest_of(lineage, options.epoch).epoch
    state = StoredState(store, lineage, epoch, options.job)
    kind = TYPES[options.key_type] if options.key_type else state.job.key_type
    wanted = f"key {options.key!r} in job {options.job!r} at epoch {epoch}"
    if kind is None:
        raise NotInCheckpointError(wanted, "the job had no key at that epoch")
    key, absent = parse_key(options.key, kind), object()
    # A key that is None has the type of the others.
    value = state.get(key, absent, None if key is None else kind)
    if value is absent:
        some = ", ".join(repr(known) for known, _ in islice(state.items(), 3))
        raise NotInCheckpointError(wanted, f"it has keys such as {some}" if some else "it has none")
    facts = {"job": options.job, "epoch": epoch, "key": key, "value": value}
    _print(options, facts, repr(value))
    return 0


def _export(store: Store, options: argparse.Namespace) -> int:
    lineage = _lineage(store)
    manifest = manifest_of(lineage, options.epoch)
    jobs = manifest.workflow.jobs
    if options.job is not None:
        jobs = (job_of(manifest.workflow, options.job),)
    names = [job.name for job in jobs if job.durable or job.name == options.job]
    states = [StoredState(store, lineage, manifest.epoch, name) for name in names]
    found = [export(state, options.to) for state in states]
    _print(options, [asdict(file) for file in found], text.exported(found))
    return 0


def _restore(store: Store, options: argparse.Namespace) -> int:
    chain, lineage = Chain(store), _lineage(store)
    found = check_epoch(store, lineage, options.epoch)
    if not found.ok:
        raise EpochIncompleteError(options.epoch, _why(found))
    require_offsets(options.checkpoint, chain, lineage, options.epoch)
    withdrawn = [m.epoch for m in lineage.manifests if m.epoch > options.epoch]
    facts = {"epoch": options.epoch, "withdrawn": withdrawn, "done": options.yes}
    if options.yes:
        now = time.time_ns() // 1000
        claimed = chain.claim(lineage, options.epoch, now, socket.gethostname(), os.getpid())
        if claimed is None:
            raise CheckpointInUseError(options.checkpoint)
        if absent := missing(store, claimed, contents_of(claimed, options.epoch)):
            chain.withdraw(claimed)
            raise EpochIncompleteError(options.epoch, f"{absent[0]} was deleted meanwhile")
        facts["incarnation"] = claimed.incarnation
    _print(options, facts, text.restored(options.epoch, withdrawn, options.yes))
    return 0 if options.yes else 1


class CheckpointInUseError(MillstreamError):
    """A workflow claimed a checkpoint, or committed to it, while it was changed."""

    def __init__(self, checkpoint: str) -> None:
        super().__init__(checkpoint)
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        return (
            f"a workflow runs on {self.checkpoint}, and has just claimed it or committed to it; "
            "nothing was changed. Stop it first, or retry"
        )


def _why(found: Findings) -> str:
    return "; ".join(problem for epoch in found.epochs for problem in epoch.problems)


def _gc(store: Store, options: argparse.Namespace) -> int:
    chain = Chain(store)
    lineage = _collectable(chain)
    found = garbage(lineage, store.scan(DATA), options.retain)
    first = len([key for key in store.scan(PREFIX) if _position(key) < found.links_before])
    if not options.dry_run:
        if chain.was_claimed(lineage):
            raise CheckpointInUseError(
                options.checkpoint
            )  # by a run that may have restored an older epoch
        remove(store, found)
    facts = {"records": list(found.records), "links": first, "done": not options.dry_run}
    _print(options, facts, text.collected(len(found.records), first, not options.dry_run))
    return 0


def _collectable(chain: Chain) -> Lineage:
    """The lineage, if enough of it can be read to collect garbage."""
    damaged: list[Damage] = []
    lineage = chain.read(damaged.append)
    # Damage before the newest claim was known to the claimant, which resumed without it.
    claimed = -1 if lineage.claim is None else lineage.claim.position
    for damage in damaged:
        if damage.key is None or _position(damage.key) > claimed:
            raise CorruptRecordError(damage)
    lost = lost_origin(lineage)
    if lost is not None:
        raise CorruptRecordError(lost)
    return lineage


def _position(key: str) -> int:
    return int(key.removeprefix(PREFIX))
