"""Keys, hashes, slots and who owns them."""
