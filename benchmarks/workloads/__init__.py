"""Workloads over rows with event times: each is data, a task, the right answer, and its forms.

A module defines what all engines do in the words of each: a function of streams for Millstream,
one of frames for Spark, and SQL for Flink and for DuckDB, whose batch answer is the right one.
"""
