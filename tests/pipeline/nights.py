"""Recordings over several days in parts, whose tables are compared with DuckDB's after each part."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
from local.facts import make_tables, relations, rows_that_differ, write_tables

from freshq_pipeline.schemas import TABLES
from tests.pipeline.conftest import Pipeline
from tests.pipeline.recording import START_SECONDS, Recording, ms, write_lines
from tests.pipeline.wandering import wandering

DAY = 86_400.0
HOUR = 3600.0


def oddities(prefix: str) -> Recording:
    """Return lives that span several days, or change the fields by which they are counted."""
    tape = Recording()
    touched, moved, anew, early = (f"{prefix}-{name}" for name in ("touched", "moved", "anew", "early"))
    tape.put(DAY - 60, touched, max_age=3 * HOUR)
    # A touch moves the creation time to the next day; the task is then claimed out of turn.
    tape.change(DAY + 60, touched, "PENDING", taskCreated=ms(DAY + 60), deadline=ms(DAY + 4 * HOUR))
    tape.put(DAY - 30, f"{prefix}-older", max_age=2 * DAY)
    tape.take(DAY + 90, f"{prefix}-older")
    tape.take(DAY + 95, touched)
    tape.settle(DAY + 99, touched, "SUCCESS")
    tape.put(HOUR, moved, group="red", max_age=2 * DAY)
    tape.change(DAY + HOUR, moved, "PENDING", taskGroup={"S": "blue"})
    tape.put(HOUR, anew, max_age=60)
    tape.put(2 * DAY + 5, anew, max_age=600)  # replaces a task that was shed two days before
    tape.take(2 * DAY + 9, anew)
    # An update removes the delay of a put that would be due tomorrow.
    tape.put(2 * HOUR, early, delay=DAY)
    tape.change(3 * HOUR, early, "PENDING", taskCreated=ms(3 * HOUR), deadline=ms(9 * HOUR), notBefore=None)
    tape.put(3 * HOUR, f"{prefix}-long", max_age=3 * DAY)
    for day, parent in enumerate((None, f"{prefix}-chain-0", f"{prefix}-chain-1")):  # one task a day
        task, root = f"{prefix}-chain-{day}", None if parent is None else f"{prefix}-chain-0"
        tape.put(day * DAY + HOUR, task, max_age=3 * DAY - day * DAY, parent=parent, root=root)
        tape.take(day * DAY + 2 * HOUR, task)
        tape.settle(day * DAY + 3 * HOUR, task, "SUCCESS")
    return tape


def quiet_days(days: int) -> Recording:
    """Return days with three tasks each, named dDAY-NUMBER, of which one waits past midnight."""
    tape = Recording()
    for day in range(days):
        if day > 0:
            tape.take(day * DAY + 30, f"d{day - 1}-2")
            tape.settle(day * DAY + 40, f"d{day - 1}-2", "FAILURE")
        tape.put(day * DAY + HOUR, f"d{day}-0", group="red", max_age=HOUR)
        tape.put(day * DAY + HOUR + 1, f"d{day}-1", max_age=HOUR)
        tape.take(day * DAY + HOUR + 5, f"d{day}-1")
        tape.settle(day * DAY + HOUR + 9, f"d{day}-1", "SUCCESS")
        tape.put((day + 1) * DAY - 60, f"d{day}-2", max_age=HOUR)
    return tape


def quiet_hours(hours: int) -> Recording:
    """Return hours with four tasks each, named hHOUR-NUMBER.

    One is shed, one is served, one waits past the hour, and one has an id that was used in the hour before.
    """
    tape = Recording()
    for hour in range(hours):
        begin = hour * HOUR
        if hour > 0:
            tape.take(begin + 30, f"h{hour - 1}-2", holder="late:a")
            tape.settle(begin + 40, f"h{hour - 1}-2", "SUCCESS")
        tape.put(begin + 60, f"h{hour}-0", group="red", max_age=600)
        tape.put(begin + 61, f"h{hour}-1", max_age=600)
        tape.take(begin + 65, f"h{hour}-1")
        tape.settle(begin + 69, f"h{hour}-1", "SUCCESS")
        tape.put(begin + 70, f"again-{hour // 2}", max_age=600)
        tape.take(begin + 90, f"again-{hour // 2}")
        tape.settle(begin + 95, f"again-{hour // 2}", "SUCCESS")
        tape.put(begin + HOUR - 60, f"h{hour}-2", max_age=600)
    return tape


def recorded(tasks: int, seed: int, days: int) -> list[dict[str, Any]]:
    """Return the events of some days by time, with tasks that belong to several days."""
    tape = wandering(tasks, seed, hours=24 * days, again_after=0.7 * DAY)
    # On most days nothing stays in progress indefinitely.
    for task_id, item in list(tape.items.items()):
        if item["taskStatus"]["S"] == "TAKEN" and not task_id.endswith("7"):
            at = float(item["taskUpdated"]["N"]) / 1000 - START_SECONDS
            tape.settle(at + 600, task_id, "SUCCESS")
    events = [event | {"event_id": f"w{event['event_id']}"} for event in tape.landed()]
    events += [event | {"event_id": f"o{event['event_id']}"} for event in oddities("odd").landed()]
    return sorted(events, key=lambda event: event.get("updated_ms", event["stream_ms"]))


def nights(events: list[dict[str, Any]], count: int, late: float, seed: int) -> list[list[dict[str, Any]]]:
    """Return events in parts of equal length of time; some are late, and some are delivered again.

    Args:
        events: From `recorded`.
        count: Number of parts.
        late: Share of the events that come in a later part.
        seed: The same seed gives the same parts.
    """
    rng = random.Random(seed)
    times = [event.get("updated_ms", event["stream_ms"]) for event in events]
    length = (times[-1] - times[0]) / count + 1
    parts: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for event, at in zip(events, times, strict=True):
        place = int((at - times[0]) // length)
        if rng.random() < late:
            place = rng.randrange(place, count)
        parts[place].append(event)
        if rng.random() < 0.05:
            parts[rng.randrange(place, count)].append(event)
    for part in parts:
        rng.shuffle(part)
    return [part for part in parts if part]


def assert_each_run_equals_duckdb(
    pipeline: Pipeline, folder: Path, parts: Iterable[list[dict[str, Any]]]
) -> dict[str, Any]:
    """Run the pipeline after each part, compare all tables with DuckDB's, and return the last summary.

    The ledger violations are new that DuckDB did not find after the part before.
    """
    summary: dict[str, Any] = {}
    for place, part in enumerate(parts):
        if (folder / f"duckdb-{place}").exists():
            continue  # it was delivered before
        write_lines(folder / f"in/{place:03}.json.gz", part)
        summary = pipeline(folder / "in", folder / "out")
        assert differing(summary, folder / "in/*.gz", folder / f"duckdb-{place}") == {}, place
        known = violating(folder / f"duckdb-{place - 1}") if place else set()
        new = Counter(queue for queue, *_ in violating(folder / f"duckdb-{place}") - known)
        assert {row["queue"]: row["new_ledger_violations"] for row in summary["queues"]} == {
            row["queue"]: new[row["queue"]] for row in summary["queues"]
        }
        assert summary["new_ledger_violations"] == new.total()
    return summary


def violating(tables: Path) -> set[tuple[Any, ...]]:
    """Return queue, id and creation time of the tasks that violate the ledger in DuckDB's tables."""
    with duckdb.connect() as connection:
        found = connection.read_parquet(str(tables / "tasks/*.parquet"))
        return set(found.filter("len(problems) > 0").project("queue, task_id, created_ms").fetchall())


def differing(summary: dict[str, Any], files: Path, out: Path) -> dict[str, int]:
    """Return the number of differing rows by table, without tables that do not differ."""
    with duckdb.connect() as oracle:
        make_tables(oracle, str(files))
        off = rows_that_differ(oracle, relations(summary), write_tables(oracle, out))
    assert off.keys() == TABLES.keys()
    return {name: rows for name, rows in off.items() if rows}
