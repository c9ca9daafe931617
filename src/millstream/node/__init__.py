"""The node: the process that owns the state of its slots."""
