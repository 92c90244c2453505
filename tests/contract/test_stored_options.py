"""The options of a queue live with the queue: every process that opens it follows them."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from freshq import AsyncQueue, Backoff, GroupRule, GroupRules, Queue, TaskStatus
from freshq.errors import Unreachable
from freshq.feeds.relay import TaskCopy
from freshq.model.storable_options import RECORD, QueueRules
from freshq.policy import AdmissionLimit, BacklogLimit, CodelRule
from freshq.queue.core import core_of
from freshq.testing import FaultyStore
from tests.conftest import StoreUnderTest
from tests.support.attached import Shipments
from tests.support.one_thread_patch import confined
from tests.support.refusals import refused


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which five seconds have passed for every process."""
    real, passed = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", confined(lambda: real() + sum(passed), time.monotonic))
    return lambda: passed.append(5.0)


def reads_of_options(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each read of the stored options."""
    store, reads = core_of(queue).store, list[str]()
    read = store.read_record

    def counted(name: str, record: str) -> Any:
        if record == RECORD:
            reads.append(name)
        return read(name, record)

    monkeypatch.setattr(store, "read_record", counted)
    return reads


def numbered(queue: Queue, tasks: int = 3) -> None:
    for number in range(tasks):
        queue.put(number, task_id=f"t{number}")


def test_a_queue_opened_without_options_has_those_of_its_creation(store: StoreUnderTest) -> None:
    store.queue(order="fifo", max_attempts=1, max_age_seconds=50, reserve="p90").create_table()
    queue = store.queue()
    numbered(queue)
    (claim,) = queue.claim()
    assert claim.task.payload == 0
    assert claim.task.deadline == claim.task.created + 50
    assert queue.retry(claim).status is TaskStatus.FAILURE
    assert str(queue.admin.config.reserve) == "p90"
    named = store.queue(order="fifo", lease_seconds=60)
    named.configure()
    sources = {name: core_of(named).options.source(name) for name in ("order", "lease_seconds", "codel")}
    assert sources == {"order": "stored", "lease_seconds": "default", "codel": "default"}
    assert store.queue(name="other").configure().order == "lifo"


def test_another_value_is_refused_by_each_verb_and_nothing_is_written(store: StoreUnderTest) -> None:
    store.queue(order="fifo").create_table()
    wrong = store.queue(order="lifo", max_attempts=2)
    said = r"order: queue 'default' has fifo stored, and lifo was named;.*configure\(order=\.\.\.\)"
    for verb in (lambda: wrong.put(1), wrong.claim, wrong.stats, wrong.create_table, wrong.configure):
        with pytest.raises(ValueError, match=said + ".*freshq configure --order lifo.*override=True"):
            verb()
    queue = store.queue(order="fifo")
    assert queue.stats().pending == 0
    assert queue.configure().max_attempts == 5
    # The remedy works on the queue that was refused.
    with pytest.raises(ValueError, match="max_attempts: queue 'default' has 5 by default, and 2 was named"):
        wrong.configure(order="lifo")
    assert wrong.configure(order="lifo", max_attempts=2).max_attempts == 2
    numbered(wrong)
    assert wrong.claim()[0].task.payload == 2


OTHERS: dict[str, Any] = {
    "order": "fifo",
    "max_age_seconds": None,
    "max_attempts": 9,
    "lease_seconds": 5,
    "retention_seconds": 0,
    "traceback_bytes": 0,
    "dead_letter_retention_seconds": None,
    "reserve": "p50",
    "backoff": Backoff(2, 60),
    "codel": CodelRule(0.5, 1),
    "backlog": BacklogLimit(10),
    "admission": AdmissionLimit(3),
    "groups": GroupRules(separator="/"),
}


def test_the_table_names_every_option() -> None:
    assert {*OTHERS} == {*QueueRules.model_fields}


@pytest.mark.parametrize("name", OTHERS)
def test_an_option_that_is_not_stored_has_its_default_for_every_process(
    store: StoreUnderTest, name: str
) -> None:
    """A process that names nothing uses the queue, and then another one names something."""
    store.queue().put(0)
    default = getattr(store.queue().configure(), name)
    fitting: dict[str, Any] = {"order": "fifo"} if name == "codel" else {}
    wrong = store.queue(**{name: OTHERS[name]} | fitting)
    for verb in (lambda: wrong.put(1), wrong.claim, wrong.stats, wrong.create_table, wrong.configure):
        with pytest.raises(ValueError, match=f"{name}: (queue 'default' has )?.* by default"):
            verb()
    assert store.queue().stats().pending == 1
    same = store.queue(**{name: default})  # to name the default is no contradiction
    same.put(1)
    assert getattr(store.queue().configure(), name) == default


def looked_at(queue: Queue) -> None:
    """Create, describe, list, count and look after a queue, without using it."""
    queue.create_table()
    assert queue.configure().max_age_seconds == 3600
    assert (queue.peek(), queue.list().tasks, queue.get("a"), queue.paused()) == ([], (), None, False)
    queue.stats()
    queue.stats(approximate=True)
    queue.pressure()
    queue.admin.recover()
    queue.redrive()
    queue.purge(confirm="default")
    queue.close()


@pytest.mark.parametrize("name", OTHERS)
def test_a_table_that_was_only_created_and_looked_at_is_new_to_its_queue(
    store: StoreUnderTest, name: str
) -> None:
    """`freshq table create URL`, and then an application that names its options, as examples/web does."""
    looked_at(store.queue())
    fitting: dict[str, Any] = {"order": "fifo"} if name == "codel" else {}
    first = store.queue(**{name: OTHERS[name]} | fitting)
    assert first.stats().pending == 0
    first.put(1)
    for _ in range(2):
        ours, default = getattr(first.configure(), name), getattr(Queue.memory().configure(), name)
        assert getattr(store.queue().configure(), name) == ours != default
        store.queue().claim()


USES: dict[str, Callable[[Queue], object]] = {
    "put": lambda queue: queue.put(1),
    "a claim of nothing": lambda queue: queue.claim(),
    "all tasks are done": lambda queue: queue.complete((queue.put(1), queue.claim())[1][0]),
    "purged": lambda queue: (queue.put(1), queue.purge(confirm="default")),
    "cancelled": lambda queue: queue.cancel(queue.put(1).task_id),
}


@pytest.mark.parametrize("use", USES)
def test_a_queue_stays_used_by_its_defaults(store: StoreUnderTest, use: str) -> None:
    queue = store.queue()
    USES[use](queue)
    queue.close()
    late = store.queue(max_attempts=9)
    for verb in (late.stats, lambda: late.put(2), late.claim, late.create_table):
        with pytest.raises(
            ValueError, match=r"^max_attempts: queue 'default' has 5 by default, and 9 was named"
        ):
            verb()
    assert store.queue().configure().max_attempts == 5


@pytest.mark.parametrize("peer", [{}, {"max_attempts": 2}], ids=["by its defaults", "with other options"])
@pytest.mark.parametrize(
    "verb",
    [
        lambda queue: queue.stats(),
        lambda queue: queue.admin.recover(),
        lambda queue: queue.redrive(),
        lambda queue: queue.put(2),
    ],
    ids=["stats", "recover", "redrive", "put"],
)
def test_a_process_whose_options_were_not_stored_first_is_refused(
    store: StoreUnderTest, later: Callable[[], None], peer: dict[str, Any], verb: Callable[[Queue], object]
) -> None:
    """It only read and tended the queue while it was new; a peer used it with other options."""
    ours = store.queue(max_attempts=1)
    ours.stats()
    ours.admin.recover()
    store.queue(**peer).put(1)
    later()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^max_attempts: queue 'default' has . .*, and 1 was named"):
            verb(ours)
    assert ours.configure(max_attempts=1).max_attempts == 1
    verb(ours)


@pytest.mark.parametrize("first", ["create_table", "put", "claim", "configure", "copy"])
def test_who_names_options_first_stores_them_with_a_queue_that_is_new_to_its_table(
    store: StoreUnderTest, first: str
) -> None:
    store.queue().create_table()
    mail = store.queue(name="mail", order="fifo", max_age_seconds=60)
    begin: dict[str, Callable[[], object]] = {
        "create_table": mail.create_table,
        "put": lambda: mail.put(1),
        "claim": mail.claim,
        "configure": lambda: mail.configure(max_attempts=2),
        "copy": TaskCopy(Queue.memory(), mail).run,
    }
    begin[first]()
    other = store.queue(name="mail").configure()
    assert (other.order, other.max_age_seconds) == ("fifo", 60)
    with pytest.raises(ValueError, match=r"^order: queue 'mail' has fifo stored"):
        store.queue(name="mail", order="lifo").put(2)
    with pytest.raises(ValueError, match=r"^lease_seconds: queue 'mail' has 60 by default"):
        store.queue(name="mail", order="fifo", lease_seconds=9).claim()
    assert store.queue().configure().order == "lifo"


def test_a_queue_with_tasks_is_not_new(store: StoreUnderTest) -> None:
    """Nobody named an option, so all follow the defaults; a process that names another is refused."""
    store.queue(name="mail").put(1)
    late = store.queue(name="mail", order="fifo")
    for verb in (lambda: late.put(2), late.claim, late.create_table):
        with pytest.raises(ValueError, match=r"^order: queue 'mail' has lifo by default, and fifo was named"):
            verb()
    (claim,) = store.queue(name="mail").claim()
    with refused("order"):
        late.put(2)
    store.queue(name="mail").fail(claim)
    with refused("order"):
        store.queue(name="mail", order="fifo").put(2)
    assert store.queue(name="mail").stats().failure == 1


def test_of_two_who_open_a_new_queue_at_once_the_second_is_refused(store: StoreUnderTest) -> None:
    ours, theirs = store.queue(order="fifo"), store.queue(order="lifo", max_attempts=2)
    for queue in (ours, theirs):
        assert queue.stats().pending == 0  # each process has read that nothing is stored
    theirs.put(1)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^order: queue 'default' has lifo stored, and fifo was named"):
            ours.put(2)
    assert store.queue().stats().pending == 1
    assert ours.configure(order="fifo", max_attempts=2).order == "fifo"


def test_to_read_a_new_queue_stores_nothing(store: StoreUnderTest) -> None:
    queue = store.queue(order="fifo")
    queue.stats()
    queue.peek()
    queue.pressure()
    queue.close()
    assert core_of(store.queue()).store.read_record("default", RECORD) is None


def test_what_processes_disagree_about_is_known(store: StoreUnderTest, later: Callable[[], None]) -> None:
    store.queue(order="fifo").create_table()

    def dissents() -> list[tuple[str, str, str, bool]]:
        doctor = store.queue()
        doctor.configure()
        found = core_of(doctor).options.dissents()
        return sorted((each.name, each.ours, each.theirs, each.is_used) for each in found)

    own = store.queue(order="lifo", lease_seconds=60, max_attempts=2, override=True)
    own.put(1)
    assert dissents() == [("max_attempts", "5", "2", True), ("order", "fifo", "lifo", True)]
    named = store.queue(order="fifo")
    named.put(2)
    store.queue().configure(order="lifo")
    later()
    named.put(3)  # it follows, but its next start will be refused
    assert dissents() == [("max_attempts", "5", "2", True), ("order", "lifo", "fifo", False)]
    store.queue().configure(order="fifo", max_attempts=2)
    assert dissents() == [("order", "fifo", "lifo", True)]
    store.clock.advance(86_401)
    assert dissents() == []


def test_a_process_can_override_and_stores_nothing(store: StoreUnderTest) -> None:
    store.queue(order="fifo", lease_seconds=30).create_table()
    own = store.queue(order="lifo", override=True)
    own.create_table()
    numbered(own)
    assert own.claim()[0].task.payload == 2
    assert own.admin.config.lease_seconds == 30
    assert store.queue().claim()[0].task.payload == 0


def test_a_process_in_use_follows_a_change_within_5_s(
    store: StoreUnderTest, later: Callable[[], None]
) -> None:
    producer, worker = store.queue(max_age_seconds=3600), store.queue()
    numbered(producer, 4)
    (newest,) = worker.claim()
    assert newest.task.payload == 3
    store.queue().configure(order="fifo", max_attempts=1, max_age_seconds=60, backlog=BacklogLimit(2))
    later()
    (oldest,) = worker.claim()
    assert oldest.task.payload == 0
    assert worker.retry(oldest).status is TaskStatus.FAILURE
    # A later change overrides the value that the process named when it opened the queue.
    late = producer.get(producer.put("late").task_id)
    assert late is not None
    assert late.deadline == store.clock.now + 60
    assert producer.stats().shed_by_reason == {"overflow": 1}


def test_the_options_are_read_once_in_some_seconds(
    store: StoreUnderTest, later: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue().claim()
    queue = store.queue()
    reads = reads_of_options(queue, monkeypatch)
    assert queue.admin.config.order == "lifo"
    assert reads == []  # neither the constructor nor a look at the options makes a call
    for expected in (1, 2):
        numbered(queue, 5)
        queue.settle_many([])
        for claim in queue.claim(limit=5):
            queue.complete(claim)
        queue.admin.recover()
        queue.stats()
        assert len(reads) == expected
        queue.purge(confirm="default")
        later()


def test_all_kinds_of_options_come_back_as_they_were(store: StoreUnderTest) -> None:
    options: dict[str, Any] = {
        "order": "fifo",
        "max_age_seconds": 1234.5,
        "max_attempts": 3,
        "lease_seconds": 12.0,
        "retention_seconds": 0.0,
        "reserve": 0.25,
        "backoff": Backoff(2, 60),
        "codel": CodelRule(0.5, 1),
        "backlog": BacklogLimit(10, group_share=0.5),
        "admission": AdmissionLimit(3),
    }
    stored = store.queue().configure(**options)
    found = store.queue().configure()
    assert found.model_dump(include=set(options)) == stored.model_dump(include=set(options))
    assert found.backlog == options["backlog"]
    assert store.queue().configure(codel=None, order="adaptive").codel is None
    again = store.queue(**{**options, "codel": None, "order": "adaptive"})
    again.put(1)  # the same values are no contradiction
    assert store.queue().configure(forget=True, max_attempts=2).order == "lifo"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("clock", time.time, "clock: cannot be stored with this queue; use one of order, "),
        ("worker_name", "w", "worker_name: cannot be stored"),
        ("order", "random", "order: "),
        ("lease_seconds", 0, "lease_seconds: "),
        ("codel", CodelRule(1, 2), "codel: works only with order=fifo"),
        ("reserve", 5000, "reserve: 5000"),
        ("backoff", Backoff(0), "backoff.base_seconds: "),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_is_stored(option: str, value: object, said: str) -> None:
    queue = Queue.memory()
    queue.configure(max_attempts=3)
    wrong: Any = {option: value, "retention_seconds": 5.0}
    with pytest.raises(ValueError, match=f"^{said}"):
        queue.configure(**wrong)
    assert core_of(queue).options.stored == {"max_attempts": 3}
    assert queue.configure().retention_seconds == 86_400


def test_a_refused_change_leaves_the_named_options_as_they_were(store: StoreUnderTest) -> None:
    queue = store.queue(order="fifo")
    with refused("codel"):
        queue.configure(order="lifo", codel=CodelRule(1, 2))
    queue.create_table()
    assert store.queue().configure().order == "fifo"


def test_what_belongs_to_a_process_is_not_stored(store: StoreUnderTest) -> None:
    queue = store.queue(worker_name="one", order="fifo")
    queue.create_table()
    record = core_of(queue).store.read_record("default", RECORD)
    assert record is not None
    assert record.values == {"order": "fifo"}


def test_options_of_a_later_version_are_ignored_and_damaged_ones_named(store: StoreUnderTest) -> None:
    records = core_of(store.queue()).store
    assert records.write_record("default", RECORD, {"of_tomorrow": 1, "order": "fifo"}, None)
    assert store.queue().configure().order == "fifo"
    records.write_record("mail", RECORD, {"order": "sideways"}, None)
    with refused("order"):
        store.queue(name="mail").put(1)


def test_shards_can_grow_and_not_shrink(table: StoreUnderTest, later: Callable[[], None]) -> None:
    worker = table.queue()
    worker.put_many([{"payload": number} for number in range(4)])
    table.queue().configure(shards=4)
    producer = table.queue()
    producer.put_many([{"payload": number} for number in range(4, 20)])
    later()
    assert sorted(claim.task.payload for claim in worker.claim(limit=20)) == list(range(20))
    for change in (lambda: worker.configure(shards=2), lambda: table.queue(shards=2).put(1)):
        with refused("shards"):
            change()
    worker.configure(forget=True)
    assert core_of(table.queue()).options.source("shards") == "default"
    again = table.queue()
    again.configure()
    assert core_of(again).store.shards == 4


def test_a_memory_queue_has_no_shards() -> None:
    with refused("shards"):
        Queue.memory().configure(shards=2)


def test_an_attached_table_stores_what_the_attachment_does_not_have(
    shipments: Shipments,
) -> None:
    queue = shipments.queue()
    queue.configure(max_attempts=1, lease_seconds=7)
    with refused("order"):
        queue.configure(order="fifo")
    other = shipments.queue()
    other.put(task_id="A")
    (claim,) = other.claim()
    assert other.retry(claim).status is TaskStatus.FAILURE


def test_a_read_that_fails_later_changes_nothing(later: Callable[[], None]) -> None:
    store = FaultyStore()
    queue = store.queue(order="fifo")
    with store.down(), pytest.raises(Unreachable):
        queue.put(0)
    numbered(queue, 2)
    store.queue().configure(order="lifo")
    later()
    with store.down(), pytest.raises(Unreachable):
        queue.claim()
    assert queue.admin.config.order == "fifo"
    later()
    assert queue.claim()[0].task.payload == 1


def test_coroutines_configure_too() -> None:
    async def configure() -> None:
        async with AsyncQueue.memory() as queue:
            config = await queue.configure(order="fifo")
            assert config.order == queue.admin.config.order == "fifo"

    asyncio.run(configure())


def test_the_rules_of_groups_are_stored_and_followed(
    store: StoreUnderTest, later: Callable[[], None]
) -> None:
    rules = GroupRules(of={"heavy": GroupRule(weight=3), "acmé": GroupRule()}, separator="/")
    queue = store.queue(groups=rules)
    queue.create_table()
    other = store.queue()
    for number in range(8):
        other.put_many([{"payload": number, "group": group} for group in ("heavy/a", "heavy/b", "light")])
    assert other.admin.config.groups == rules
    shares = Counter(claim.task.group for claim in other.claim(8))
    assert shares == {"heavy/a": 3, "heavy/b": 3, "light": 2}
    with pytest.raises(ValueError, match="groups: "):
        store.queue(groups=GroupRules()).stats()
    queue.configure(groups=GroupRules())
    later()
    assert len(other.claim(9)) == 9
    assert other.admin.config.groups == GroupRules()
