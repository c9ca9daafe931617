"""A run's checkpoint, as the driver holds it: store, chain, Spark's own notes, and sinks.

::

    <checkpoint>/store/           the default store, a log
    <checkpoint>/store.url        which store it is, if another, without its password
    <checkpoint>/spark/<n>/       what Spark notes about incarnation n
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit, urlunsplit

from pyspark.sql import DataFrame, SparkSession

from millstream.checkpoints.chain import Chain, CommitUnknownError, SupersededError
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import log_url
from millstream.checkpoints.manifest import JobNote, WorkflowNote
from millstream.checkpoints.spark_logs import LoggedEpochs
from millstream.coordinator.claim import Claimed, claim
from millstream.coordinator.journal import Journal
from millstream.coordinator.sink_recovery import clear_sinks, reconcile_sinks
from millstream.errors import ConfigError
from millstream.flow.identity import form_of, reducer_text, source_texts, windows_text
from millstream.flow.plan import Plan
from millstream.spark.engine import publish
from millstream.spark.folder import Folder
from millstream.spark.options import RunConfig
from millstream.spark.query_log_files import EpochNotRetainedError, QueryLogs, source_folders
from millstream.spark.sink_writers import FileWriter, SinkWriter
from millstream.stores.registry import open_store
from millstream.stores.store import Store, StoreError

log = logging.getLogger("millstream")

_KEPT_INCARNATIONS = 3
_URL = "store.url"


@dataclass(frozen=True)
class Hold:
    """What a run has of its checkpoint: where Spark takes its notes, and perhaps a journal."""

    location: str
    url: str | None = None
    journal: Journal | None = None
    ids: Mapping[int, str] | None = None
    chain: Chain | None = None

    def successor(self, problem: BaseException) -> SupersededError | None:
        """Who has claimed the checkpoint since, and so explains a problem better than it does."""
        if self.chain is None or self.journal is None or _says_enough(problem):
            return None
        try:
            return self.chain.successor(self.journal.incarnation)
        except StoreError:
            return None


def _says_enough(problem: BaseException) -> bool:
    known = isinstance(problem, SupersededError | CommitUnknownError | StoreError)
    return known or not isinstance(problem, Exception)


def take_hold(
    planned: Plan,
    config: RunConfig,
    spark: SparkSession,
    frame: DataFrame,
    sinks: Mapping[str, SinkWriter],
    cleanup: ExitStack,
) -> Hold:
    """Claim the checkpoint, make Spark's notes and the sinks agree with it, and publish the rest.

    Without a checkpoint everything begins anew, in a folder that goes with the run.
    """
    if config.checkpoint is None:
        folder = tempfile.mkdtemp(prefix="millstream-checkpoint-")
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        clear_sinks(_staging(sinks))
        return Hold(folder)
    root = Folder(spark, str(config.checkpoint))
    url = _store_url(root, config.store)
    store = open_store(url, f"driver-{uuid.uuid4().hex[:12]}")
    cleanup.callback(store.close)
    noted = Folder(spark, root.text("spark"))
    claimed = _claim(store, url, planned, config, sinks, noted)
    journal = _journal(store, claimed, planned, config)
    ids = {at: note.id for at, note in _numbered(planned, claimed.workflow)}
    notes = QueryLogs(spark, noted.text(""))
    hold = Hold("", url, journal, ids, Chain(store))
    try:
        location = notes.derive(
            journal.incarnation, claimed.after, source_folders(frame), by=claimed.by
        )
        notes.prune(_KEPT_INCARNATIONS)
        reconcile_sinks(_staging(sinks), claimed, journal, partial(publish, sinks=sinks))
    except Exception as problem:
        replaced = hold.successor(problem)
        if replaced is None:
            raise
        raise replaced from problem
    if journal.committed.epoch >= 0:
        log.info("going on from epoch %d as incarnation %d", claimed.after, journal.incarnation)
    return replace(hold, location=location)


def _store_url(root: Folder, wanted: str | None) -> str:
    """Which store a checkpoint has: the same one always."""
    # The default moves with the folder, and so its place is not written down.
    own = log_url(root.local("")) if root.is_plain_local else None
    known = (root.read(_URL) or "").strip() or (own if root.exists("store") else None)
    url = wanted or known or own
    if url is None:
        raise ConfigError(
            f"checkpoint {root.text('')} is not on a local or mounted file system; say where "
            "state is to be kept with store=, for example store='log+s3://bucket/folder'"
        )
    if known is not None and _without_password(url) != known:
        raise ConfigError(
            f"the state of checkpoint {root.text('')} is in {known}, not in "
            f"{_without_password(url)}; pass that one as store=, or choose a new checkpoint"
        )
    if known is None and wanted is not None:
        root.make("")
        root.write(_URL, _without_password(url) + "\n")
    return url


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{place}"))


def _claim(
    store: Store,
    url: str,
    planned: Plan,
    config: RunConfig,
    sinks: Mapping[str, SinkWriter],
    noted: Folder,
) -> Claimed:
    return claim(
        store,
        _without_password(url),
        note_of(planned, config.slots),
        config.changes,
        restore_epoch=config.restore_epoch,
        recovery=config.recovery,
        can_withdraw=all(isinstance(writer, FileWriter) for writer in sinks.values()),
        require_logs=partial(require_logs, noted),
    )


def require_logs(folder: Folder, seen: Lineage, epoch: int) -> None:
    """Raise ``EpochNotRetainedError`` if Spark's logs no longer allow to resume after an epoch."""
    noted = LoggedEpochs(folder, seen)
    if not noted.reach(epoch):
        raise EpochNotRetainedError(folder.text(""), epoch, noted.span)


def note_of(planned: Plan, slots: int) -> WorkflowNote:
    """What a checkpoint is to know of a workflow."""
    return WorkflowNote(
        planned.name,
        slots,
        tuple(
            JobNote(
                job.name,
                form_of(job),
                reducer_text(job),
                windows=windows_text(job),
                durable=job.durable,
                key_type=job.key_type,
                led=tuple(led.name for _, led in planned.led_by(at)),
            )
            for at, job in planned.jobs
        ),
        source_texts(planned),
    )


def _journal(store: Store, claimed: Claimed, planned: Plan, config: RunConfig) -> Journal:
    jobs = {job.name: at for at, job in planned.jobs}
    return Journal(
        store,
        claimed.lineage,
        claimed.workflow,
        jobs,
        config.retain,
        config.on_checkpoint or (lambda _: None),
    )


def _numbered(planned: Plan, note: WorkflowNote) -> list[tuple[int, JobNote]]:
    return [(at, found) for (at, _), found in zip(planned.jobs, note.jobs, strict=True)]


def _staging(sinks: Mapping[str, SinkWriter]) -> list[FileWriter]:
    return [writer for writer in sinks.values() if isinstance(writer, FileWriter)]
