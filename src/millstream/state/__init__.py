"""Fragments, keyed and columnar state, aggregates, and their codecs."""
