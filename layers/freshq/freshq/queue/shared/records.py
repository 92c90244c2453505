"""One change of a shared record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from freshq.stores.base import Store

# Each try that is lost means that another process won: so many in a row are rare, and the caller can
# wait for its next turn.
TRIES: Final = 8


def change_record(
    store: Store, queue: str, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> bool:
    """Read a record, compute what it becomes, and write that unless the record changed in between.

    Args:
        store: The store.
        queue: Name of the queue.
        name: Name of the record.
        change: Returns the new values, given the old ones (empty if there is no record), or None to
            leave the record alone. May be called several times.

    Returns:
        Whether the last values that `change` saw are in force: written, or left alone by it. False if
        others changed the record each time.

    Raises:
        StoreError: If the store did not answer.
    """
    for _ in range(TRIES):
        record = store.read_record(queue, name)
        values = change({} if record is None else record.values)
        if values is None:
            return True
        if store.write_record(queue, name, values, None if record is None else record.version):
            return True
    return False
