"""The lease record of a process: no task is claimed unless the record in the table names it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from freshq.errors import Throttled
from freshq.model.task import Task, TaskStatus
from freshq.stores.base import Guard
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import Keyspace
from freshq.stores.dynamodb.leases import MAX_NAMED_BYTES, LeaseRecords, due_at, task_ids_of
from tests.support.forking import exit_code, forked
from tests.support.patience import PATIENCE_SECONDS

NOW = 1000.0
LEASE_SECONDS = 60.0
UNTIL = NOW + LEASE_SECONDS


@dataclass
class FakeTable:
    """The calls that lease records make; each write may fail, before or after it was carried out."""

    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    writes: int = 0
    lose_replies: int = 0
    before_put: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        calls: Any = self
        self.leases = LeaseRecords(calls, Keyspace(shards=1))

    def put(self, item: dict[str, Any], _condition: dict[str, Any]) -> None:
        self.writes += 1
        self.before_put()
        self.items[item["taskId"]["S"]] = item
        if self.lose_replies:
            self.lose_replies -= 1
            raise Throttled("no reply")

    def delete(self, item_id: str) -> None:
        self.items.pop(item_id)

    def named(self) -> set[str]:
        return {task_id for item in self.items.values() for task_id in task_ids_of(item)}

    def due(self) -> float:
        (item,) = self.items.values()
        return due_at(item)


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


def cover(table: FakeTable, *task_ids: str, at: float = NOW, ahead: tuple[str, ...] = ()) -> None:
    table.leases.cover("q", [(task_id, HOLDER) for task_id in task_ids], at + LEASE_SECONDS, at, ahead)


def changed(task_id: str, lease_until: float | None) -> Task:
    """Return the next version of a task that this process holds."""
    status = TaskStatus.SUCCESS if lease_until is None else TaskStatus.TAKEN
    return Task(
        task_id, "q", status, NOW, NOW, UNTIL, 0, "r",
        lease_token=None if lease_until is None else HOLDER, lease_until=lease_until,
    )  # fmt: skip


HOLDER = "token"
HELD = Guard(TaskStatus.TAKEN, lease_token=HOLDER)


class TestNaming:
    def test_what_was_named_ahead_needs_no_write(self, table: FakeTable) -> None:
        cover(table, "a", ahead=("b", "c"))
        cover(table, "b", at=NOW + 1)
        assert (table.writes, table.named()) == (1, {"a", "b", "c"})

    def test_what_was_not_named_is_written_first(self, table: FakeTable) -> None:
        cover(table, "a", ahead=("b",))
        cover(table, "c")
        assert (table.writes, table.named()) == (2, {"a", "c"})

    def test_a_record_that_is_due_covers_nothing_more(self, table: FakeTable) -> None:
        cover(table, "a", ahead=("b",))
        table.leases.of("q").forget(("a", "token"))
        cover(table, "b", at=UNTIL)
        assert table.writes == 2
        assert table.due() == UNTIL + LEASE_SECONDS

    def test_a_longer_lease_than_the_record_covers_is_written(self, table: FakeTable) -> None:
        cover(table, "a", ahead=("b",))
        table.leases.cover("q", [("b", "token")], UNTIL + 3 * LEASE_SECONDS, NOW)
        assert table.writes == 2

    def test_an_expired_lease_stays_in_its_record_for_the_sweep(self, table: FakeTable) -> None:
        cover(table, "a")
        cover(table, "b", at=UNTIL)
        assert sorted(task_ids_of(item) for item in table.items.values()) == [["a"], ["b"]]

    def test_the_record_is_due_no_later_than_the_first_lease_ends(self, table: FakeTable) -> None:
        cover(table, "a")
        table.leases.cover("q", [("b", "token")], NOW + 5, NOW)
        assert table.due() == NOW + 5
        table.leases.of("q").forget(("b", "token"))
        cover(table, "c", at=NOW + 1)
        assert table.due() == UNTIL  # halfway through the new lease it would be too early


class TestFailedWrites:
    def test_nothing_relies_on_a_version_whose_write_failed(self, table: FakeTable) -> None:
        """The write was carried out, so tasks that the version before it named ahead are no longer named."""
        cover(table, "a", ahead=("b",))
        table.lose_replies = 1
        with pytest.raises(Throttled):
            cover(table, "c")
        assert table.named() == {"a", "c"}
        cover(table, "b")
        assert {"a", "b"} <= table.named()

    def test_what_was_not_named_is_not_held(self, table: FakeTable) -> None:
        table.lose_replies = 1
        with pytest.raises(Throttled):
            cover(table, "a")
        table.leases.close()
        assert not table.items


class TestWriteInProgress:
    def test_no_claim_relies_on_the_version_that_is_being_replaced(self, table: FakeTable) -> None:
        cover(table, "a", ahead=("b",))
        claimer = threading.Thread(target=cover, args=(table, "b"))

        def claim_meanwhile() -> None:
            table.before_put = lambda: None
            claimer.start()

        table.before_put = claim_meanwhile
        cover(table, "c")
        claimer.join(PATIENCE_SECONDS)
        assert table.named() >= {"a", "b", "c"}

    def test_settling_and_extending_do_not_wait_for_it(self, table: FakeTable) -> None:
        cover(table, "a", "b")

        def settle_meanwhile() -> None:
            for task in (changed("a", None), changed("b", UNTIL + 30)):
                settler = threading.Thread(target=follow, args=(table, task), daemon=True)
                settler.start()
                settler.join(PATIENCE_SECONDS)
                assert not settler.is_alive()

        table.before_put = settle_meanwhile
        cover(table, "c")
        assert table.writes == 2

    def test_of_two_claims_at_once_the_second_waits_and_needs_no_write(self, table: FakeTable) -> None:
        claimer = threading.Thread(target=cover, args=(table, "b"))

        def claim_meanwhile() -> None:
            claimer.start()

        table.before_put = claim_meanwhile
        cover(table, "a", ahead=("b",))
        claimer.join(PATIENCE_SECONDS)
        assert (table.writes, table.named()) == (1, {"a", "b"})


def follow(table: FakeTable, task: Task, guard: Guard = HELD) -> None:
    with table.leases.following(task, guard):
        pass


class TestFollowing:
    def test_a_task_that_is_settled_is_forgotten(self, table: FakeTable) -> None:
        cover(table, "a")
        follow(table, changed("a", None))
        table.leases.close()
        assert not table.items

    def test_a_lost_lease_is_forgotten(self, table: FakeTable) -> None:
        cover(table, "a")
        with pytest.raises(ConditionFailed), table.leases.following(changed("a", None), HELD):
            raise ConditionFailed(None)
        table.leases.close()
        assert not table.items

    def test_an_unknown_outcome_leaves_the_task_to_the_sweep(self, table: FakeTable) -> None:
        cover(table, "a")
        with pytest.raises(Throttled), table.leases.following(changed("a", None), HELD):
            raise Throttled("no reply")
        table.leases.close()
        assert table.named() == {"a"}

    def test_a_longer_lease_needs_no_write_and_a_shorter_one_does(self, table: FakeTable) -> None:
        cover(table, "a")
        follow(table, changed("a", UNTIL + 30))
        assert table.writes == 1
        follow(table, changed("a", NOW + 5))
        assert (table.writes, table.due()) == (2, NOW + 5)

    def test_a_task_that_was_not_held_is_named_first(self, table: FakeTable) -> None:
        follow(table, changed("dead", UNTIL), Guard(TaskStatus.FAILURE))
        assert table.named() == {"dead"}

    def test_a_task_without_a_lease_is_no_concern(self, table: FakeTable) -> None:
        follow(table, changed("a", None), Guard(TaskStatus.PENDING))
        table.leases.close()
        assert (table.writes, table.items) == (0, {})


def test_no_record_names_more_than_fits_into_an_item(table: FakeTable) -> None:
    """Ids may have 1,024 bytes, and an item 400 KB. Tasks named by full records stay known."""
    ids = [f"{number:01000d}" for number in range(900)]
    for start in range(0, 900, 150):
        cover(table, *ids[start : start + 150])
    assert table.named() == set(ids)
    assert len(table.items) == 3
    assert max(sum(map(len, task_ids_of(item))) for item in table.items.values()) <= MAX_NAMED_BYTES
    with table.leases.following(changed(ids[0], UNTIL + LEASE_SECONDS), HELD):
        pass
    assert table.writes == 6  # a full record names it already


def test_a_task_that_a_full_record_names_is_forgotten(table: FakeTable) -> None:
    ids = [f"{number:01000d}" for number in range(400)]
    cover(table, *ids[:200])
    cover(table, *ids[200:])
    table.leases.of("q").forget((ids[0], HOLDER))
    with table.leases.following(changed(ids[0], UNTIL + LEASE_SECONDS), HELD):
        pass
    assert table.writes == 3  # it was not held any more, and is named again


def test_a_forked_child_names_its_tasks_in_its_own_record(table: FakeTable) -> None:
    cover(table, "a", ahead=("b",))

    def work() -> None:
        cover(table, "b")
        assert sorted(map(task_ids_of, table.items.values())) == [["a", "b"], ["b"]]

    assert exit_code(forked(work)) == 0
