"""Replays of recorded loads, without Spark: the recorded policy must repeat the recording."""

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from benchmarks.lives import write_events
from local.facts import make_tables

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate import Burst, Source, simulate_load
from freshq.simulate.backlog import Fates
from freshq_pipeline.errors import BadInput
from freshq_pipeline.replays.grid import DayRange, Grid
from freshq_pipeline.replays.record import COLUMNS, LOAD, Recorded, recorded_loads
from freshq_pipeline.replays.scenarios import TOLERANCE, _wanted, check, distinct, measures
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.arrow import arrow_schema
from freshq_pipeline.storage.days import Day, Hour, number
from tests.pipeline.recording import write_lines
from tests.support.functions import PROJECT

START_MS = 1_767_225_600_000.0
DAY_MS = 86_400_000.0
SCHEMA = arrow_schema({name: TABLES["tasks"][name] for name in COLUMNS})


def task(
    created: float, begun: float | None = None, ended: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return a row of `tasks`; times are in seconds."""
    times = {
        "created_ms": created,
        "first_taken_ms": begun,
        "finished_ms": ended,
        "deadline_ms": more.pop("deadline", created + 60),
    }
    in_ms = {name: None if at is None else START_MS + at * 1000 for name, at in times.items()}
    ran = None if begun is None or ended is None else ended - begun
    outcome = "success" if begun is not None else "shed"
    row = {"queue": "mail", "priority": 0, "run_seconds": ran, "outcome": outcome, "inverted": False} | more
    in_time = row["outcome"] == "success" and ended is not None and ended <= times["deadline_ms"]
    return in_ms | {"put_ms": in_ms["created_ms"], "in_time": in_time} | row


def recorded(rows: list[dict[str, Any]], first: float | None = None, **grid: Any) -> Recorded:
    """Return the load of the one queue of some rows."""
    first_ms = None if first is None else START_MS + first * 1000
    (found,) = recorded_loads(pa.Table.from_pylist(rows, SCHEMA), Grid(**grid), first_ms)
    return found


def replay(record: Recorded, order: Order = Order.LIFO, deadline: float | None = None) -> dict[str, Any]:
    """Return the measures of a replay, and that each task is counted once."""
    rules = OverloadRules(deadline or record.max_age_seconds, order)
    simulation = simulate_load(record.load(deadline), rules, record.occupied.servers)
    found = measures(simulation, record, deadline) | {"policy": order.value}
    parts = (*(found[name] for name in COUNTED), *found["shed_by_reason"].values())
    assert sum(parts) == found["offered"] == record.counts.offered
    return found


COUNTED = ("served_in_time", "served_late", "failed", "pending")


def counted(found: dict[str, Any]) -> tuple[int, ...]:
    return (*(found[name] for name in COUNTED), sum(found["shed_by_reason"].values()))


def counts_of(record: Recorded) -> tuple[int, ...]:
    counts = record.counts
    return counts.served_in_time, counts.served_late, counts.failed, counts.pending, counts.shed


@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO])
def test_the_recorded_policy_repeats_the_recording(order: Order) -> None:
    """With retries, failures and tasks that end late or never; a replay of another order differs."""
    source = Source(20, 120, 4, service_mean_seconds=0.1, burst=Burst(2.0, 30, 30), seed=7)
    load = source.load()
    done = simulate_load(load, OverloadRules(4.0, order), 2)
    rows = []
    for number_, (created, service) in enumerate(zip(load.created, load.service, strict=True)):
        if done.fates[number_] not in (Fates.IN_TIME, Fates.LATE):
            rows.append(task(created, ended=created + 4, deadline=created + 4))
            continue
        begun, pause = done.starts[number_], 6.0 if number_ % 11 == 0 else 0.0
        outcome = "failure" if number_ % 13 == 0 else "success"
        ended = begun + service + pause
        more = {"run_seconds": service, "outcome": outcome, "deadline": created + 4}
        rows.append(task(created, begun, ended, **more))
    record = recorded(rows)
    assert (record.occupied.servers, round(record.occupied.idle_ratio, 2)) == (2, 0)
    counts = counts_of(record)
    assert min(counts[:3]) > 100
    # Only the run drawn for a never served task may differ, and that task is not served here.
    assert counted(replay(record, order)) == counts
    other = check(record, replay(record, Order.FIFO if order is Order.LIFO else Order.LIFO))
    assert not other["within"]


def test_tasks_that_all_ended_late_after_a_retry_are_late_in_the_replay() -> None:
    late = [task(at, at + 1, at + 70, run_seconds=0.5) for at in range(20)]
    record = recorded(late)
    assert counts_of(record) == (0, 20, 0, 0, 0)
    found = replay(record)
    assert counted(found) == (0, 20, 0, 0, 0)
    assert check(record, found)["within"]
    # With a max age that is long enough they are in time.
    assert replay(record, deadline=75.0)["served_in_time"] == 20


def test_a_failure_is_no_success_in_time() -> None:
    rows = [task(at, at, at + 0.5, outcome="failure" if at % 2 else "success") for at in range(10)]
    found = replay(recorded(rows))
    assert counted(found) == counts_of(recorded(rows)) == (5, 0, 5, 0, 0)
    assert found["wasted_ratio"] == pytest.approx(0.5)


def test_values_are_delivered_in_a_replay_as_in_the_recording() -> None:
    """Tasks that are served when they are put deliver their values, less what decays until they end."""
    rows = [task(at, at, at + 0.5, value=4.0, value_delivered=4.0) for at in range(10)]
    falls = {"value": 8.0, "decay": "linear", "value_delivered": 7.2, "deadline": 30.0, "run_seconds": 0.5}
    rows += [task(20, 20, 21, **falls), task(40, 40, 41, outcome="failure", value_delivered=0.0)]
    rows += [task(60, outcome="taken", begun=60, value=100.0)]
    record = recorded(rows)
    assert record.figures()["value_delivered"] == pytest.approx(47.2)
    found = replay(record)
    assert (found["value_offered"], found["value_delivered"]) == (49.0, pytest.approx(47.2))
    assert record.figures()["value_offered"] == 49.0
    # With a max age of 2 s, the falling value is down to half at its end.
    assert replay(record, deadline=2.0)["value_delivered"] == pytest.approx(44.0)
    plain = recorded([task(at, at, at + 0.5) for at in range(10)])
    assert (replay(plain)["value_offered"], plain.value_delivered, plain.load(None).values) == (0.0, None, ())


def test_orders_by_value_are_replayed_if_tasks_have_values() -> None:
    rows = []
    for number_ in range(400):  # four a second, of which one is served
        at, served = number_ / 4, number_ % 4 == 0
        more = {"deadline": at + 5, "value": 10.0 if number_ % 5 == 0 else 1.0, "value_delivered": 0.0}
        rows.append(task(at, at if served else None, at + 1 if served else None, **more))
    record = recorded(rows)
    orders = [order for order, capacity, _ in _wanted(record, Grid()) if capacity == 1.0]
    assert orders == ["lifo", "lifo", "fifo", "adaptive", "value", "deadline"]
    assert replay(record, Order.VALUE)["value_delivered"] > 1.5 * replay(record)["value_delivered"]
    only = Grid(policies=(Order.FIFO,), capacities=(2.0,))
    assert _wanted(record, only)[1:] == [(Order.FIFO, 2.0, None)]
    plain = recorded([task(at, at, at + 0.5) for at in range(10)])
    assert {order for order, _, _ in _wanted(plain, Grid())} == {"lifo", "fifo", "adaptive"}


def test_what_the_recording_does_not_show_is_not_made_up() -> None:
    rows = [task(at, at, at + 0.5) for at in range(10)]
    # Stale between attempts; still running; waiting at the end; dead letters and others that never ran.
    rows += [task(10, 10, 70, run_seconds=0.1, outcome="shed"), task(70, 70, None, outcome="taken")]
    rows += [task(71, outcome="pending", deadline=999), task(71.5, 71.6, 72)]
    record = recorded(rows, servers=1)
    assert counts_of(record) == (11, 0, 0, 1, 1)
    assert record.imputed == 2
    found = replay(record)
    assert counted(found) == (12, 0, 0, 0, 1)  # one more server than the busy one serves the last task
    assert replay(recorded([*rows, *([task(71.7, outcome="pending")] * 50)], servers=1))["pending"] > 40


def test_what_waited_at_the_beginning_of_the_days_is_load() -> None:
    rows = [
        task(-50, -45, -40),  # over before
        task(-49, -1, 2),  # claimed before
        task(-30, None, -10, deadline=-10),  # shed before
        task(-20, 1, 2),
        task(-19, None, 41),
        *(task(at, at, at + 1) for at in range(2, 12)),
    ]
    record = recorded(rows, 0.0)
    assert record.created[:3].tolist() == [-20, -19, 2]
    assert list(record.load(None).created[:3]) == [0, 0, 2]
    assert counts_of(record) == (11, 0, 0, 0, 1)
    found = replay(record)
    # A wait counts from the creation, also before the beginning.
    assert (found["served_in_time"], found["wait_p99_seconds"]) == (12, pytest.approx(20, abs=1))
    assert recorded(rows).counts.offered == 15


def rows_of(files: str) -> pa.Table:
    """Return the load of landed events, from tables that DuckDB makes."""
    with duckdb.connect() as database:
        make_tables(database, files)
        return database.sql(f"select {', '.join(COLUMNS)} from tasks where {LOAD}").to_arrow_table()


def test_the_demonstration_as_recorded(tmp_path: Path) -> None:
    """Its machine was starved: the replay is better by what idle servers explain, and the check says so."""
    with gzip.open(PROJECT / "examples/pipeline/demo-events/events.json.gz", "rt") as file:
        events = [json.loads(line) for line in file]
    # DuckDB reads sequence numbers as JSON's numbers, without leading zeros.
    write_lines(tmp_path / "a.json", [event | {"sequence": str(int(event["sequence"]))} for event in events])
    (record,) = recorded_loads(rows_of(str(tmp_path / "*")), Grid())
    found = check(record, replay(record))
    assert (found["served_in_time_recorded"], record.counts.shed) == (242, 475)
    assert not found["within"]
    explained = found["served_in_time_replayed"] * (1 - found["idle_ratio"])
    assert explained == pytest.approx(found["served_in_time_recorded"], rel=TOLERANCE)


def test_a_recording_with_retries_lost_leases_and_failures(tmp_path: Path) -> None:
    write_events(tmp_path, 6000, files=1, seed=3)
    (record,) = recorded_loads(rows_of(str(tmp_path / "*")), Grid())
    assert record.counts.failed > 10
    assert check(record, replay(record))["within"]
    assert not check(record, replay(record, Order.FIFO))["within"]


def test_the_newest_days_are_replayed_unless_others_are_given() -> None:
    days = [f"2026-01-{day:02}" for day in range(1, 32)] + [f"2026-02-{day:02}" for day in range(1, 10)]
    newest = DayRange().choose(reversed(days))
    assert (newest.chosen[0], newest.chosen[-1], len(newest.chosen)) == ("2026-01-10", "2026-02-09", 31)
    assert DayRange(since="2026-01-01").choose(days).chosen == days
    assert DayRange(until="2026-01-02").choose(days).chosen == days[:2]
    assert DayRange("2026-02-01", "2026-02-03").choose(days).chosen == days[31:34]
    with pytest.raises(BadInput, match=r"no task .* 2027-01-01; .* from"):
        DayRange(since="2027-01-01").choose(days)
    with pytest.raises(BadInput, match="since: "):
        DayRange(since="yesterday")


def test_days_before_are_read_only_if_their_tasks_may_have_waited() -> None:
    days = DayRange(since="2026-01-04").choose([f"2026-01-0{day}" for day in range(1, 6)])
    at_us = int((START_MS + 3 * DAY_MS) * 1000)
    known = {
        number("2026-01-01"): Day(hours={0: Hour(0, at_us - 1)}),
        number("2026-01-02"): Day(hours={0: Hour(0, at_us + 1)}),
        number("2026-01-03"): Day(hours={0: Hour(0, at_us - 1, has_open=True)}),
        number("2026-01-05"): Day(hours={0: Hour(0, at_us + 1)}),
    }
    assert days.before(known) == ["2026-01-02", "2026-01-03"]
    assert days.first_us == at_us


def test_servers_are_whole_so_some_capacities_are_the_same() -> None:
    record = recorded([task(at, at + 0.1, at + 0.6) for at in range(10)], servers=1)
    wanted = [("lifo", capacity, None) for capacity in (1.0, 0.5, 1.2, 2.0, 1.8)]
    assert distinct(record, wanted) == [("lifo", 1.0, None), ("lifo", 2.0, None)]
