"""Checkpoints: what is in a store, how epochs are committed to it, and how they are restored."""
