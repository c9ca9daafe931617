"""Reducers of windowed jobs, as nodes run them."""
