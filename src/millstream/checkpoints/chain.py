"""The chain in the store: one total order of claims and manifests, decided by put-if-absent.

Link p is put, if absent, under ``chain/p``; whoever comes second reads on. So a driver that was
replaced finds the claim of its successor where its next manifest should go, and stops; and a
manifest that came just before a claim is seen by the claimant, who then tries the next position.

Old links are deleted from the front, the newest one never. A driver that slept through that finds
its position free again, and so it makes sure afterwards that its link stands where the chain ends,
or right behind the last one that it knows; a link in a hole is nobody's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from millstream.checkpoints.lineage import Lineage, lineage_of
from millstream.checkpoints.manifest import BadManifestError, Claim, Link, Manifest, decode, encode
from millstream.errors import MillstreamError
from millstream.stores.store import CorruptRecordError, Damage, Store, StoreError

PREFIX = "chain/"


class SupersededError(MillstreamError):
    """Another driver has claimed the checkpoint."""

    def __init__(self, incarnation: int, by: int | None, who: str) -> None:
        super().__init__(incarnation, by, who)
        self.incarnation, self.by, self.who = incarnation, by, who

    def __str__(self) -> str:
        newer = "a newer one" if self.by is None else f"incarnation {self.by}"
        return (
            f"incarnation {self.incarnation} of this workflow was replaced by {newer}{self.who}: "
            "nothing of the epoch under way was published here. Two drivers cannot run on one "
            "checkpoint; if both are wanted, give each a checkpoint of its own"
        )


class CommitUnknownError(MillstreamError):
    """The store went away while a manifest was written; it may be durable, or not."""

    def __init__(self, epoch: int, problem: str) -> None:
        super().__init__(epoch, problem)
        self.epoch, self.problem = epoch, problem

    def __str__(self) -> str:
        return (
            f"whether epoch {self.epoch} is committed is not known: {self.problem}. Nothing is "
            "lost: start the workflow again on the same checkpoint when the store is back"
        )


class Chain:
    """The chain of one checkpoint, read and written."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, on_damage: Callable[[Damage], None] | None = None) -> Lineage:
        """Read the whole chain.

        Damaged and missing links are told, and the rest is read, with ``on_damage``; without it
        the first of them is raised. What they committed shows as a gap between manifests.
        """
        links, position = self.links(on_damage)
        return replace(lineage_of(links), position=position)

    def links(self, on_damage: Callable[[Damage], None] | None = None) -> tuple[list[Link], int]:
        """All links, also those that were taken back, and the position after the last."""
        keys = self._store.scan(PREFIX)
        try:
            known = self._store.get(keys)
        except CorruptRecordError:
            known = {}  # one by one, then, to see which
        links: list[Link] = []
        expected = -1
        for key in keys:
            position = _position(key)
            if 0 <= expected < position:
                _tell(_broken(key_of(expected), "the link is missing"), on_damage)
            try:
                links.append(self._link(key, known))
            except CorruptRecordError as corrupt:
                _tell(corrupt, on_damage)
            expected = position + 1
        return links, max(expected, 0)

    def _link(self, key: str, known: Mapping[str, bytes]) -> Link:
        value = known[key] if key in known else self._store.get([key]).get(key)
        if value is None:
            raise _broken(key, "the link is missing")
        return _decode(value, key)

    def claim(self, seen: Lineage, after: int, time: int, host: str, pid: int) -> Lineage | None:
        """Claim the checkpoint after an epoch; None if the chain has grown since it was seen."""
        number = seen.incarnation + 1
        claim = Claim(seen.position, number, after, time, host, pid, uuid.uuid4().hex)
        if not self._put(claim):
            return None
        if later := self._later(claim.position):
            self._leave(claim.position, later)
            return None
        return seen.then(claim)

    def withdraw(self, claimed: Lineage) -> None:
        """Take a claim back on which nobody has built, or raise ``SupersededError``."""
        self.require_newest(claimed)
        self._store.delete([key_of(claimed.position - 1)])

    def commit(self, seen: Lineage, manifest: Manifest) -> Lineage:
        """Commit epochs: the manifest becomes the next link, or ``SupersededError`` is raised."""
        manifest = replace(manifest, position=seen.position, token=uuid.uuid4().hex)
        try:
            won = self._put(manifest) and self._stands(seen, manifest)
        except StoreError as problem:
            raise CommitUnknownError(manifest.epoch, str(problem)) from problem
        if not won:
            raise self._superseded(manifest.position, manifest.incarnation)
        return seen.then(manifest)

    def has_grown(self, seen: Lineage) -> bool:
        """Whether somebody has added links since."""
        return bool(self._later(seen.position - 1))

    def was_claimed(self, seen: Lineage) -> bool:
        """Whether links have come since that are not commits of the incarnation that was seen."""
        keys = [key_of(position) for position in self._later(seen.position - 1)]
        if not keys:
            return False
        try:
            found = self._store.get(keys)
            links = [self._link(key, found) for key in keys]
        except CorruptRecordError:
            return True  # nobody knows what it said
        return any(
            isinstance(link, Claim) or link.incarnation != seen.incarnation for link in links
        )

    def require_newest(self, seen: Lineage) -> None:
        """Raise ``SupersededError`` if the chain has grown since it was seen."""
        if self.has_grown(seen):
            raise self._superseded(seen.position, seen.incarnation)

    def _put(self, link: Link) -> bool:
        """Put a link, and say whether it is there: also if only the answer to that was lost."""
        key = key_of(link.position)
        if self._store.put_if_absent(key, encode(link)):
            return True
        try:
            return link.token.encode() in self._store.get([key]).get(key, b"")
        except CorruptRecordError:
            return False

    def _stands(self, seen: Lineage, manifest: Manifest) -> bool:
        """Whether a link that was put follows what was seen, and not a hole."""
        before, last = key_of(manifest.position - 1), seen.last
        found = self._store.get([before]).get(before, b"")
        if last is not None and last.token.encode() in found:
            return True
        later = self._later(manifest.position)
        if not later:
            return True  # what was before it has just been deleted
        self._leave(manifest.position, later)
        if manifest.position + 1 in later:
            raise CommitUnknownError(manifest.epoch, "another driver has gone on behind it")
        return False

    def _later(self, position: int) -> list[int]:
        """The positions behind one that are taken."""
        return [at for at in map(_position, self._store.scan(PREFIX)) if at > position]

    def _leave(self, position: int, later: list[int]) -> None:
        """Take a link out of a hole again."""
        if position + 1 not in later:
            self._store.delete([key_of(position)])

    def _superseded(self, position: int, incarnation: int) -> SupersededError:
        key = key_of(position)
        found = self._store.get([key]).get(key)
        if found is not None:
            link = decode(found, key)
            if isinstance(link, Claim):
                return SupersededError(incarnation, link.incarnation, _who(link))
        return SupersededError(incarnation, None, "")

    def successor(self, incarnation: int) -> SupersededError | None:
        """Who has claimed the checkpoint since an incarnation did, if anybody has."""
        newest = self.read(on_damage=lambda _: None)
        if newest.incarnation <= incarnation:
            return None
        who = "" if newest.claim is None else _who(newest.claim)
        return SupersededError(incarnation, newest.incarnation, who)

    def forget(self, before: int) -> None:
        """Delete the links before a position, oldest first."""
        old = [key for key in self._store.scan(PREFIX) if _position(key) < before]
        for key in old:
            self._store.delete([key])


