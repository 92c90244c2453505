"""A queue from its address, as the commands take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.queue import Queue

if TYPE_CHECKING:
    from typing import Unpack

    from freshq.options import QueueOptions

DYNAMODB: Final = "dynamodb://"
SQL: Final = "sql://"
DEFAULT_TABLE: Final = "tasks"
FORMS: Final = (
    "dynamodb://TABLE, sqlite:///FILE, postgresql://USER@HOST/NAME or mariadb://USER@HOST/NAME, "
    "the last three with #TABLE for another table than tasks"
)


def split_table(address: str) -> tuple[str, str]:
    """Return the url of a database and the table that an address names."""
    url, _, table = address.removeprefix(SQL).partition("#")
    return url, table or DEFAULT_TABLE


def open_queue(address: str, **options: Unpack[QueueOptions]) -> Queue:
    """Return the queue at an address.

    Raises:
        ValueError: If there can be none.
    """
    if address.startswith(DYNAMODB) and address != DYNAMODB:
        return Queue.dynamodb(address.removeprefix(DYNAMODB), **options)
    url, table = split_table(address)
    if "://" not in url or url.startswith(DYNAMODB):
        msg = f"must look like {FORMS}, got {address!r}"
        raise ValueError(msg)
    return Queue.sql(url, table, **options)
