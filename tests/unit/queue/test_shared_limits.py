"""Shared limits: when a worker asks the store for its share, and how it uses the answer."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from typing_extensions import override

from freshq.policy import ConcurrencyLimit
from freshq.policy.limits import SharedBucket
from freshq.queue.shared.limits import SharedSlots, SharedTokens
from freshq.stores.base import SharedRecord
from freshq.stores.memory import MemoryStore

START = 1000.0


class CountingStore(MemoryStore):
    """Counts how often a record was read; may lose every race."""

    def __init__(self) -> None:
        """Start with nothing read."""
        super().__init__()
        self.reads = 0
        self.always_late = False

    @override
    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        self.reads += 1
        return super().read_record(queue, name)

    @override
    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        return not self.always_late and super().write_record(queue, name, values, version)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def slots_of(store: CountingStore, limit: ConcurrencyLimit, wanted: int, queue: str = "q") -> SharedSlots:
    return SharedSlots(store, queue, limit, wanted)


def asking_times(store: CountingStore, slots: SharedSlots, seconds: float) -> list[float]:
    """Return when a worker asked for slots, that looks every 1/16 s."""
    times = []
    for look in range(round(seconds * 16)):
        before = store.reads
        slots.free(0, START + look / 16)
        if store.reads > before:
            times.append(look / 16)
    return times


class TestSlots:
    def test_who_has_all_asks_once_a_window(self, store: CountingStore) -> None:
        slots = slots_of(store, ConcurrencyLimit.fixed(4), wanted=4)
        assert asking_times(store, slots, 11) == [0, 10]

    @pytest.mark.parametrize(
        ("window_seconds", "times"), [(10.0, [0, 1, 2, 3]), (2.0, [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5])]
    )
    def test_who_has_too_few_asks_again_each_second_or_four_times_a_window(
        self, store: CountingStore, window_seconds: float, times: list[float]
    ) -> None:
        limit = ConcurrencyLimit(2, 2, window_seconds)
        assert slots_of(store, limit, wanted=2).free(2, START + 4) == 0
        assert asking_times(store, slots_of(store, limit, wanted=2), 4) == times

    def grown(self, slots: SharedSlots, windows: int) -> int:
        """Return the slots after some windows in which all were used and all tasks succeeded."""
        for window in range(windows):
            for _ in range(slots.free(0, START + 10 * window)):
                slots.started()
                slots.succeeded()
        return slots.free(0, START + 10 * windows)

    def test_a_push_back_lowers_the_limit_once(self, store: CountingStore) -> None:
        slots = slots_of(store, ConcurrencyLimit(1, 40), wanted=40)
        assert self.grown(slots, 9) == 10
        slots.pushed_back()
        assert [slots.free(0, START + 90 + 10 * window) for window in (1, 2, 3)] == [7, 7, 7]

    def test_the_limit_does_not_grow_by_what_was_used_long_ago(self, store: CountingStore) -> None:
        slots = slots_of(store, ConcurrencyLimit(1, 40), wanted=40)
        assert self.grown(slots, 5) == 6
        for window in range(5, 9):
            slots.started()
            slots.succeeded()
            slots.free(0, START + 10 * window + 10)
        assert slots.free(0, START + 100) == 6

    def test_a_new_worker_does_not_lower_the_limit(self, store: CountingStore) -> None:
        limit = ConcurrencyLimit(1, 40)
        slots, new = (slots_of(store, limit, wanted=40) for _ in range(2))
        assert self.grown(slots, 5) == 6
        new.free(0, START + 51)
        assert slots.free(0, START + 60) + new.free(0, START + 60) == 6

    def test_the_record_says_in_which_window_the_limit_moved(self, store: CountingStore) -> None:
        self.grown(slots_of(store, ConcurrencyLimit(1, 40), wanted=40), 1)
        record = store.read_record("q", "slots")
        assert record is not None
        assert record.values["limit"] == {"limit": 2.0, "moved": START / 10, "lowered": -1}

    def test_each_queue_has_its_own_limit(self, store: CountingStore) -> None:
        for queue in ("q", "r"):
            assert slots_of(store, ConcurrencyLimit.fixed(4), wanted=4, queue=queue).free(0, START) == 4


class TestTokens:
    def tokens(self, store: CountingStore, rate: float = 0.5, burst: int = 2) -> SharedTokens:
        return SharedTokens(store, "q", SharedBucket(rate, burst, block=burst))

    def test_an_empty_bucket_says_when_to_ask_again(self, store: CountingStore) -> None:
        tokens = self.tokens(store)
        assert tokens.seconds_until_next(START) == 0
        assert tokens.available(START, wanted=5) == 2
        tokens.take(2)
        assert tokens.available(START, wanted=5) == 0
        waits = [tokens.seconds_until_next(START + seconds) for seconds in (0, 0.5, 1.5, 2, 3)]
        assert waits == [2, 1.5, 0.5, 0, 0]

    def test_the_store_is_asked_only_when_that_may_help(self, store: CountingStore) -> None:
        tokens = self.tokens(store)
        assert (tokens.available(START, wanted=0), store.reads) == (0, 0)
        assert (tokens.available(START, wanted=1), store.reads) == (1, 1)
        assert (tokens.available(START + 0.5, wanted=5), store.reads) == (2, 1)  # leased in a block
        tokens.take(2)
        assert (tokens.available(START + 0.5, wanted=1), store.reads) == (0, 2)
        assert (tokens.available(START + 1.9375, wanted=1), store.reads) == (0, 2)
        assert (tokens.available(START + 2, wanted=1), store.reads) == (1, 3)

    def test_leased_tokens_end_with_their_lease(self, store: CountingStore) -> None:
        tokens = self.tokens(store, rate=0.001)
        assert tokens.available(START, wanted=2) == 2
        assert tokens.available(START + 1, wanted=2) == 0

    def test_without_a_lease_there_are_none(self, store: CountingStore) -> None:
        store.always_late = True
        assert self.tokens(store).available(START, wanted=2) == 0

    def test_each_queue_has_its_own_bucket(self, store: CountingStore) -> None:
        for queue in ("q", "r"):
            tokens = SharedTokens(store, queue, SharedBucket(0.5, burst=2, block=2))
            assert tokens.available(START, wanted=2) == 2
            assert store.read_record(queue, "tokens") is not None

    def test_dear_tasks_are_charged_at_once_and_later_ones_wait(self, store: CountingStore) -> None:
        one, other = self.tokens(store, rate=10, burst=20), self.tokens(store, rate=10, burst=20)
        assert one.available(START, wanted=1) == 1
        assert one.take(120) == 1
        assert (other.available(START, wanted=1), other.take(1)) == (0, 0)
        assert one.seconds_until_next(START) == pytest.approx(10.1)
        assert other.available(START + 10, wanted=1) == 0
        one.correct(-115)  # it took only 5
        assert one.available(START + 10, wanted=9) == 9

    def test_what_a_worker_owes_is_charged_when_it_leaves(self, store: CountingStore) -> None:
        one, other = self.tokens(store, rate=0.5, burst=2), self.tokens(store, rate=0.5, burst=2)
        assert one.available(START, wanted=1) == 1
        one.take(1)
        one.correct(100)
        one.leave()
        assert other.available(START + 2, wanted=1) == 0

    @pytest.mark.parametrize("seed", range(3))
    def test_costs_use_the_rate_and_no_window_exceeds_it(self, store: CountingStore, seed: int) -> None:
        rate, burst, dice, now = 100.0, 100, Random(seed), START
        workers = [SharedTokens(store, "q", SharedBucket(rate, burst, block=5)) for _ in range(3)]
        started = list[tuple[float, float]]()
        while now < START + 60:
            worker, units = dice.choice(workers), min(300.0, dice.lognormvariate(3.5, 1))
            if worker.available(now, wanted=1) and worker.take(units):
                started.append((now, units))
                worker.correct(took := dice.uniform(-0.5, 0.5) * units)
                started[-1] = (now, units + took)
            now += dice.expovariate(30)
        largest = max(units for _at, units in started)
        for place, (since, _units) in enumerate(started):
            used = 0.0
            for at, units in started[place:]:
                used += units  # beside corrections under way, and a block of each worker
                assert used <= burst + rate * (at - since) + largest + 3 * (150 + 5)
        assert sum(units for _at, units in started) >= 0.95 * (burst + rate * 60)
