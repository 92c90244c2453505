"""Recorded files to silver, the canonical events in Parquet."""
