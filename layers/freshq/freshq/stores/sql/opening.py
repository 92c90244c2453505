"""Opens the store of a queue with the options of both."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from freshq.stores.sql.connection_limits import ConnectionLimits, connection_limits_for
from freshq.stores.sql.history import history_seconds_for
from freshq.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from collections.abc import Mapping


def open_store(
    url: str,
    table: str,
    options: Mapping[str, Any],
    history: object = None,
    history_seconds: float | None = None,
) -> tuple[SqlStore, dict[str, Any]]:
    """Return the store of a queue, and the options that are the queue's own.

    Args:
        url: Address of the database.
        table: Name of the table of tasks.
        options: Options of the queue and of `ConnectionLimits`, not checked yet.
        history: Whether to keep a history; None to leave it as it is.
        history_seconds: For how long; None for a week.

    Raises:
        ValueError: If an argument is wrong.
    """
    given = {field.name: options[field.name] for field in fields(ConnectionLimits) if field.name in options}
    others = {name: value for name, value in options.items() if name not in given}
    store = SqlStore(
        url,
        table,
        queue=others.get("name", "default"),
        limits=connection_limits_for(others.get("lease_seconds"), **given),
        history_seconds=history_seconds_for(history, history_seconds),
    )
    return store, others
