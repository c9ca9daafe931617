"""The only importer of pyspark: sessions, stages, feeds, sources, sinks and the run."""
