"""Workflows as frozen descriptions, and the plan made of them."""
