"""Running a workflow's functions: map tasks on Spark's workers, operators on the nodes."""
