"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A busy machine is no failure: properties are judged by their results, never by their time. The
# gate tries the same examples every time; ``make search`` tries others, and more of them.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile(
    "search", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "1000")), print_blob=True
)
settings.load_profile("gate")
