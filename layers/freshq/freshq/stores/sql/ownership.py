"""Whether tables that exist are freshq's own: an application may have tables of the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from freshq.errors import StoreError
from freshq.stores.sql.failures import FOREIGN_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

# The columns that are never null in new tables, and that the oldest ones of freshq lack.
LATE_COLUMNS: Final = ("agenda",)


def check_owned(connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
    """Check that those of the tables that exist are freshq's, before they are read, changed or deleted.

    A table of freshq of any version has every column that is never null, apart from `LATE_COLUMNS`, and
    whole numbers where freshq keeps them.

    Raises:
        StoreError: If one is not.
    """
    inspector = sa.inspect(connection)
    for table in tables:
        if not inspector.has_table(table.name):
            continue
        found = {column["name"]: column["type"] for column in inspector.get_columns(table.name)}
        needed = (column for column in table.columns if not column.nullable)
        if not all(_fits(column, found) for column in needed if column.name not in LATE_COLUMNS):
            msg = f"table {table.name!r}: {FOREIGN_TABLE}; nothing was changed"
            raise StoreError(msg)


def _fits(column: sa.Column[object], found: dict[str, sa.types.TypeEngine[object]]) -> bool:
    is_whole = isinstance(column.type, sa.Integer)
    return column.name in found and (not is_whole or isinstance(found[column.name], sa.Integer))
