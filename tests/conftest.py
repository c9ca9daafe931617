"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure: properties are judged by their results, never by their time.
settings.register_profile("millstream", deadline=None)
settings.load_profile("millstream")
