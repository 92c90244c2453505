"""A check of the options of a queue without a call to the store."""

import pytest

from freshq import Queue
from freshq.queue.core import core_of
from freshq.stores.memory import MemoryStore


def test_it_repeats_what_the_last_read_found() -> None:
    store = MemoryStore()
    ours, theirs = Queue(store, lease_seconds=9), Queue(store, lease_seconds=8)
    theirs.stats()
    core_of(theirs).options.check()
    ours.put("work")
    core_of(ours).options.check()
    with pytest.raises(ValueError, match="lease_seconds"):
        core_of(theirs).options.refresh()
    with pytest.raises(ValueError, match="lease_seconds"):
        core_of(theirs).options.check()
