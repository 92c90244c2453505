"""Known results, for every format."""

import random
from math import ceil, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.lives import write_events
from pyspark.sql import SparkSession

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.build import check_as_of
from freshq_pipeline.gold.figures import wait_percentiles
from freshq_pipeline.gold.minutes import AGES_SECONDS, HISTOGRAM_BASE
from freshq_pipeline.ingest.sources import read_records
from freshq_pipeline.schemas import OUTCOMES as FATES
from freshq_pipeline.schemas import VALUES, Format
from freshq_pipeline.spark.tuning import LARGE, MEDIUM
from freshq_pipeline.storage.state import State
from tests.pipeline.conftest import Pipeline, Rows, table, tuned
from tests.pipeline.nights import differing
from tests.pipeline.recording import START_SECONDS, Recording, ms, small, write_lines
from tests.pipeline.wandering import wandering

SHARES = (0.0, 0.5, 0.99, 1.0)
START_MS = START_SECONDS * 1000
OUTCOMES = {
    "a": "success", "b": "success", "c": "failure", "d": "cancelled", "e": "shed", "f": "shed",
    "g": "cancelled", "h": "shed", "i": "success", "j": "pending", "k": "taken",
}  # fmt: skip


@pytest.mark.parametrize("form", [Format.LANDED, Format.STREAMS, Format.KINESIS])
def test_small_recording(form: Format, pipeline: Pipeline, tmp_path: Path) -> None:
    lines = small().lines(form)
    delivered = [*lines, *lines[3:8], "{broken", '"no object"']
    random.Random(3).shuffle(delivered)
    write_lines(tmp_path / "in/2026/01/01/00/a.json.gz", delivered[:20])
    write_lines(tmp_path / "in/2026/01/01/01/b.json", delivered[20:])
    summary = pipeline(tmp_path / "in", tmp_path / "out", form)
    own = 0 if form is Format.LANDED else 1
    assert summary["events_read"] == len(delivered)
    assert summary["events_duplicate"] == 5
    assert summary["events_quarantined"] == 2
    assert summary["events_no_task"] == own
    assert summary["as_of_ms"] == START_MS + 400_000
    assert summary["ledger_violations"] == 0
    rows = {row["task_id"]: row for row in table(summary, "tasks", "task_id")}
    assert {task: row["outcome"] for task, row in rows.items()} == OUTCOMES
    assert [rows[task]["shed_reason"] for task in "aefh"] == [None, "expired", "expired", "overflow"]
    assert rows["e"]["finished_ms"] == START_MS + 110_000  # at its deadline, not when TTL removed it
    assert rows["e"]["removed_ms"] == START_MS + 300_000
    assert (rows["b"]["attempts"], rows["b"]["wait_seconds"], rows["b"]["run_seconds"]) == (2, 1.0, 4.0)
    assert (rows["i"]["lease_losses"], rows["i"]["run_seconds"]) == (1, 35.0)
    assert rows["j"]["wait_seconds"] is None
    workers = {row["worker"]: row for row in table(summary, "workers", "worker")}
    assert workers["w1"] == {"queue": "default", "worker": "w1", "claims": 4, "settles": 3, "lease_losses": 1}
    total = table(summary, "ledger", "day")[-1]
    assert (total["queue"], total["day"], total["created"], total["shed"]) == ("default", None, 11, 3)
    assert total["difference"] == 0
    if form is not Format.KINESIS:  # only Kinesis has removals to the microsecond
        landed = small().landed()
        write_lines(tmp_path / "sound.json", [*landed, *landed[3:8]])
        assert differing(summary, tmp_path / "sound.json", tmp_path / "duckdb") == {}


@pytest.mark.parametrize("form", [Format.LANDED, Format.STREAMS, Format.KINESIS])
def test_a_record_that_changes_its_queue_is_put_there(
    form: Format, spark: SparkSession, tmp_path: Path
) -> None:
    tape = Recording()
    tape.put(0, "1", queue="orders")
    tape.change(1, "1", "CANCELLED")
    tape.put(2, "1", queue="returns")
    tape.take(3, "1")
    write_lines(tmp_path / "a.json", tape.lines(form))
    events = read_records(spark, [str(tmp_path / "a.json")], form).orderBy("changed_us")
    assert [(row["queue"], row["change"], row["status"]) for row in events.collect()] == [
        ("orders", "INSERT", "PENDING"), ("orders", "MODIFY", "CANCELLED"), ("returns", "INSERT", "PENDING"),
        ("returns", "MODIFY", "TAKEN"),
    ]  # fmt: skip


