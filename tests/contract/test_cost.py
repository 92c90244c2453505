"""The cost of freshq in DynamoDB's capacity units and calls. The documentation's figures come from here."""

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import capacity, figures
from benchmarks.capacity import Bench, Cost, metered, new_bench
from types_boto3_dynamodb import DynamoDBClient

from freshq.queue.core import core_of
from freshq.queue.polling import Fetcher
from freshq.worker.background import REST_SECONDS
from freshq.worker.options import WorkerConfig
from tests.support.one_thread_patch import confined


def by_step(costs: list[Cost]) -> dict[str, Cost]:
    return {cost.step: cost for cost in costs}


@pytest.mark.parametrize(("claim_size", "most_calls"), [(25, 0.6), (10, 0.6), (5, 1), (1, 4)])
def test_a_whole_life(dynamodb_local: DynamoDBClient, claim_size: int, most_calls: float) -> None:
    cost = capacity.whole_life(dynamodb_local, claim_size, tasks=100)
    # The limits are promises.
    assert cost.write_units <= 6
    assert cost.calls <= most_calls
    # The actual cost: put 2, claim 2, settle 1, and a share of the naming. A small claim also names the tasks
    # that come next, so at least four share a write of the record. One that names 25 is larger than 1 KB.
    namings = 1 / max(4, claim_size)
    naming_units = 2 if claim_size == 25 else 1
    assert cost.write_units == pytest.approx(5 + namings * naming_units, abs=0.07)
    # Tasks are put 25 a call. A claim is a query and a write of its tasks, and their end is another. The
    # producer, the worker and the sweep read the stored options once.
    assert cost.calls == pytest.approx(1 / 25 + 3 / claim_size + namings + 3 / 100, abs=0.1)


def test_a_shed_task_costs_its_put(dynamodb_local: DynamoDBClient) -> None:
    cost = capacity.shed_task(dynamodb_local)
    assert cost.write_units == 2


def test_a_task_with_a_shorter_max_age_costs_its_put_too(dynamodb_local: DynamoDBClient) -> None:
    cost = capacity.shed_task(dynamodb_local, max_age_seconds=60)
    assert cost.write_units == 2


@pytest.fixture
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass in a millisecond, so that no figure depends on the machine's speed."""
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", confined(lambda: real() * 1000, time.monotonic))


@pytest.mark.usefixtures("_slow_machine")
def test_each_step(dynamodb_local: DynamoDBClient) -> None:
    costs = by_step(capacity.steps(dynamodb_local))
    # Ten tasks share a naming: a tenth of a unit each, or three tenths if the record moves in its index.
    # A process writes its counts five seconds after the first count, so never within a step.
    assert {step: cost.write_units for step, cost in costs.items()} == {
        "put, 10 in one call of `put_many`": 2,
        "claim of 10, lease record included": pytest.approx(2.2),
        "release, one by one, and claim again": 4.0,
        "retry, one by one, wait, promote and claim again": pytest.approx(7.1),
        "extend": 1,
        "complete, one by one": 1,
        "put of a taken id": 1,
        "redrive as new of a waiting task": 3,
        "cancel": 2,
        "get": 0,
        "claim from an empty queue": 0,
        "sweep with nothing to do": 0,
        "recover an orphan, 10 of one dead worker": pytest.approx(2.5),
        # A dead letter has an entry of its own in the due index.
        "fail: the task, and its entry among the dead letters": 2,
        "list of 10 dead letters": 0,
        "redrive of all dead letters": 3,
        "cancel as a dead letter": 3,
        "redrive as new of a dead letter": 3,
    }
    idle = costs["claim from an empty queue"]
    assert (idle.calls, idle.read_units) == (2, 1)
    assert costs["sweep with nothing to do"].calls == 1


def test_a_put_over_another_costs_one_write_but_for_an_update_of_what_lives(
    dynamodb_local: DynamoDBClient,
) -> None:
    """An update follows a refused write, which returns the task it replaces; the rest is the index."""
    costs = capacity.puts_over(dynamodb_local)
    assert [(cost.write_units, cost.calls) for cost in costs] == [
        (2, 1),
        (1, 1),
        (4, 2),
        (1, 1),
        (3, 2),
        (2, 1),
    ]
    assert {cost.read_units for cost in costs} == {0}


def test_a_lost_race_costs_one_refused_write(dynamodb_local: DynamoDBClient) -> None:
    alone, named, raced = capacity.races(dynamodb_local)
    assert (alone.write_units, alone.calls) == (3, 3)  # the query, the naming and the claim itself
    assert (named.write_units, named.calls) == (2, 2)
    assert (raced.write_units, raced.calls) == (3, 3)  # named ahead: no naming, but a refused write
    assert raced.read_units == alone.read_units


