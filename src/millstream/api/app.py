"""The HTTP application: routes for the operations, the stream, logging in and the page."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from millstream.api.contract import LoginLink, LoginLinkRequest, Session, StreamQuery
from millstream.api.guard import LOGIN, Guard
from millstream.api.live_stream import LiveStreams
from millstream.api.login_page import unauthorised
from millstream.api.metrics import METRICS, exposition
from millstream.api.openapi import LOGIN_LINK, SESSION, description
from millstream.api.operations import OPERATIONS, PREFIX, Operation
from millstream.api.problems import problem_response, status_of
from millstream.api.served_run import ServedRun
from millstream.api.tokens import Grant, TokenBook
from millstream.dashboard import PAGE
from millstream.errors import MillstreamError

log = logging.getLogger("millstream")

Handler = Callable[[Request], Awaitable[Response]]


def application(
    run: ServedRun,
    tokens: TokenBook,
    *,
    cookie: str,
    version: str,
    hosts: Collection[str] = (),
    clock: Callable[[], float] = time.monotonic,
    is_ending: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The application that serves a run to whoever has a token; ``clock`` is that of rates."""
    handlers = _Handlers(run, tokens, cookie, version, LiveStreams(run, is_ending=is_ending))
    routes: list[BaseRoute] = [
        *(_route(operation, handlers.answer(operation)) for operation in OPERATIONS),
        _route(SESSION, handlers.session),
        _route(LOGIN_LINK, handlers.login_link),
        Route(f"{PREFIX}/stream", handlers.stream, methods=["GET"]),
        Route(f"{PREFIX}/openapi.json", handlers.openapi, methods=["GET"]),
        Route(METRICS, handlers.metrics, methods=["GET"]),
        Route(LOGIN, handlers.login, methods=["GET"]),
        Route("/", handlers.page, methods=["GET"]),
        Mount("/assets", StaticFiles(directory=PAGE, check_dir=False)),
    ]
    errors: dict[Any, Any] = {HTTPException: _refused, Exception: _failed}
    served = Starlette(routes=routes, exception_handlers=errors)
    return Guard(served, tokens, cookie, hosts, clock)


def _route(operation: Operation[Any, Any], handler: Handler) -> Route:
    return Route(PREFIX + operation.path, handler, methods=[operation.method])


class _Handlers:
    def __init__(
        self,
        run: ServedRun,
        tokens: TokenBook,
        cookie: str,
        version: str,
        streams: LiveStreams,
    ) -> None:
        self._run = run
        self._tokens = tokens
        self._cookie = cookie
        self._version = version
        self._streams = streams

    def answer(self, operation: Operation[Any, Any]) -> Handler:
        """The handler of an operation; it runs in a thread, because it may wait for nodes."""

        async def handler(request: Request) -> Response:
            if not _grant(request).allows(operation.right):
                return problem_response(403, f"this needs an {operation.right}'s token")
            try:
                given = await _input(request, operation)
                answer = await run_in_threadpool(operation.handle, self._run, given)
            except msgspec.DecodeError as problem:  # also of what is valid JSON and not allowed
                is_json = isinstance(problem, msgspec.ValidationError)
                return problem_response(422 if is_json else 400, str(problem))
            except MillstreamError as problem:
                return problem_response(status_of(problem), str(problem))
            return _json(answer)

        return handler

    async def session(self, request: Request) -> Response:
        grant = _grant(request)
        return _json(Session(workflow=self._run.workflow, right=grant.right, expires=grant.expires))

    async def login_link(self, request: Request) -> Response:
        try:
            wanted: LoginLinkRequest = await _input(request, LOGIN_LINK)
        except msgspec.DecodeError as problem:
            is_json = isinstance(problem, msgspec.ValidationError)
            return problem_response(422 if is_json else 400, str(problem))
        if not _grant(request).allows(wanted.right):
            return problem_response(403, "a viewer cannot make a link for an operator")
        code = self._tokens.login_code(wanted.right)
        base = f"{request.url.scheme}://{request.headers['host']}"
        url = f"{base}{LOGIN}?code={code.text}"
        return _json(LoginLink(url=url, right=wanted.right, expires=code.expires))

    async def login(self, request: Request) -> Response:
        """Exchange the code of a link, once, for a cookie; HEAD must not use it up."""
        if request.method != "GET":
            return Response()
        token = self._tokens.redeem(request.query_params.get("code", ""))
        if token is None:
            return unauthorised(
                request.scope,
                "this link was used before or has expired; `millstream dashboard NAME` prints a "
                "new one",
                "This link was used before or has expired.",
            )
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self._cookie,
            token.text,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def stream(self, request: Request) -> Response:
        try:
            query = msgspec.convert(dict(request.query_params), StreamQuery, strict=False)
        except msgspec.ValidationError as problem:
            return problem_response(422, str(problem))
        if self._streams.are_full:
            return problem_response(503, "too many streams are open; close one")
        messages = self._streams.messages(query.since, _grant(request).expires)
        return StreamingResponse(messages, media_type="text/event-stream")

    async def metrics(self, _: Request) -> Response:
        try:
            now = await run_in_threadpool(self._run.snapshot)
        except MillstreamError as problem:
            return problem_response(status_of(problem), str(problem))
        return Response(exposition(now), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        return _json(description(self._version))

    async def page(self, _: Request) -> Response:
        index = PAGE / "index.html"
        if not index.is_file():
            return problem_response(404, "this package has no dashboard page; the API is in /api")
        return FileResponse(index)


def _grant(request: Request) -> Grant:
    grant: Grant = request.state.grant
    return grant


async def _input(request: Request, operation: Operation[Any, Any]) -> Any:
    if operation.method == "GET":
        # Starlette keeps the last of equal names.
        return msgspec.convert(dict(request.query_params), operation.takes, strict=False)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise HTTPException(415, "send JSON, as Content-Type: application/json")
    return msgspec.json.decode(await request.body(), type=operation.takes)


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _refused(_: Request, problem: HTTPException) -> Response:
    return problem_response(problem.status_code, problem.detail)


async def _failed(request: Request, problem: Exception) -> Response:
    log.error("the HTTP API failed to answer %s", request.url.path, exc_info=problem)
    return problem_response(500, "the server failed; the log of the driver says why")
