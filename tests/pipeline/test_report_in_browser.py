"""The report as people see it: light and dark, on a wide screen and on a phone."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from playwright.sync_api import Browser

from freshq_pipeline.report import charts, time_steps
from freshq_pipeline.report.page import _each, page
from freshq_pipeline.report.sections import Section
from freshq_pipeline.schemas import OUTCOMES, WAIT_PERCENTILES
from freshq_pipeline.storage.results import damage
from tests.support.browser_fixtures import patient

START_MS = 1_767_225_600_000
QUEUES = ("quotes", "reports-of-the-night-which-have-a-long-name")
# The boxes of the labels below each chart, from left to right.
LABELS = """() => [...document.querySelectorAll("svg")].map(chart =>
  [...chart.querySelectorAll(".role-axis-label text")]
    .filter(text => text.textContent && getComputedStyle(text).opacity > 0)
    .map(text => text.getBoundingClientRect()).map(box => [box.left, box.right, box.top, box.bottom]))"""
COLOURS = """() => [getComputedStyle(document.body).backgroundColor,
  getComputedStyle(document.querySelector(".role-axis-label text")).fill,
  getComputedStyle(document.body).color]"""


def tasks() -> pd.DataFrame:
    """Return tasks of which every other is shed, over a minute, in two queues."""
    rows = [
        {
            "queue": queue,
            "created_ms": START_MS + 300 * number,
            "first_taken_ms": START_MS + 300 * number + 60 if number % 2 else None,
            "finished_ms": START_MS + 300 * number + (900 if number % 2 else 5000),
            "wait_seconds": 0.06 if number % 2 else None,
            "outcome": "success" if number % 2 else "shed",
        }
        for queue in QUEUES
        for number in range(200)
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report with every chart over time and a wide table."""
    rows = time_steps.by_second(tasks(), START_MS + 66_000)
    x = charts.time_axis(rows)
    sections = [
        Section("Fates", "", _each(rows, lambda one: charts.fates(one, x))),
        Section(
            "Backlog", "", _each(rows, lambda one: charts.backlog(one, x, time_steps.SHORT_AGES_SECONDS))
        ),
        Section("Waits", "", _each(rows, lambda one: charts.waits(one, x))),
        Section("Freshness", "", _each(rows, lambda one: charts.freshness(one, x))),
        Section("Wide", "", table=pd.DataFrame([{f"a column {number}": number + 1 for number in range(20)}])),
    ]
    counts = ("tasks", *OUTCOMES, "inversions", "ledger_violations", "new_ledger_violations")
    summary: dict[str, Any] = dict.fromkeys(counts, 0) | {
        "queues": [{"queue": queue, "tasks": 200} for queue in QUEUES],
        "as_of_ms": START_MS + 66_000,
        "run_id": "run-1",
        **dict.fromkeys(WAIT_PERCENTILES, 0.06),
        **damage({}, {}),
    }
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(page(summary, "<div><b>50% done in time</b>, 50% shed.</div>", sections), "utf-8")
    return file


@pytest.mark.parametrize("width", [400, 1100])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_readable(browser: Browser, report: Path, width: int, scheme: Any) -> None:
    context = patient(browser, viewport={"width": width, "height": 800}, color_scheme=scheme)
    try:
        shown = context.new_page()
        shown.goto(report.as_uri())
        shown.wait_for_function("() => document.querySelectorAll('svg').length === 8")
        assert shown.evaluate("() => document.documentElement.scrollWidth") <= width
        paper, label, ink = shown.evaluate(COLOURS)
        assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
        assert label == ink
        for boxes in shown.evaluate(LABELS):
            assert len(boxes) > 3
            assert not any(overlap(one, other) for one in boxes for other in boxes if one is not other)
    finally:
        context.close()


def overlap(one: list[float], other: list[float]) -> bool:
    left, right, top, bottom = (
        pick(pair) for pick, pair in zip((max, min, max, min), zip(one, other, strict=True), strict=True)
    )
    return left < right and top < bottom - 2  # fonts have room above and below their letters
