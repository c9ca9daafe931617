"""One back-end after the other, and a fresh store for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.backends import SCHEMES, Backend, backend_of, missing


@pytest.fixture(scope="session", params=SCHEMES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    scheme: str = request.param
    if (reason := missing(scheme)) is not None:
        pytest.skip(reason)
    backend = backend_of(scheme)
    try:
        backend.start(tmp_path_factory.mktemp(scheme))
        yield backend
    finally:
        backend.stop()


@pytest.fixture
def backend(served: Backend) -> Backend:
    served.fresh(small=False)
    return served


@pytest.fixture
def small_backend(served: Backend) -> Backend:
    served.need("fill_up")
    served.fresh(small=True)
    return served
