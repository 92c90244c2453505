"""The record of the workers that have slowed down."""

from freshq.queue.gauges import KEPT_SECONDS, share_breaker, workers_slowed
from freshq.stores.memory import MemoryStore


def test_workers_count_while_they_probe() -> None:
    store = MemoryStore()
    share_breaker(store, "mail", "a", 110.0, 100.0)
    share_breaker(store, "mail", "b", 120.0, 101.0)
    assert (workers_slowed(store, "mail", 101.0), workers_slowed(store, "other", 101.0)) == (2, 0)
    share_breaker(store, "mail", "a", None, 102.0)
    assert workers_slowed(store, "mail", 102.0) == 1
    assert workers_slowed(store, "mail", 120.0 + KEPT_SECONDS) == 0
    share_breaker(store, "mail", "c", 300.0, 290.0)  # drops an ended worker
    record = store.read_record("mail", "freshq#breakers")
    assert record is not None
    assert dict(record.values) == {"c": 300.0}
