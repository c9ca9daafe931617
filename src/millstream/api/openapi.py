"""The OpenAPI description, made from the operations and the types of the contract."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from millstream.api import contract as c
from millstream.api.metrics import METRICS
from millstream.api.operations import OPERATIONS, PREFIX, Nothing, Operation

_REF = "#/components/schemas/{name}"
_REFUSALS = {
    400: "The request is not well-formed",
    401: "There is no valid token",
    403: "The token does not allow this, or another site sent the request",
    413: "The request is too large",
    421: "The host is not a name of this server",
    422: "A value is not allowed",
    429: "There are too many requests",
    503: "The run is not ready; retry",
}
_MEDIA = {415: "The request is not JSON"}
_CONFLICT = {409: "The run refuses this now"}
_GONE = {410: "The continuation is not valid any more"}


@cache
def description(version: str) -> dict[str, Any]:
    """The OpenAPI description of the API, in this version of the package."""
    described: list[Operation[Any, Any]] = [*OPERATIONS, SESSION, LOGIN_LINK]
    types = [kind for each in described for kind in (each.takes, each.answers)]
    types += [c.Problem, c.SnapshotChange, c.EventView, c.StreamQuery]
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    paths: dict[str, Any] = {
        f"{PREFIX}/stream": {"get": _stream(components)},
        f"{PREFIX}/openapi.json": {"get": _itself()},
        METRICS: {"get": _metrics()},
    }
    for each in described:
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = _operation(each, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "version": version,
            "description": "Look at a running workflow, and change it. Operations that change it "
            "need an operator's token; all others a viewer's.",
        },
        "security": [{"bearer": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "millstream"},
            },
        },
    }


SESSION: Operation[Nothing, Any] = Operation(
    "GET",
    "/session",
    "viewer",
    Nothing,
    c.Session,
    "What the caller may do, and until when",
    lambda _run, _: None,
)
LOGIN_LINK: Operation[c.LoginLinkRequest, Any] = Operation(
    "POST",
    "/login-links",
    "viewer",
    c.LoginLinkRequest,
    c.LoginLink,
    "A link that logs a browser in, once; not with more rights than the caller has",
    lambda _run, _: None,
)


def _operation(operation: Operation[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "x-right": operation.right,
        "responses": {
            "200": _answer(_schema(operation.answers), "application/json", "The answer"),
            **_refusals(operation),
        },
    }
    if operation.method == "POST":
        content = {"application/json": {"schema": _schema(operation.takes)}}
        described["requestBody"] = {"required": True, "content": content}
    elif operation.takes is not Nothing:
        described["parameters"] = _parameters(operation.takes.__name__, components)
    return described


def _refusals(operation: Operation[Any, Any]) -> dict[str, Any]:
    found = dict(_REFUSALS)
    if operation.method == "POST":
        found |= _MEDIA
    if operation.right == "operator" or operation.path.startswith("/state"):
        found |= _CONFLICT
    if operation.path == "/state/scan":
        found |= _GONE
    problem = {"$ref": _REF.format(name="Problem")}
    return {
        str(status): _answer(problem, "application/problem+json", text)
        for status, text in sorted(found.items())
    }


def _parameters(name: str, components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[name]
    return [
        {
            "name": parameter,
            "in": "query",
            "required": parameter in schema.get("required", ()),
            "schema": _without_null(kind),
        }
        for parameter, kind in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter is left out."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        schema = {**{k: v for k, v in schema.items() if k != "anyOf"}, **choices[0]}
    return {name: value for name, value in schema.items() if (name, value) != ("default", None)}


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _answer(schema: dict[str, Any], media: str, text: str) -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}


def _stream(components: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": "get_stream",
        "summary": "Changes as they happen: server-sent events named snapshot and event",
        "description": "The data of a snapshot is a SnapshotChange: the first has all parts of a "
        "Snapshot, the following ones those that changed. The data of an event is an EventView.",
        "x-right": "viewer",
        "parameters": _parameters("StreamQuery", components),
        "responses": {
            "200": _answer({"type": "string"}, "text/event-stream", "A stream of events"),
            **_refusals(SESSION),
        },
    }


def _metrics() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "operationId": "get_metrics",
        "summary": "The run in the text format of Prometheus",
        "x-right": "viewer",
        "responses": {
            "200": _answer(text, "text/plain", "Metrics"),
            **_refusals(SESSION),
        },
    }


def _itself() -> dict[str, Any]:
    return {
        "operationId": "get_openapi",
        "summary": "This description",
        "x-right": "viewer",
        "responses": {
            "200": _answer({"type": "object"}, "application/json", "The description"),
            **_refusals(SESSION),
        },
    }
