"""What tasks were worth when they were done, and what was lost: in exact counts, and as rates."""

import random

import pytest

from freshq import Claim, Queue, Task
from freshq.cli.commands.watch import Watcher, frame
from freshq.cli.output import Output, value_facts
from freshq.policy import BacklogLimit
from freshq.queue.core import core_of
from tests.conftest import StoreUnderTest

MAX_AGE_SECONDS = 20
VALUES = (None, None, 0.5, 40, 0.001, 123.456789)
LARGE_VALUES = (1e6 + 1, 3e9, 1e12)


def new_task(rng: random.Random, number: int, *, large: bool) -> dict[str, object]:
    """Return a task: with or without a value, a decay, a max age and a delay of its own."""
    chosen = {
        "value": rng.choice(LARGE_VALUES if large else VALUES),
        "decay": rng.choice((None, "step", "linear")),
        "max_age_seconds": rng.choice((None, None, 3, 8)),
        "delay_seconds": rng.choice((None, None, 2)),
        "group": rng.choice((None, "a")),
    }
    return {"payload": number, **{name: given for name, given in chosen.items() if given is not None}}


def work(store: StoreUnderTest, queue: Queue, rng: random.Random, *, large: bool) -> None:
    """Put and end tasks in every way for 15 seconds, some of them late."""
    held: list[Claim] = []
    for number in range(15):
        receipts = queue.put_many([new_task(rng, number, large=large) for _ in range(rng.randint(1, 4))])
        if rng.random() < 0.2:
            queue.cancel(receipts[0].task_id)
        if rng.random() < 0.2:
            queue.cancel(receipts[-1].task_id, dead=True, force=True)
        held += queue.claim(rng.randint(1, 3), lease_seconds=60)
        store.clock.advance(rng.choice((0.000001, 0.7, 1.3)))
        rng.shuffle(held)
        for _ in range(min(len(held), rng.randint(0, 3))):
            (queue.fail if rng.random() < 0.15 else queue.complete)(held.pop())


def plain_sums(queue: Queue) -> tuple[float, float]:
    """Return the value that the stored tasks delivered and lost, from reading each."""
    delivered = lost = 0.0
    cursor = None
    while True:
        page = queue.list(limit=500, cursor=cursor)
        for task in page:
            value = 1.0 if task.value is None else task.value
            if task.status.value == "SUCCESS":
                delivered += kept(task, value)
                lost += value - kept(task, value)
            elif task.status.value in ("FAILURE", "SHED"):
                lost += value
        cursor = page.cursor
        if cursor is None:
            return delivered, lost


def kept(task: Task, value: float) -> float:
    """Return what is left of the value of a completed task."""
    assert task.deadline is not None
    if task.updated > task.deadline:
        return 0.0
    if task.decay is None:
        return value
    return value * min(1.0, (task.deadline - task.updated) / (task.deadline - task.created))


@pytest.mark.parametrize("seed", range(4))
def test_exact_counts_have_the_sums_over_all_tasks(store: StoreUnderTest, seed: int) -> None:
    rng = random.Random(seed)
    order = ("value", "lifo", "value", "deadline")[seed]
    backlog = BacklogLimit(12) if seed == 2 else None
    queue = store.queue(order=order, max_age_seconds=MAX_AGE_SECONDS, backlog=backlog)
    work(store, queue, rng, large=seed == 3)
    impatient = store.queue(order=order, max_age_seconds=5, override=True)
    for seconds in (0, 6, 30):
        store.clock.advance(seconds)
        for each in (queue, impatient):
            counted, read = each.stats(), each.stats(ids=1)
            sums = pytest.approx(plain_sums(each), rel=1e-6)  # times have microseconds
            assert (counted.value_delivered, counted.value_lost) == sums
            assert (read.value_delivered, read.value_lost) == sums
    assert all(plain_sums(queue))


def test_a_queue_without_values_has_none(store: StoreUnderTest) -> None:
    queue, clock = store.queue(max_age_seconds=10), store.clock
    queue.put_many([{"payload": number} for number in range(3)])
    queue.complete(queue.claim()[0])
    queue.fail(queue.claim()[0])
    clock.advance(20)
    stats, pressure = queue.stats(), queue.pressure()
    assert (stats.success, stats.failure, stats.shed) == (1, 1, 1)
    assert stats.value_delivered is stats.value_lost is None
    assert pressure.value_offered_per_second is pressure.value_delivered_per_second is None
    assert pressure.value_lost_ratio is None
    queue.put("worth something", value=2)
    assert queue.stats().value_delivered is None, "it has not ended"
    queue.complete(queue.claim()[0])
    assert (queue.stats().value_delivered, queue.stats().value_lost) == (3.0, 2.0), "the others are worth 1"


