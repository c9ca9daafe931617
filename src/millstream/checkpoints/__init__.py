"""Checkpoints: what is in a store, how epochs are committed in it, and how they are found again."""
