"""The API keeps to its description, whatever it is sent."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from millstream.api.openapi import description
from millstream.api.operations import OPERATIONS, PREFIX
from tests.api.conftest import Scene

_described = {
    **description("1"),
    "paths": {path: of for path, of in description("1")["paths"].items() if "stream" not in path},
}
_schema = schemathesis.openapi.from_dict(_described)


@_schema.parametrize()
@settings(max_examples=25, deadline=None)
def test_every_answer_is_as_described(case: schemathesis.Case[Any]) -> None:
    scene = Scene()  # with a rate limit of its own
    headers = {"Authorization": f"Bearer {scene.tokens.issue('operator').text}"}

    answer = case.call(app=scene.app, base_url="http://127.0.0.1:1", headers=headers)

    assert answer.status_code < 500
    case.validate_response(
        answer,
        checks=[content_type_conformance, response_schema_conformance, status_code_conformance],
    )


def test_every_operation_is_described(scene: Scene) -> None:
    served = scene.client("viewer").get("/api/v1/openapi.json").json()

    assert served["info"]["version"] == "1.2.3"
    for operation in OPERATIONS:
        described = served["paths"][PREFIX + operation.path][operation.method.lower()]
        assert described["x-right"] == operation.right
