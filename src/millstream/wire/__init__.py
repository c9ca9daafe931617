"""How the processes of a run speak: handshake, calls, errors, the rows of blocks."""
