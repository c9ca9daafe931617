"""Panes: the state of windowed jobs, and how windows are put together from it."""