def key_of(position: int) -> str:
    """Where a link is in the store; keys are in the order of positions."""
    return f"{PREFIX}{position:012d}"


def lost_origin(lineage: Lineage) -> Damage | None:
    """What is wrong if the newest claim goes on from an epoch that is no longer in the chain.

    Links that are missing at the front were deleted, as a rule because nobody needs them.
    """
    claim = lineage.claim
    if claim is None or claim.after <= lineage.epoch:
        return None
    return _broken(
        key_of(claim.position),
        f"the manifest of epoch {claim.after}, from which incarnation {claim.incarnation} goes "
        "on, is missing",
    ).damage


def _who(claim: Claim) -> str:
    return f" (process {claim.pid} on {claim.host})"


def _position(key: str) -> int:
    return int(key[len(PREFIX) :])


def _tell(corrupt: CorruptRecordError, on_damage: Callable[[Damage], None] | None) -> None:
    if on_damage is None:
        raise corrupt
    on_damage(corrupt.damage)


def _decode(value: bytes, key: str) -> Link:
    try:
        return decode(value, key)
    except BadManifestError as problem:
        raise _broken(key, str(problem)) from problem


def _broken(key: str, why: str) -> CorruptRecordError:
    return CorruptRecordError(Damage(key, "the chain", 0, why))