def test_nothing_is_counted_for_tasks_without_values(store: StoreUnderTest) -> None:
    queue, clock = store.queue(max_age_seconds=10), store.clock
    for _ in range(2):
        queue.put("plain")
        queue.complete(queue.claim()[0])
        clock.advance(1)
    queue.admin.flush()
    window = int(clock.now // 10)
    counts = [core_of(queue).store.read_counts(queue.name, f"flow-{window - back}") for back in range(2)]
    assert any(counts)
    assert not [name for each in counts for name in each if "value" in name]


def test_approximate_counts_say_that_they_have_no_values(store: StoreUnderTest) -> None:
    queue = store.queue(order="value", max_age_seconds=10)
    queue.put("work", value=3)
    queue.complete(queue.claim()[0])
    stats = queue.stats(approximate=True)
    assert (stats.value_delivered, stats.value_lost) == (None, None)
    assert stats.bounded["value_delivered"] == stats.bounded["value_lost"] == "not counted"


@pytest.mark.parametrize("order", ["value", "lifo"])
def test_pressure_has_the_value_offered_and_delivered(store: StoreUnderTest, order: str) -> None:
    """Two processes, each with its own counts; 53 are offered within two seconds."""
    queue, producer, clock = (*(store.queue(order=order, max_age_seconds=100) for _ in range(2)), store.clock)
    clock.now = 120.0 * (clock.now // 120 + 1)  # the start of a window
    producer.put("plain")
    producer.put("dear", value=40)
    producer.put("falling", value=12, decay="linear")
    producer.put("late", value=0.25, max_age_seconds=1)
    producer.admin.flush()
    claims = queue.claim(4)
    clock.advance(2)
    for claim in claims:
        queue.complete(claim)
    found = queue.pressure()
    assert found.value_offered_per_second == pytest.approx(53.25 / 2)
    assert found.value_delivered_per_second == pytest.approx((41 + 12 * 0.98) / 2)
    assert found.value_lost_ratio == pytest.approx(1 - (41 + 12 * 0.98) / 53.25)
    assert queue.stats().value_lost == pytest.approx(0.25 + 0.24)


@pytest.mark.parametrize("value", [1e-6, 1.0, 1e6, 1e12])
def test_sums_of_the_smallest_and_the_largest_values(store: StoreUnderTest, value: float) -> None:
    queue = store.queue(order="value", max_age_seconds=10)
    for _ in range(4):
        queue.put_many([{"payload": number, "value": value} for number in range(25)])
    store.clock.advance(1)
    found = queue.pressure()
    assert found.value_offered_per_second == pytest.approx(100 * value / 1, rel=1e-6)
    assert found.value_delivered_per_second == 0.0
    store.clock.advance(20)
    assert queue.stats().value_lost == pytest.approx(100 * value)


@pytest.mark.parametrize("is_valued", [False, True])
def test_the_figures_are_shown_if_tasks_have_values(
    store: StoreUnderTest, capsys: pytest.CaptureFixture[str], is_valued: bool
) -> None:
    queue = store.queue(max_age_seconds=10)
    queue.put_many([{"payload": number, **({"value": 1.5e4} if is_valued else {})} for number in range(2)])
    queue.complete(queue.claim()[0])
    queue.fail(queue.claim()[0])
    store.clock.advance(2)
    output = Output(as_json=False)
    output.stats(queue.stats(), queue.name, paused=False)
    output.console.print(frame(Watcher(queue).snapshot(), 100, 40))
    shown = [" ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.splitlines()]
    assert ("value delivered 15,000" in shown) == is_valued
    assert ("value lost 15,000" in shown) == is_valued
    assert any(line.startswith("value offered") for line in shown) == is_valued
    assert any("value" in line for line in shown) == is_valued
    facts = value_facts(queue.pressure())
    assert facts.keys() == ({"value offered", "value delivered", "value lost"} if is_valued else set())
