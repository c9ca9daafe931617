"""Progress reports of a run, and their display."""
