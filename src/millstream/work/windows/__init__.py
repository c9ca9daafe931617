"""The operators of windowed jobs."""
