"""Chooses how tasks are put into a store: in the caller's transaction, or in their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, get_args

from freshq.errors import quoted
from freshq.stores.conflicts import OnConflict, PutResult, put_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.model.task import Task
    from freshq.stores.base import Store
    from freshq.stores.transactions import Connection, Transactions

Putter: TypeAlias = "Callable[[Sequence[Task]], Sequence[PutResult]]"


def transactions_of(store: Store, what: str) -> Transactions:
    """Return the transactional verbs of a store.

    Args:
        store: The store.
        what: The argument or verb that needs them.

    Raises:
        ValueError: If the store has no transactions.
    """
    if store.transactions is None:
        msg = f"{what}: needs a queue in a SQL database (Queue.sql), this one is in {type(store).__name__}"
        raise ValueError(msg)
    return store.transactions


def putter(store: Store, on_conflict: OnConflict | None, connection: Connection | None) -> Putter:
    """Return the function that puts tasks into a store.

    Args:
        store: The store.
        on_conflict: What to do with a live task of the same id; None: an id that is known is a duplicate.
        connection: The caller's transaction; None: commit at once.

    Raises:
        ValueError: If an argument is wrong, or the store has no transactions.
    """
    if on_conflict not in (None, *get_args(OnConflict)):
        msg = f"on_conflict: must be 'ignore', 'update' or None, got {quoted(on_conflict)}"
        raise ValueError(msg)
    if connection is not None:
        transactions = transactions_of(store, "connection")
        return lambda tasks: transactions.put(tasks, on_conflict, connection)
    if on_conflict is None:
        return lambda tasks: [put_result(added) for added in store.insert(tasks)]
    return lambda tasks: store.put_over(tasks, on_conflict)
