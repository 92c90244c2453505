"""A short recording in steps of seconds, compared with values counted by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd

from freshq_pipeline.report import charts, time_steps

START_MS = 1_767_225_600_000
NONE = float("nan")


def recording(*tasks: tuple[float, float, float, str]) -> pd.DataFrame:
    """Return tasks, each given by its put, first claim and end in seconds, and its outcome."""
    frame = pd.DataFrame(tasks, columns=["created_ms", "first_taken_ms", "finished_ms", "outcome"])
    for name in ("created_ms", "first_taken_ms", "finished_ms"):
        frame[name] = START_MS + frame[name] * 1000
    frame["queue"] = "default"
    return frame.assign(wait_seconds=(frame["first_taken_ms"] - frame["created_ms"]) / 1000)


TASKS = recording(
    (0.2, 0.3, 0.9, "success"),
    (0.4, 2.5, 3.1, "failure"),
    (0.5, NONE, 3.5, "shed"),
    (1.1, NONE, 2.2, "cancelled"),
    (2.6, NONE, NONE, "pending"),
)


def column(name: str) -> list[Any]:
    return list(time_steps.by_second(TASKS, START_MS + 4000)[name])


def test_puts_and_ends_of_each_second() -> None:
    assert column("offered") == [3, 1, 1, 0]
    assert column("succeeded") == [1, 0, 0, 0]
    assert column("failed") == [0, 0, 0, 1]
    assert column("cancelled") == [0, 0, 1, 0]
    assert column("shed") == [0, 0, 0, 1]


def test_tasks_waiting_for_their_first_claim_at_the_end_of_each_second() -> None:
    waiting = [{one["from_seconds"]: one["count"] for one in ages} for ages in column("backlog_by_age")]
    assert waiting == [{0: 2}, {0: 1, 1: 2}, {0: 1, 2: 1}, {1: 1}]
    assert [round(age, 3) for age in column("oldest_pending_seconds")] == [0.6, 1.6, 2.5, 1.4]
    assert [round(age, 3) for age in column("newest_pending_seconds")] == [0.5, 0.9, 0.4, 1.4]


def test_waits_of_the_tasks_first_claimed_in_each_second() -> None:
    horizons = column("service_horizon_seconds")
    assert [None if pd.isna(age) else round(age, 3) for age in horizons] == [0.1, None, 2.1, None]
    third = time_steps.by_second(TASKS, START_MS + 4000)["wait_histogram"][2]
    assert abs(charts.percentiles([third])[0.5] - 2.1) < 0.05


def test_longer_recordings_have_longer_steps() -> None:
    at = time_steps.by_second(TASKS, START_MS + 20 * 60_000)["at"]
    assert (len(at), at[1] - at[0]) == (120, pd.Timedelta(seconds=10))
