"""The tables of resources in a relational database. Times are whole microseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from freshq.matching.places import MAX_NAME_BYTES, MAX_RESOURCE_ID_BYTES
from freshq.stores.sql.schema import STATUS_CHARS, TOKEN_BYTES, checked_table, key_text, long_text

if TYPE_CHECKING:
    from collections.abc import Mapping

DIGEST_CHARS: Final = 64
# A group, both strings quoted; the time and an id; and what separates them.
SORT_KEY_BYTES: Final = 800
LINE_KEY_BYTES: Final = 16 + 1 + MAX_RESOURCE_ID_BYTES


@dataclass(frozen=True)
class Tables:
    """The tables of one store.

    Attributes:
        metadata: All of them.
        resources: One row for each resource.
        entries: One row for each entry of a queued resource. `place` is the hash of its partition.
        names: One row for each attribute name.
        combinations: One row for each full combination of values, by its hash.
        callers: One row for each caller. `line_key` is set only while the caller waits.
        asks: One row for each question of a waiting caller. `place` is the hash of the question.
    """

    metadata: sa.MetaData
    resources: sa.Table
    entries: sa.Table
    names: sa.Table
    combinations: sa.Table
    callers: sa.Table
    asks: sa.Table


def tables_of(table: str, dialect: str) -> Tables:
    """Return the tables of a store, which all stores on the same tables share.

    Args:
        table: Name of the table of resources; the names of the others begin with it.
        dialect: Name of the database's dialect.

    Raises:
        ValueError: If the name is not valid.
    """
    return _tables_of(checked_table(table), dialect)


@lru_cache(maxsize=16)
def _tables_of(table: str, dialect: str) -> Tables:
    metadata = sa.MetaData()
    options: dict[str, Any] = {f"{dialect}_charset": "utf8mb4"} if dialect in ("mysql", "mariadb") else {}
    return Tables(
        metadata,
        _resources(table, metadata, options),
        _entries(table, metadata, options),
        sa.Table(
            f"{table}_names",
            metadata,
            sa.Column("name", key_text(MAX_NAME_BYTES), primary_key=True),
            **options,
        ),
        sa.Table(
            f"{table}_combinations",
            metadata,
            sa.Column("digest", sa.String(DIGEST_CHARS), primary_key=True),
            sa.Column("combination", long_text(), nullable=False),
            **options,
        ),
        _callers(table, metadata, options),
        sa.Table(
            f"{table}_asks",
            metadata,
            sa.Column("place", sa.String(DIGEST_CHARS), primary_key=True),
            sa.Column("line_key", key_text(LINE_KEY_BYTES), primary_key=True),
            **options,
        ),
    )


def _resources(table: str, metadata: sa.MetaData, options: Mapping[str, Any]) -> sa.Table:
    return sa.Table(
        table,
        metadata,
        sa.Column("resource_id", key_text(MAX_RESOURCE_ID_BYTES), primary_key=True),
        sa.Column("attributes", long_text(), nullable=False),
        sa.Column("status", sa.String(STATUS_CHARS), nullable=False),
        sa.Column("token", sa.String(TOKEN_BYTES), nullable=False),
        sa.Column("since_us", sa.BigInteger),
        sa.Column("lease_until_us", sa.BigInteger),
        sa.Column("caller_id", key_text(MAX_RESOURCE_ID_BYTES)),
        **options,
    )


def _entries(table: str, metadata: sa.MetaData, options: Mapping[str, Any]) -> sa.Table:
    return sa.Table(
        f"{table}_entries",
        metadata,
        sa.Column("place", sa.String(DIGEST_CHARS), primary_key=True),
        sa.Column("sort_key", key_text(SORT_KEY_BYTES), primary_key=True),
        sa.Column("resource_id", key_text(MAX_RESOURCE_ID_BYTES), nullable=False),
        sa.Column("last_name", key_text(MAX_NAME_BYTES), nullable=False),
        sa.Column("names", sa.SmallInteger, nullable=False),
        **options,
    )


def _callers(table: str, metadata: sa.MetaData, options: Mapping[str, Any]) -> sa.Table:
    callers = sa.Table(
        f"{table}_callers",
        metadata,
        sa.Column("caller_id", key_text(MAX_RESOURCE_ID_BYTES), primary_key=True),
        sa.Column("status", sa.String(STATUS_CHARS), nullable=False),
        sa.Column("token", sa.String(TOKEN_BYTES), nullable=False),
        sa.Column("since_us", sa.BigInteger, nullable=False),
        sa.Column("criteria", long_text(), nullable=False),
        sa.Column("line_key", key_text(LINE_KEY_BYTES)),
        sa.Column("resource_id", key_text(MAX_RESOURCE_ID_BYTES)),
        sa.Column("preference", sa.SmallInteger, nullable=False),
        sa.Column("met", long_text()),
        **options,
    )
    sa.Index(f"{table}_line", callers.c.line_key)
    return callers
