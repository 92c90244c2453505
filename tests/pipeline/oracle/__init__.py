"""The same tables in DuckDB, from the same files, implemented independently of the pipeline.

Each table is a file of plain SQL over the changes of each task (`changes.sql`). It shares only the meaning of
the columns with the pipeline. It reads only valid landed events, and determines outcomes at the newest event,
without an index lag.
"""

from tests.pipeline.oracle.comparison import differing_rows, rows_that_differ
from tests.pipeline.oracle.making import TABLES, make_tables, write_tables
from tests.pipeline.oracle.published import relations

__all__ = ["TABLES", "differing_rows", "make_tables", "relations", "rows_that_differ", "write_tables"]
