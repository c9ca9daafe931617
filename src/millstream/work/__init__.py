"""Running a workflow's functions: map tasks on Spark's workers, reducing on the nodes."""
