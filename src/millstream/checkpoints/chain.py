"""The chain in the store: one total order of claims and manifests, decided by put-if-absent.

Link p is put, if absent, under ``chain/p``; of two writers the second one fails. So a superseded
driver finds the claim of its successor where its next manifest should go, and stops; and a claimant
sees a manifest that was put just before its claim, and tries the next position.

Old links are deleted from the front, the newest one never. A driver that slept meanwhile finds its
position free again; so it checks afterwards that its link is at the end of the chain, or right
after the last one that it has read. A link in a gap does not count.
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
            f"incarnation {self.incarnation} of this workflow was superseded by {newer}{self.who}: "
            "the epoch under way was not published by this one. Two drivers cannot run on one "
            "checkpoint; to run both, give each its own"
        )


_RESTART = "restart the workflow on the same checkpoint when the store is available"


class CommitUnknownError(MillstreamError):
    """A manifest was written, but it is unknown whether it is durable and in the chain."""

    def __init__(self, epoch: int, problem: str, advice: str = _RESTART) -> None:
        super().__init__(epoch, problem, advice)
        self.epoch, self.problem, self.advice = epoch, problem, advice

    def __str__(self) -> str:
        return (
            f"it is unknown whether epoch {self.epoch} is committed: {self.problem}. Nothing is "
            f"lost: {self.advice}"
        )


class Chain:
    """The chain of one checkpoint, read and written."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, on_damage: Callable[[Damage], None] | None = None) -> Lineage:
        """Read the whole chain.

        Damaged and missing links are passed to ``on_damage``; without it, the first one is raised.
        What they committed appears as a gap between manifests.
        """
        links, position = self.links(on_damage)
        return replace(lineage_of(links), position=position)

    def links(self, on_damage: Callable[[Damage], None] | None = None) -> tuple[list[Link], int]:
        """All links, also withdrawn ones, and the position after the last."""
        keys = self._store.scan(PREFIX)
        try:
            known = self._store.get(keys)
        except CorruptRecordError:
            known = {}  # read one by one, to see which is damaged
        links: list[Link] = []
        expected = -1
        for key in keys:
            position = _position(key)
            if 0 <= expected < position:
                _report(_broken(key_of(expected), "the link is missing"), on_damage)
            try:
                links.append(self._link(key, known))
            except CorruptRecordError as corrupt:
                _report(corrupt, on_damage)
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
            self._remove_from_gap(claim.position, later)
            return None
        return seen.then(claim)

    def withdraw(self, claimed: Lineage) -> None:
        """Withdraw a claim that is the newest link, or raise ``SupersededError``."""
        self.require_newest(claimed)
        self._store.delete([key_of(claimed.position - 1)])

    def commit(self, seen: Lineage, manifest: Manifest) -> Lineage:
        """Commit epochs: the manifest becomes the next link, or ``SupersededError`` is raised."""
        manifest = replace(manifest, position=seen.position, token=uuid.uuid4().hex)
        try:
            won = self._put(manifest) and self._is_linked(seen, manifest)
        except StoreError as problem:
            raise CommitUnknownError(manifest.epoch, str(problem)) from problem
        if not won:
            raise self._superseded(manifest.position, manifest.incarnation)
        return seen.then(manifest)

    def has_grown(self, seen: Lineage) -> bool:
        """Whether links were added since."""
        return bool(self._later(seen.position - 1))

    def was_claimed(self, seen: Lineage) -> bool:
        """Whether links were added since that are not commits of the incarnation seen."""
        keys = [key_of(position) for position in self._later(seen.position - 1)]
        if not keys:
            return False
        try:
            found = self._store.get(keys)
            links = [self._link(key, found) for key in keys]
        except CorruptRecordError:
            return True  # it may have been a claim
        return any(
            isinstance(link, Claim) or link.incarnation != seen.incarnation for link in links
        )

    def require_newest(self, seen: Lineage) -> None:
        """Raise ``SupersededError`` if the chain has grown since it was seen."""
        if self.has_grown(seen):
            raise self._superseded(seen.position, seen.incarnation)

    def _put(self, link: Link) -> bool:
        """Put a link; whether it is in the chain, also if only the answer was lost."""
        key = key_of(link.position)
        if self._store.put_if_absent(key, encode(link)):
            return True
        try:
            return link.token.encode() in self._store.get([key]).get(key, b"")
        except CorruptRecordError:
            return False

    def _is_linked(self, seen: Lineage, manifest: Manifest) -> bool:
        """Whether a link that was put follows the last one seen, and not a gap."""
        before, last = key_of(manifest.position - 1), seen.last
        found = self._store.get([before]).get(before, b"")
        if last is not None and last.token.encode() in found:
            return True
        later = self._later(manifest.position)
        if not later:
            return True  # the link before it has just been deleted
        self._remove_from_gap(manifest.position, later)
        if manifest.position + 1 in later:
            raise CommitUnknownError(
                manifest.epoch,
                "another driver has already added a link after it",
                "leave the newer driver running, it resumes from the checkpoint; do not restart "
                "this one",
            )
        return False

    def _later(self, position: int) -> list[int]:
        """The positions of links after a position."""
        return [at for at in map(_position, self._store.scan(PREFIX)) if at > position]

    def _remove_from_gap(self, position: int, later: list[int]) -> None:
        """Delete a link that is in a gap."""
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
        """The error for an incarnation, if a newer one has claimed the checkpoint."""
        newest = self.read(on_damage=lambda _: None)
        if newest.incarnation <= incarnation:
            return None
        who = "" if newest.claim is None else _who(newest.claim)
        return SupersededError(incarnation, newest.incarnation, who)

    def delete_before(self, before: int) -> None:
        """Delete the links before a position, oldest first."""
        old = [key for key in self._store.scan(PREFIX) if _position(key) < before]
        for key in old:
            self._store.delete([key])


def key_of(position: int) -> str:
    """The key of a link; keys have the order of positions."""
    return f"{PREFIX}{position:012d}"


def lost_origin(lineage: Lineage) -> Damage | None:
    """The damage if the newest claim resumes from an epoch that is not in the chain.

    Links that are missing at the front were deleted, as a rule because they are not needed.
    """
    claim = lineage.claim
    if claim is None or claim.after <= lineage.epoch:
        return None
    return _broken(
        key_of(claim.position),
        f"the manifest of epoch {claim.after}, from which incarnation {claim.incarnation} "
        "resumes, is missing",
    ).damage


def _who(claim: Claim) -> str:
    return f" (process {claim.pid} on {claim.host})"


def _position(key: str) -> int:
    return int(key[len(PREFIX) :])


def _report(corrupt: CorruptRecordError, on_damage: Callable[[Damage], None] | None) -> None:
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
