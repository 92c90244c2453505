"""One run from files to published tables, a stream of such runs, and their Iceberg tables."""
