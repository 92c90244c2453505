"""The same tables by DuckDB, from the same files, written down independently of the pipeline.

Every table is a file of plain SQL over each task's list of changes (`changes.sql`); nothing is shared with
the pipeline but the meaning of the columns. It knows landed events only, takes every line to be sound, and
says the outcome at the newest event, without a lag of the index.
"""

from tests.pipeline.oracle.comparison import differing_rows, rows_that_differ
from tests.pipeline.oracle.making import TABLES, make_tables, write_tables

__all__ = ["TABLES", "differing_rows", "make_tables", "rows_that_differ", "write_tables"]
