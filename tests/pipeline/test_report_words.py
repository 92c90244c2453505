"""What the report says in words: the headline, counts, shares, times and the look of tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from freshq_pipeline.report import charts
from freshq_pipeline.report.sections import figures, table
from freshq_pipeline.report.words import age_labels, cell, conclusions, duration, fates_of, headline, share
from freshq_pipeline.schemas import OUTCOMES

FIGURES = dict.fromkeys((*OUTCOMES, "in_time"), 0)


def test_the_headline_says_what_became_of_the_tasks() -> None:
    counted = FIGURES | {"success": 23, "in_time": 22, "shed": 76, "pending": 1}
    said = headline(fates_of(counted), 0.06)
    assert said == "22 % done in time, 76 % shed, 1 % done late, 1 % still waiting; median wait 60 ms."
    in_time = FIGURES | {"success": 22, "in_time": 22}
    assert headline(fates_of(in_time), 0.06) == "100 % done in time; median wait 60 ms."
    assert headline(fates_of(FIGURES), None) == "No tasks."


def test_something_is_never_nothing_and_not_everything_never_everything() -> None:
    assert [share(part, 1000) for part in (0, 1, 10, 999, 1000)] == [
        "0 %", "under 1 %", "1 %", "over 99 %", "100 %",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.06, "60 ms"), (0.9999, "1,000 ms"), (1.234, "1.23 s"), (90, "1.5 min"), (7200, "2 h"),
        (3.6e7, "10,000 h"),
    ],
)  # fmt: skip
def test_times_are_in_the_unit_that_suits_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_age_classes_are_ranges() -> None:
    ages = ["under 5 s", "5 to 30 s", "30 s to 1 min", "1 min to 2 h", "2 h and more"]
    assert age_labels((0, 5, 30, 60, 7200)) == ages


def test_cells_have_units_and_thousands() -> None:
    cells = [("wait_p50_seconds", 0.06), ("claims", 12_345), ("shed_share", 0.5), ("jain_index", 0.25)]
    assert [cell(*one) for one in cells] == ["60 ms", "12,345", "50 %", "0.250"]
    assert [cell("created", value) for value in (None, float("nan"), 7.0, "total")] == [
        "-",
        "-",
        "7",
        "total",
    ]


def test_columns_and_figures_of_zeros_are_folded() -> None:
    shown = table(pd.DataFrame({"queue": ["a<b"], "shed": [1500], "cancelled": [0], "difference": [0]}))
    assert "<th class='text'>queue</th><th>shed</th><th>difference</th>" in shown
    assert "<td class='text'>a&lt;b</td><td>1,500</td><td>0</td>" in shown
    assert "Zero: cancelled." in shown
    boxes = figures({"tasks": 3, "failure": 0, "wait_p50_seconds": None})
    assert boxes.count("<b>") == 2
    assert "Zero: failure." in boxes


@pytest.mark.parametrize("shown", [[0.06], [0.06, 7.5], [0.0], [0.02, 400_000.0], [5.0, 5.0]])
def test_the_axis_of_times_has_ticks_around_what_it_shows(shown: list[float]) -> None:
    axis: Any = charts.seconds_axis("x:Q", "wait", pd.Series(shown)).to_dict()
    ticks, (begin, end) = axis["axis"]["values"], axis["scale"]["domain"]
    assert 2 <= len(ticks) <= charts.MAX_TICKS
    assert begin <= max(min(shown), charts.SHORTEST_SECONDS) <= max(*shown, 0.001) <= end
    assert all(begin <= tick <= end for tick in ticks)


def test_the_conclusions_of_a_replay() -> None:
    def row(policy: str, in_time: int, queue: str = "mail", capacity: float = 1) -> dict[str, Any]:
        return {
            "queue": queue,
            "policy": policy,
            "capacity": capacity,
            "served_in_time": in_time,
            "offered": 100,
        }

    rows = [row("fifo", 2), row("lifo", 45), row("fifo", 99, capacity=2)]
    rows += [row("fifo", 100, "b"), row("lifo", 100, "b"), row("fifo", 1, "c")]
    assert conclusions({"scenarios": rows}) == [
        "Queue mail, at its recorded capacity: lifo does 45 % in time, fifo 2 %.",
        "Queue b, at its recorded capacity: all policies do 100 % in time.",
    ]
