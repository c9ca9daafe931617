"""Elasticity: load, policies, and the actions that they suggest."""
