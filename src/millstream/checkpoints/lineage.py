"""The lineage: which epochs are committed, according to a chain.

A claim after epoch d withdraws what older incarnations committed beyond d. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millstream.checkpoints.manifest import Claim, Link, Manifest


@dataclass(frozen=True)
class Lineage:
    """A chain as far as it was read: the position after it, and the manifests in force."""

    position: int
    incarnation: int
    manifests: tuple[Manifest, ...]
    claim: Claim | None = None

    @property
    def newest(self) -> Manifest | None:
        return self.manifests[-1] if self.manifests else None

    @property
    def last(self) -> Link | None:
        """The newest link."""
        known = [link for link in (self.newest, self.claim) if link is not None]
        return max(known, key=lambda link: link.position, default=None)

    @property
    def epoch(self) -> int:
        """The newest committed epoch; −1 before the first."""
        return self.manifests[-1].epoch if self.manifests else -1

    def upto(self, epoch: int) -> Lineage:
        """The lineage as it was when an epoch had just been committed."""
        kept = tuple(manifest for manifest in self.manifests if manifest.epoch <= epoch)
        return Lineage(self.position, self.incarnation, kept, self.claim)

    def since(self, position: int) -> Lineage:
        """The lineage without the links before a position."""
        kept = tuple(found for found in self.manifests if found.position >= position)
        return Lineage(self.position, self.incarnation, kept, self.claim)

    def manifest(self, epoch: int) -> Manifest | None:
        """The manifest that ends with an epoch."""
        return next((found for found in self.manifests if found.epoch == epoch), None)

    def then(self, link: Link) -> Lineage:
        """The lineage with one more link; manifests after its parent are withdrawn."""
        base = link.parent if isinstance(link, Manifest) else link.after
        kept = tuple(manifest for manifest in self.manifests if manifest.epoch <= base)
        if isinstance(link, Claim):
            return Lineage(link.position + 1, link.incarnation, kept, link)
        return Lineage(link.position + 1, link.incarnation, (*kept, link), self.claim)


EMPTY = Lineage(0, 0, ())


def lineage_of(links: Iterable[Link]) -> Lineage:
    """Fold the links of a chain, oldest first."""
    lineage = EMPTY
    for link in links:
        lineage = lineage.then(link)
    return lineage
