"""Recorded files to silver: canonical events in Parquet."""
