"""A run from files to published tables, a stream of runs, and copies of the tables in Spark catalogs."""
