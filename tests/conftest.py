"""Settings for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure: properties are judged by their results, never by their time. The
# gate tries the same examples every time; ``make search`` tries others, and more of them.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile(
    "search", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "1000")), print_blob=True
)
settings.load_profile("gate")


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Register the runs of tests in a folder of their own, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
