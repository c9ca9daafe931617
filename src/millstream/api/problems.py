"""Errors as answers: the HTTP status of each, in the form of RFC 9457."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from millstream.api.contract import Problem
from millstream.api.served_run import ContinuationGoneError
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunEndedError
from millstream.errors import ConfigError, MillstreamError
from millstream.ring.ring import RingError
from millstream.wire.persistence import NotReadyError
from millstream.wire.state_reads import ScanBrokenError

_STATUS: tuple[tuple[type[MillstreamError], int], ...] = (
    (ConfigError, 422),
    (ContinuationGoneError, 410),
    (NotReadyError, 503),
    (ScanBrokenError, 503),
    (RingError, 409),
    (RunEndedError, 409),
    (StateLostError, 409),
)


def status_of(problem: MillstreamError) -> int:
    """The status of an error: 409 for one that the state of the run explains."""
    return next((status for kind, status in _STATUS if isinstance(problem, kind)), 409)


def problem_response(status: int, detail: str) -> Response:
    """An answer that says what went wrong."""
    problem = Problem(status=status, title=HTTPStatus(status).phrase, detail=detail)
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(problem), status, headers, "application/problem+json")
