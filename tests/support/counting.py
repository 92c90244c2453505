"""The calls or statements of a queue, on any store."""

from collections.abc import Iterator
from contextlib import contextmanager

from local import faults

from freshq import Queue
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore
from tests.conftest import StoreUnderTest
from tests.support import statements


@contextmanager
def counted_calls(queue: Queue, store: StoreUnderTest) -> Iterator[list[object]]:
    """Count the calls or statements of a queue."""
    seen: list[object] = []
    if store.client is not None:
        with faults.counted(store.client) as tally:
            yield seen
        seen += tally.operations
        return
    if not isinstance(core_of(queue).store, SqlStore):
        yield seen
        return
    with statements.sent(queue) as seen:
        yield seen
