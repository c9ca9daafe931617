"""A run's checkpoint, as the driver opens it: store, chain, Spark's logs, and sinks."""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from millstream.checkpoints.chain import Chain, CommitUnknownError, SupersededError
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import STORE_URL, log_url, recorded_store
from millstream.checkpoints.manifest import JobMetadata, WorkflowMetadata
from millstream.checkpoints.spark_logs import SPARK_LOGS, ResumableEpochs
from millstream.coordinator.claim import Claimed, claim
from millstream.coordinator.journal import Journal
from millstream.coordinator.sink_recovery import clear_sinks, reconcile_sinks
from millstream.errors import ConfigError
from millstream.flow.identity import form_of, reducer_text, source_texts, windows_text
from millstream.flow.plan import Plan
from millstream.spark.engine import publish
from millstream.spark.folder import Folder
from millstream.spark.options import RunConfig
from millstream.spark.query_log_files import QueryLogs, source_folders
from millstream.spark.sink_writers import FileWriter, SinkWriter
from millstream.stores.options import without_password
from millstream.stores.registry import open_store
from millstream.stores.store import Store, StoreError

log = logging.getLogger("millstream")

_KEPT_INCARNATIONS = 3


@dataclass(frozen=True)
class RunCheckpoint:
    """The checkpoint of a run: the folder of Spark's logs, and the journal if it is durable."""

    location: str
    url: str | None = None
    journal: Journal | None = None
    ids: Mapping[int, str] | None = None
    chain: Chain | None = None

    @property
    def nodes(self) -> int | None:
        """How many nodes the workflow had when it was last committed, if it was."""
        layout = None if self.journal is None else self.journal.layout
        return None if layout is None else layout.nodes

    def successor(self, problem: BaseException) -> SupersededError | None:
        """The error that explains a problem better: another driver has claimed the checkpoint."""
        if self.chain is None or self.journal is None or _is_specific(problem):
            return None
        try:
            return self.chain.successor(self.journal.incarnation)
        except StoreError:
            return None


def _is_specific(problem: BaseException) -> bool:
    known = isinstance(problem, SupersededError | CommitUnknownError | StoreError)
    return known or not isinstance(problem, Exception)


def claim_checkpoint(
    planned: Plan,
    config: RunConfig,
    spark: SparkSession,
    frame: DataFrame,
    sinks: Mapping[str, SinkWriter],
    cleanup: ExitStack,
) -> RunCheckpoint:
    """Claim the checkpoint, reconcile Spark's logs and the sinks with it, publish what is due.

    Without a checkpoint everything begins anew, in a folder that is removed after the run.
    """
    if config.checkpoint is None:
        temporary = tempfile.mkdtemp(prefix="millstream-checkpoint-")
        cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
        clear_sinks(_staging(sinks))
        return RunCheckpoint(temporary)
    root = Folder(spark, str(config.checkpoint))
    url = _store_url(root, config.store)
    store = open_store(url, f"driver-{uuid.uuid4().hex[:12]}")
    cleanup.callback(store.close)
    folder = Folder(spark, root.text(SPARK_LOGS))
    claimed = _claim(store, url, planned, config, sinks, folder)
    journal = _journal(store, claimed, planned, config)
    ids = {at: job.id for at, job in _numbered(planned, claimed.workflow)}
    logs = QueryLogs(folder)
    opened = RunCheckpoint("", url, journal, ids, Chain(store))
    try:
        location = logs.derive(
            journal.incarnation, claimed.after, source_folders(frame), by=claimed.by
        )
        logs.prune(_KEPT_INCARNATIONS)
        reconcile_sinks(_staging(sinks), claimed, journal, partial(publish, sinks=sinks))
    except Exception as problem:
        superseded = opened.successor(problem)
        if superseded is None:
            raise
        raise superseded from problem
    if journal.committed.epoch >= 0:
        log.info("resuming after epoch %d as incarnation %d", claimed.after, journal.incarnation)
    return replace(opened, location=location)


def _store_url(root: Folder, wanted: str | None) -> str:
    """The URL of a checkpoint's store, which never changes."""
    recorded = recorded_store(root)
    url = wanted or recorded
    if url is None and root.local_path is not None:
        return log_url(root.local_path)  # not recorded: it moves with the folder
    if url is None:
        raise ConfigError(
            f"checkpoint {root.text('')} is not on a local or mounted file system; choose where "
            "state is stored with store=, for example store='log+s3://bucket/folder'"
        )
    shown = without_password(url)
    if recorded is None:
        root.make("")
        root.write(STORE_URL, shown + "\n")
    elif unquote(shown) != unquote(recorded):
        raise ConfigError(
            f"the state of checkpoint {root.text('')} is in {recorded}, not in {shown}; pass "
            "that one as store=, or choose a new checkpoint"
        )
    return url


def _claim(
    store: Store,
    url: str,
    planned: Plan,
    config: RunConfig,
    sinks: Mapping[str, SinkWriter],
    logs: Folder,
) -> Claimed:
    return claim(
        store,
        without_password(url),
        metadata_of(planned, config.slots),
        config.changes,
        restore_epoch=config.restore_epoch,
        recovery=config.recovery,
        can_withdraw=all(isinstance(writer, FileWriter) for writer in sinks.values()),
        require_logs=partial(require_logs, logs),
    )


def require_logs(folder: Folder, seen: Lineage, epoch: int) -> None:
    """Raise ``EpochNotRetainedError`` if Spark's logs do not allow to resume after an epoch."""
    ResumableEpochs(folder, seen).require(epoch, folder.text(""))


def metadata_of(planned: Plan, slots: int) -> WorkflowMetadata:
    """What a checkpoint records of a workflow."""
    return WorkflowMetadata(
        planned.name,
        slots,
        tuple(
            JobMetadata(
                job.name,
                form_of(job),
                reducer_text(job),
                windows=windows_text(job),
                durable=job.durable,
                key_type=job.key_type,
                fused=tuple(fused.name for _, fused in planned.fused_into(at)),
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


def _numbered(planned: Plan, workflow: WorkflowMetadata) -> list[tuple[int, JobMetadata]]:
    return [(at, found) for (at, _), found in zip(planned.jobs, workflow.jobs, strict=True)]


def _staging(sinks: Mapping[str, SinkWriter]) -> list[FileWriter]:
    return [writer for writer in sinks.values() if isinstance(writer, FileWriter)]
