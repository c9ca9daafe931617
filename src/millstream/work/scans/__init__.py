"""Reading the files of an epoch in Python tasks, with the same rows as Spark's own readers."""