def test_approximate_stats_cost_the_same_calls_whatever_the_backlog(dynamodb_local: DynamoDBClient) -> None:
    few, many = (capacity.approximate_stats(dynamodb_local, tasks) for tasks in (200, 1000))
    assert few.calls == many.calls <= 7
    assert many.read_units <= 128 + few.calls  # a full page is 1 MB: 128 units


def test_an_idle_worker_reads_at_most_a_unit_a_second(dynamodb_local: DynamoDBClient) -> None:
    """Count what it does each time, instead of waiting for it."""
    poll_seconds = WorkerConfig.model_fields["poll_seconds"].default
    with new_bench(dynamodb_local) as bench:
        queue = bench.queue()
        fetcher = Fetcher(core_of(queue), poll_seconds)

        def look() -> None:
            bench.clock.now += 2 * poll_seconds
            fetcher.begin()
            assert queue.claim() == []
            fetcher.found_few(0)

        look()
        queue.admin.upkeep()
        with metered(dynamodb_local) as looks:
            look()
        with metered(dynamodb_local) as portions:
            queue.admin.upkeep()
    # Queries of a line, of due tasks and of the next due time; consistent reads of the pause and the options.
    assert (looks.read_units, looks.write_units) == (3.5, 0)
    assert 0 < looks.read_units / poll_seconds + portions.read_units / REST_SECONDS <= 1


def test_the_operator_bounds_the_looks_of_an_idle_worker(dynamodb_local: DynamoDBClient) -> None:
    with new_bench(dynamodb_local) as bench:
        fetcher = Fetcher(core_of(bench.queue()), 30)
        bench.clock.now += 3600
        assert fetcher.seconds() == 30


@pytest.mark.usefixtures("read_once")
def test_the_meter_counts_what_is_refused(dynamodb_local: DynamoDBClient) -> None:
    queue = Bench(dynamodb_local).queue()
    queue.put("work", task_id="a")
    with metered(dynamodb_local) as meter:
        queue.put("work", task_id="a")
        queue.get("a")
    assert (meter.write_units, meter.read_units, meter.refused) == (1, 1, 1)
    assert meter.calls == {"PutItem": 1, "GetItem": 1}


def test_a_whole_life_costs_the_same_however_slow_the_machine_is(
    dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = capacity.whole_life(dynamodb_local, 10, tasks=40)
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", confined(lambda: real() * 1000, time.monotonic))
    assert capacity.whole_life(dynamodb_local, 10, tasks=40) == quick
    # At a tenth of the rate fewer tasks share a look at the control record.
    slow = capacity.whole_life(dynamodb_local, 10, rate_per_second=10, tasks=40)
    assert (slow.calls, slow.read_units) > (quick.calls, quick.read_units)


def test_the_figures_are_written(
    dynamodb_local: DynamoDBClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = capacity.races(dynamodb_local)
    monkeypatch.setattr(capacity, "all_costs", lambda _client: costs)
    monkeypatch.setattr(capacity, "STALE", (30, 60))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    running = nullcontext(SimpleNamespace(client=lambda: dynamodb_local))
    monkeypatch.setattr(capacity, "DynamoDBLocal", lambda: running)
    capacity.main()
    written = figures.figures_of("capacity")
    assert [entry["step"] for entry in written["steps"]] == [cost.step for cost in costs]
    matches = [each for each in written["matching"] if each["step"] == "match"]
    assert [each["write_units"] for each in matches] == [6, 10, 14]  # of an agent with 1 to 3 languages
    behind = [(each["stale"], each["found"]) for each in written["behind_stale"]]
    assert behind == [(30, 10), (60, 10)]


@pytest.mark.parametrize("ended", ["complete", "release"])
def test_a_listing_of_held_tasks_costs_little_where_lease_records_name_ended_ones(
    dynamodb_local: DynamoDBClient, ended: str
) -> None:
    with new_bench(dynamodb_local) as bench:
        queue = bench.queue()
        queue.put_many([{"payload": number} for number in range(100)])
        claims = queue.claim(100)
        held = claims[50]
        for claim in claims[:50] + claims[51:]:
            getattr(queue, ended)(claim)
        listed, cursor, pages = [], None, 0
        while True:
            with metered(dynamodb_local) as meter:
                page = queue.list("TAKEN", limit=10, cursor=cursor)
            assert meter.read_units <= 10
            listed += [task.task_id for task in page]
            cursor, pages = page.cursor, pages + 1
            if cursor is None:
                break
        assert listed == [held.task.task_id]
        assert pages > 1
