"""What a node writes to the store, and how its slots are restored from it."""
