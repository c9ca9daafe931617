"""Benchmarks: one harness, and an adapter for every engine that is measured."""
