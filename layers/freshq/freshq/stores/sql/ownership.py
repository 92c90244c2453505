"""Whether tables that exist are freshq's own: an application may have tables of the same names."""

from __future__ import annotations

import sqlalchemy as sa

from freshq.errors import StoreError
from freshq.stores.sql.failures import FOREIGN_TABLE


def check_owned(connection: sa.Connection, metadata: sa.MetaData) -> None:
    """Check that those of the tables that exist are freshq's, before they are changed or deleted.

    A table of freshq has every column that is never null: later versions add others only.

    Raises:
        StoreError: If one is not.
    """
    inspector = sa.inspect(connection)
    for table in metadata.sorted_tables:
        if not inspector.has_table(table.name):
            continue
        found = {column["name"] for column in inspector.get_columns(table.name)}
        if any(column.name not in found for column in table.columns if not column.nullable):
            msg = f"table {table.name!r}: {FOREIGN_TABLE}; nothing was changed"
            raise StoreError(msg)