def test_queues_apart_inversions_violations_and_an_id_used_again(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    tape = Recording()
    for at, task in enumerate("abc"):
        tape.put(at, task)
    tape.put(1.5, "other", priority=5)
    tape.take(4, "b")  # c is newer and waits
    tape.take(5, "c")
    tape.take(6, "a")  # no newer task of its level waits
    tape.settle(7, "a", "SUCCESS")
    tape.change(8, "a", "PENDING")  # a task that succeeded cannot wait again
    tape.remove(9, "b", by_ttl=True)  # a task in progress must not disappear
    tape.put(1, "again", queue="two", max_age=5)
    tape.remove(9, "again", by_ttl=True)
    tape.put(9, "again", queue="two")
    tape.take(9.5, "again")
    tape.settle(9.6, "again", "SUCCESS")
    for task, end in (("over", "SUCCESS"), ("over too", "FAILURE")):
        tape.put(1, task, queue="three")
        tape.take(2, task)
        tape.settle(3, task, end)
        tape.put(4, task, queue="three", max_age=2)  # replaces a finished task
        tape.put(7, task, queue="three")  # replaces a stale task
    tape.put(10, "lost", queue="two")
    tape.take(11, "lost")
    put_delayed(tape)
    put_between_attempts(tape)
    missing = (("lost", "INSERT"), ("put before", "INSERT"))
    events = [event for event in tape.landed() if (event["task_id"], event["change"]) not in missing]
    write_lines(tmp_path / "in/a.json", events)
    with tuned(spark, MEDIUM):
        summary = pipeline(tmp_path / "in", tmp_path / "out")
    rows = table(summary, "tasks", "task_id, life")
    lives = [(row["life"], row["outcome"], row["wait_seconds"]) for row in rows if row["task_id"] == "again"]
    assert lives == [(1, "shed", None), (2, "success", 0.5)]
    for task, end in (("over", "success"), ("over too", "failure")):
        fates = [(row["life"], row["outcome"]) for row in rows if row["task_id"] == task]
        assert fates == [(1, end), (2, "shed"), (3, "pending")]
    assert [row["task_id"] for row in rows if row["inverted"]] == ["b"]
    assert summary["inversions"] == 1
    assert summary["ledger_violations"] == 3
    problems = {row["task_id"]: row["problem"] for row in table(summary, "violations", "task_id")}
    assert problems == {
        "a": "illegal step SUCCESS -> PENDING",
        "b": "lost while it was taken",
        "lost": "no creation recorded",
    }
    # A task without a recorded put is in its first life, too.
    assert {row["life"] for row in table(summary, "violations", "task_id")} == {1}
    totals = {row["queue"]: row["difference"] for row in table(summary, "ledger", "day") if not row["day"]}
    assert totals == {"default": 0, "two": -1, "three": 0, "four": 0, "five": 0}
    assert_between_attempts_no_task_is_in_the_backlog(summary)
    assert_queues_are_apart(summary)
    assert_delayed_puts_count_from_their_due_times(summary)
    assert differing(summary, tmp_path / "in/*.json", tmp_path / "duckdb") == {}


def valued() -> Recording:
    """Return lives with every fate of a value: 1 to 512 by powers of two, and a task without a value."""
    tape = Recording()

    def put(number: int, **more: Any) -> str:
        tape.put(number, f"{number}", group=more.pop("group", None), **{"value": 2**number, **more})
        return f"{number}"

    for number in (0, 1, 2, 3, 8):
        tape.take(20, put(number, max_age=100, group="red", decay="linear" if number in {1, 8} else None))
    for number in (0, 1, 8):
        tape.settle(41 + number, f"{number}", "SUCCESS")  # 8 loses 41 of its 100 seconds, 1 the same
    tape.settle(200, "2", "SUCCESS")  # late
    tape.settle(45, "3", "FAILURE")
    tape.change(46, put(4, group="blue"), "CANCELLED")
    tape.change(47, put(5, group="blue"), "SHED", shedReason={"S": "overflow"})
    put(6, group="blue")  # expires
    put(7, max_age=1e6)
    tape.take(60, put(9, max_age=1e6))
    tape.put(61, "plain", max_age=1e6)
    # A later put may change the value of a live task.
    tape.change(70, "7", "PENDING", putAt=ms(70), taskValue={"N": "0.5"})
    return tape


def test_values_balance(pipeline: Pipeline, tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.json", valued().landed())
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    assert (summary["ledger_violations"], summary["valued"]) == (0, 10)
    delivered = {row["task_id"]: row["value_delivered"] for row in table(summary, "tasks", "task_id")}
    lost = dict.fromkeys("23456", 0.0)
    assert delivered == {"0": 1.0, "1": 1.18, "8": 151.04, "7": None, "9": None, "plain": None} | lost
    total = table(summary, "ledger", "day")[-1]
    worth = 1 + 2 + 4 + 8 + 16 + 32 + 64 + 0.5 + 256 + 512 + 1
    assert {name: total[name] for name in ("valued", *VALUES, "value_difference", "difference")} == {
        "valued": 10, "value_put": worth, "value_delivered": 153.22, "value_decayed": 105.78,
        "value_late": 4.0, "value_failure": 8.0, "value_shed": 96.0, "value_cancelled": 16.0,
        "value_open": 513.5, "value_difference": 0.0, "difference": 0,
    }  # fmt: skip
    kinds = {row["kind"]: row for row in table(summary, "kinds", "kind")}
    assert kinds["kind of blue"] == {
        "queue": "default", "kind": "kind of blue", "offered": 3, "in_time": 0, "shed": 2,
        "value_offered": 112.0, "value_delivered": 0.0, "value_lost": 96.0, "value_share": 0.0,
    }  # fmt: skip
    assert (kinds["kind of red"]["value_lost"], kinds[None]["value_lost"]) == (117.78, 0.0)
    assert summary["value_offered"] == worth
    assert differing(summary, tmp_path / "in/*.json", tmp_path / "duckdb") == {}


def test_values_that_do_not_balance_are_violations(pipeline: Pipeline, tmp_path: Path) -> None:
    tape = Recording()
    for number, task in enumerate(("a", "b", "lost")):
        tape.put(number, task, value=8)
        tape.take(number + 3, task)
    tape.settle(7, "a", "SUCCESS", taskValue={"N": "9"})
    tape.settle(8, "b", "SUCCESS", decay={"S": "linear"})
    tape.settle(9, "lost", "SUCCESS")
    events = [event for event in tape.landed() if (event["task_id"], event["change"]) != ("lost", "INSERT")]
    write_lines(tmp_path / "in/a.json", events)
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    problems = {row["task_id"]: row["problem"] for row in table(summary, "violations", "task_id")}
    changed = "illegal step to another value"
    assert problems == {"a": changed, "b": changed, "lost": "no creation recorded"}
    (_day, total) = table(summary, "ledger", "day")
    assert (total["difference"], total["value_put"], total["value_difference"]) == (-1, 0.0, -25.0)
    assert differing(summary, tmp_path / "in/*.json", tmp_path / "duckdb") == {}


def assert_queues_are_apart(summary: dict[str, Any]) -> None:
    """Assert known figures of five queues that share a table, a worker and the minutes."""
    figures = {row["queue"]: row for row in summary["queues"]}
    counts = {
        name: (row["tasks"], row["inversions"], row["ledger_violations"]) for name, row in figures.items()
    }
    assert counts == {"default": (4, 1, 2), "two": (3, 0, 1), "three": (6, 0, 0), "four": (5, 0, 0)} | {
        "five": (2, 0, 0)
    }
    assert summary["tasks"] == 20
    # The waits are 3, 3 and 6 s; 0.5 and 1 s; 1 s, twice; 1.5 s, twice; and 1 s, twice.
    medians = {name: row["wait_p50_seconds"] for name, row in figures.items()}
    assert medians == {"default": 3.0, "two": 0.75, "three": 1.0, "four": 1.5, "five": 1.0}
    assert summary["wait_p50_seconds"] == 1.0
    groups = {row["queue"]: row for row in table(summary, "groups", "queue")}
    offered = {name: row["offered"] for name, row in groups.items()}
    assert offered == {"default": 4, "two": 3, "three": 6, "four": 5, "five": 2}
    assert {row["offer_share"] for row in groups.values()} == {1.0}
    workers = table(summary, "workers", "queue")
    assert [(row["queue"], row["worker"], row["claims"]) for row in workers] == [
        ("default", "w1", 3), ("five", "w1", 2), ("four", "w1", 2), ("three", "w1", 2), ("two", "w1", 2),
    ]  # fmt: skip
    minutes = table(summary, "minutes", "queue")
    assert [(row["queue"], row["offered"]) for row in minutes if row["queue"] != "four"] == [
        ("default", 4), ("five", 2), ("three", 6), ("two", 3),
    ]  # fmt: skip
    assert {row["queue"] for row in table(summary, "violations", "queue")} == {"default", "two"}


def put_delayed(tape: Recording) -> None:
    """Write lives in the queue four that begin with a delayed put."""
    four: dict[str, Any] = {"queue": "four"}
    tape.put(1, "due", delay=4, max_age=5, **four)
    tape.put(2, "tomorrow", delay=86_400, **four)
    tape.put(3, "anew", delay=3600, **four)
    tape.change(4, "anew", "CANCELLED", notBefore=None)
    tape.put(4.5, "anew", **four)  # its creation time is earlier than that of the cancelled one
    tape.put(-1, "put before", delay=7.5, **four)
    tape.change(5.5, "due", "PENDING", notBefore=None)
    for at, task in ((6.5, "due"), (8, "put before")):
        tape.take(at, task)
        tape.settle(at + 0.5, task, "SUCCESS")


def assert_delayed_puts_count_from_their_due_times(summary: dict[str, Any]) -> None:
    rows = {
        (row["task_id"], row["life"]): row
        for row in table(summary, "tasks", "task_id")
        if row["queue"] == "four"
    }
    assert {name: row["outcome"] for name, row in rows.items()} == {
        ("due", 1): "success", ("tomorrow", 1): "pending", ("anew", 1): "cancelled", ("anew", 2): "pending",
        ("put before", 1): "success",
    }  # fmt: skip
    due = rows["due", 1]
    assert (due["put_ms"], due["created_ms"]) == (START_MS + 1000, START_MS + 5000)
    assert (due["wait_seconds"], due["in_time"]) == (1.5, True)
    (minute,) = (row for row in table(summary, "minutes", "queue") if row["queue"] == "four")
    assert (minute["offered"], minute["backlog"], minute["oldest_pending_seconds"]) == (3, 1, 6.5)


def put_between_attempts(tape: Recording) -> None:
    """Write lives in the queue five: one is to be tried again later, one is deleted while in progress."""
    for task in ("slow", "gone"):
        tape.put(1, task, queue="five")
        tape.take(2, task)
    tape.settle(3, "slow", "PENDING", notBefore=ms(59))
    tape.remove(9, "gone", by_ttl=False)


def assert_between_attempts_no_task_is_in_the_backlog(summary: dict[str, Any]) -> None:
    rows = {
        row["task_id"]: row["outcome"] for row in table(summary, "tasks", "queue") if row["queue"] == "five"
    }
    assert rows == {"slow": "pending", "gone": "cancelled"}
    (minute,) = (row for row in table(summary, "minutes", "queue") if row["queue"] == "five")
    assert (minute["backlog"], minute["backlog_by_age"], minute["oldest_pending_seconds"]) == (0, None, None)
    assert (minute["retried"], minute["cancelled"], minute["wasted_seconds"]) == (1, 1, 8.0)


def test_outcomes_at_an_earlier_time(pipeline: Pipeline, tmp_path: Path) -> None:
    events = small().landed()
    write_lines(tmp_path / "in/a.json", [*events, events[0], events[-1], "{broken"])
    summary = pipeline(tmp_path / "in", tmp_path / "out", as_of_ms=START_MS + 23_000)
    # Three events of a, five of b. The copy of the last event is as late as the event itself.
    assert (summary["events_distinct"], summary["events_duplicate"]) == (3 + 5, 1)
    assert summary["events_after_as_of"] == len(events) + 1 - summary["events_distinct"]
    counts = ("distinct", "duplicate", "after_as_of", "too_late", "quarantined", "no_task")
    assert summary["events_read"] == sum(summary[f"events_{name}"] for name in counts)
    rows = {row["task_id"]: row["outcome"] for row in table(summary, "tasks", "task_id")}
    assert rows == {"a": "success", "b": "taken"}
    # Without as-of no event is after it, even if the previous run counted some.
    whole = pipeline(tmp_path / "in", tmp_path / "out")
    assert (whole["events_after_as_of"], whole["events_duplicate"]) == (0, 2)
    assert whole["events_read"] == sum(whole[f"events_{name}"] for name in counts)


def test_as_of_before_the_first_event_is_refused() -> None:
    state = State("1", "in", "landed", starts_us={"a": START_SECONDS * 10**6, None: 2**60})
    state.as_of_us = START_SECONDS * 1000  # in seconds, where milliseconds are needed
    why = (
        r"^as-of: 1767225600 ms is 1970-01-21 10:53, before the first event, 2026-01-01 00:00 UTC; give milli"
    )
    with pytest.raises(BadInput, match=why):
        check_as_of(state)
    state.as_of_us = START_SECONDS * 10**6
    check_as_of(state)


def test_large_inputs_are_equal_to_duckdb(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Executors read the files and compare the claims.
    monkeypatch.setattr("freshq_pipeline.ingest.groups.HERE_BYTES", 0)
    monkeypatch.setattr("freshq_pipeline.gold.build.FEW_STEPS", 0)
    count = write_events(tmp_path / "in", 8000, files=3, seed=5)
    strays = [event | {"event_id": f"w{event['event_id']}"} for event in wandering(300, seed=5).landed()]
    write_lines(tmp_path / "in/wandering.json.gz", strays)
    with tuned(spark, LARGE):
        summary = pipeline(tmp_path / "in", tmp_path / "out")
    assert summary["events_distinct"] == count + len(strays)
    for figure in ("events_duplicate", "inversions", *FATES, "ledger_violations"):
        assert summary[figure] > 0
    assert {age for row in table(summary, "minutes", "minute_ms") for age in ages(row)} == set(AGES_SECONDS)
    assert differing(summary, tmp_path / "in/*.gz", tmp_path / "duckdb") == {}


def ages(minute: dict[str, Any]) -> list[int]:
    return [one["from_seconds"] for one in minute["backlog_by_age"] or ()]


@pytest.mark.parametrize(
    "waits", [[], [0.0], [3.0, 1.0, 2.0, 1.0], [0.5] * 9 + [700.0], [0.0, 0.0, 5.25, 80.0]]
)
def test_percentiles_of_few_waits_are_exact(waits: list[float]) -> None:
    queues = {"one": waits, None: [9.0, *waits[1:]], "1": [4.0] * 3} if waits else {}
    found = wait_percentiles(classes(queues), SHARES)
    together = [wait for some in queues.values() for wait in some]
    assert found.overall == (pytest.approx(list(np.quantile(together, SHARES))) if waits else [None] * 4)
    assert found.by_queue == {
        queue: pytest.approx(list(np.quantile(some, SHARES))) for queue, some in queues.items()
    }


def test_percentiles_of_many_waits_are_as_exact_as_their_classes() -> None:
    waits = list(np.random.default_rng(4).lognormal(1, 2, 20_000))
    found = wait_percentiles(classes({"one": waits}), SHARES).overall
    assert found == pytest.approx(list(np.quantile(waits, SHARES)), rel=0.02)
    assert found[0] == pytest.approx(min(waits), abs=1e-6)


def classes(queues: dict[str | None, list[float]]) -> Rows:
    """Return the waits of queues by histogram class, each queue in two parts, as of two days."""
    parts = [(queue, some) for queue, waits in queues.items() for some in (waits[::2], waits[1::2])]
    rows = []
    for queue, part in parts:
        of_class: dict[int, list[int]] = {}
        for us in (round(wait * 1e6) for wait in part):
            of_class.setdefault(ceil(log(max(us, 1)) / log(HISTOGRAM_BASE)), []).append(us)
        rows += [
            {"queue": queue, "class": one, "count": len(us), "shortest_us": min(us), "longest_us": max(us)}
            for one, us in of_class.items()
        ]
    return rows
