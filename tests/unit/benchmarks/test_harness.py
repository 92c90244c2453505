"""The figures and the page of the part `harness`."""

from typing import Any

import pytest
import typer
from benchmarks import harness, harness_page
from benchmarks.figures import figures_of
from benchmarks.harness import (
    CELLS,
    CONTENDERS,
    FUNCTIONS,
    TASKS,
    ContenderServer,
    Load,
    Run,
    Running,
    Served,
)
from benchmarks.harness_page import OWN, ROWS, TITLES, Row
from benchmarks.harness_peers import ADAPTERS, MANY, task
from benchmarks.harness_peers import Run as Arguments
from local.servers import Postgres


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    """Return a load of 100 a second for 10 s, without a process."""
    monkeypatch.setattr(Running, "start_worker", lambda _self: None)
    return Running(ContenderServer(Postgres(), "python", 1.0), OWN, "url", Load(100, 10.0), began=1000.0)


def test_each_contender_has_an_adapter_and_numbers_of_tasks() -> None:
    assert {name.partition("@")[0] for name in TASKS} == set(CONTENDERS) == ADAPTERS.keys()
    assert TITLES.keys() == {CONTENDERS[0], FUNCTIONS}
    assert all(len(each) == len(harness.SLOTS) for each in TASKS.values())


def test_the_arguments_of_a_task_are_those_of_the_class() -> None:
    args = task(7, 0.5)
    assert vars(Arguments(**args)) == args
    assert (args["number"], args["seconds"]) == (7, 0.5)
    assert 200 < len(str(args)) < 300
    assert MANY == 1000


def test_a_task_is_done_at_its_first_end(running: Running) -> None:
    for number in range(50):
        running.runs[number] = [Run(1001.0, 1001.0, 1002.0 + number)]
    running.runs[0].append(Run(1001.0, 1008.0, 1009.0))
    running.runs[50] = [Run(1001.0, 1008.0, 1009.0), Run(1001.0, 1002.0, 1003.0)]
    assert running.ended_within(2.0, 4.0) == 3
    assert running.share_done(2.0, 4.0) == 0.015


def test_lost_tasks_did_not_run_and_stuck_tasks_have_not_ended(running: Running) -> None:
    running.runs |= {number: [Run(0.0, 1.0, 2.0)] for number in range(running.load.tasks)}
    assert Served(running, 0, {}).lost_or_stuck == 0
    assert Served(running, 2, {}).lost_or_stuck == 2
    running.runs[0].append(Run(0.0, 1.0, 2.0))
    del running.runs[1]
    lossy = Served(running, 0, {})
    assert (lossy.lost_or_stuck, lossy.repeated) == (1, 1)
    with pytest.raises(RuntimeError, match="freshq lost 1 of 1000 tasks"):
        harness.all_done(lossy)


def test_a_contender_that_fails_does_not_end_the_part(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_place: ContenderServer, _peer: str) -> Any:
        raise harness.ContenderFailed("no table")

    failures: list[str] = []
    assert harness.attempted(fail, ContenderServer(Postgres(), "python", 1.0), "oban", failures) == {}
    assert failures == ["oban: no table"]
    assert "no table" in capsys.readouterr().err


def test_an_unknown_cell_is_named_beside_those_there_are() -> None:
    assert harness.chosen("") == [*CELLS]
    assert harness.chosen("kills,burst") == ["kills", "burst"]
    with pytest.raises(typer.BadParameter, match=r"unknown cell: speed; there are full-8, full-64"):
        harness.chosen("kills,speed")


def test_the_page_shows_every_cell() -> None:
    assert {row.cell for row in ROWS} == CELLS.keys()
    found = figures_of("harness")
    table = harness_page.table(found)
    assert len(table.rows) == len(ROWS)
    assert found["postgresql"].startswith("18.")
    assert all(row[1] for row in table.rows), "freshq has a figure in every row"


@pytest.mark.parametrize(
    ("own", "other", "most", "lost"),
    [
        (10.4, 9.6, False, False),
        (10.6, 10.4, False, True),
        (9.0, 10.0, False, False),
        (9.0, 10.0, True, True),
        (None, 10.0, True, True),
        (9.0, None, True, False),
    ],
)
def test_a_row_is_lost_to_a_better_median_as_shown(
    own: float | None, other: float | None, most: bool, lost: bool
) -> None:
    runs = {OWN: [{"x": own}, {}], FUNCTIONS: [{"x": 10.0}], "oban": [{"x": other}]}
    row = Row("cell", "x", "title", 0, "bound", is_most_best=most)
    medians = row.medians({"cell": {"runs": runs}})
    assert row.is_lost(medians) is lost
    assert not Row("cell", "x", "title", 0, "", is_most_best=most).is_lost(medians)
    assert row.medians({}) == {}


def test_a_lost_row_is_bold_and_says_what_bounds_it() -> None:
    def rounds(**figures: float) -> list[dict[str, float]]:
        return [figures] * 3

    runs = {OWN: rounds(kept=0.5), "awa": rounds(kept=1.0), "oban": [{}]}
    found = {"cells": {"kills": {"runs": runs}}, "versions": {"awa": "0.6.9", "oban": "0.7.0"}}
    table = harness_page.table(found)
    assert table.head[1:] == ["freshq", "awa 0.6.9", "oban 0.7.0", "bounded by"]
    (row,) = [row for row in table.rows if "throughput kept" in row[0] and "killed" in row[0]]
    assert row[1:] == ["**50 %**", "100 %", "failed", harness_page.RECOVERY]
    assert harness_page.setting(found, "burst", "possible") is None
    assert harness_page.setting(found, "kills", "kept") == 0.5
