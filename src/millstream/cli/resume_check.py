"""Checks that a run can resume from an epoch, without Spark."""

from __future__ import annotations

from pathlib import Path

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.epoch_contents import EpochIncompleteError
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import LocalFolder
from millstream.checkpoints.manifest import Manifest
from millstream.checkpoints.spark_logs import SPARK_LOGS, ResumableEpochs, surely_retained


def require_offsets(checkpoint: str, chain: Chain, lineage: Lineage, epoch: int) -> None:
    """Raise if Spark has purged the offsets of an epoch, or may have without a way to check."""
    folder = Path(checkpoint, SPARK_LOGS)
    if "://" not in checkpoint and folder.is_dir():
        ResumableEpochs(LocalFolder(folder), lineage).require(epoch, str(folder))
        return
    links, _ = chain.links(lambda _: None)
    oldest = surely_retained(link for link in links if isinstance(link, Manifest))
    if epoch < oldest and epoch != lineage.epoch:
        raise EpochIncompleteError(
            epoch,
            f"Spark may have purged the offsets of epochs before {oldest}. Pass the checkpoint's "
            "folder, which contains Spark's offset log, or start the workflow with "
            f"restore_epoch={epoch}, which reads it",
        )
