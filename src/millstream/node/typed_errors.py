"""Errors of background work, which are reported to the coordinator and so must be typed."""

from __future__ import annotations

from millstream.errors import MillstreamError


class BackgroundTaskError(MillstreamError):
    """Background work of a node failed with an error that is not ours."""


class StoreWriteError(MillstreamError):
    """A record could not be serialised or written, with an error that is not ours."""


def typed(problem: Exception, wrapper: type[MillstreamError], what: str) -> MillstreamError:
    """The error itself if it is a ``MillstreamError``, or else wrapped into one."""
    if isinstance(problem, MillstreamError):
        return problem
    return wrapper(f"{what} failed: {type(problem).__name__}: {problem}")
