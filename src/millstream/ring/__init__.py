"""Keys, hashes, slots and their owners."""
