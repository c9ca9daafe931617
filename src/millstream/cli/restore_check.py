"""Whether Spark can go on behind an epoch, asked where Spark is not at hand."""

from __future__ import annotations

from pathlib import Path

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.epoch_contents import EpochIncompleteError
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import Manifest
from millstream.checkpoints.spark_logs import LocalLogFolder, LoggedEpochs

_SPARK = "spark"
_SURELY_NOTED = 100  # Spark's default, which a run raises if it needs more and never lowers


def require_offsets(checkpoint: str, chain: Chain, lineage: Lineage, epoch: int) -> None:
    """Raise ``EpochIncompleteError`` if Spark may no longer have the offsets of an epoch."""
    folder = Path(checkpoint, _SPARK)
    if "://" not in checkpoint and folder.is_dir():
        _require_noted(folder, lineage, epoch)
    else:
        _require_recent(chain, lineage, epoch)


def _require_noted(folder: Path, lineage: Lineage, epoch: int) -> None:
    noted = LoggedEpochs(LocalLogFolder(folder), lineage)
    if noted.reach(epoch):
        return
    why = f"Spark no longer has its offsets in {folder}"
    if noted.span is None:
        raise EpochIncompleteError(epoch, f"{why}, nor those of any other; use a whole copy")
    oldest, newest = noted.span
    raise EpochIncompleteError(epoch, f"{why}; one can go back to epochs from {oldest} to {newest}")


def _require_recent(chain: Chain, lineage: Lineage, epoch: int) -> None:
    """Refuse what Spark may have deleted, by all that is known of how far it had come."""
    links, _ = chain.links(lambda _: None)
    manifests = [link for link in links if isinstance(link, Manifest)]
    # Also what was taken back: Spark had come so far, and had deleted what was old by then.
    newest = max(found.epoch for found in manifests)
    # It may have been ahead of the chain by as many epochs as there are between two manifests.
    ahead = max(found.epoch - found.parent for found in manifests)
    oldest = newest + ahead - _SURELY_NOTED
    if epoch < oldest and epoch != lineage.epoch:
        raise EpochIncompleteError(
            epoch,
            f"Spark may no longer have the offsets of epochs before {max(oldest, 0)}. Give the "
            "folder of the checkpoint, in which Spark's notes are, or start the workflow with "
            f"restore_epoch={epoch}, which looks for them",
        )
