"""The notebook of examples/pipeline, cell by cell: from recorded events to a max age, with a chart."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import jupytext
import pytest
from pyspark.sql import SparkSession

from freshq import Queue
from tests.support.functions import PROJECT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = PROJECT / "examples/pipeline"


def small_queue(file: Path) -> str:
    """Return the address of a queue that has done five tasks, and keeps its history."""
    url = f"sqlite:///{file}?name=mail"
    with closing(Queue.sql(f"sqlite:///{file}", name="mail", history=True)) as queue:
        queue.create_table()
        queue.put_many([{"payload": number} for number in range(5)])
        for claim in queue.claim(limit=5):
            queue.complete(claim)
    return url


@pytest.mark.timeout(600)  # a run and a replay on Spark, on a machine that may be busy
def test_the_notebook_picks_a_max_age(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("OUT", "QUEUE", "STACK"):
        monkeypatch.delenv(name, raising=False)
    # Another queue beside it, which is smaller and pulled from its database.
    monkeypatch.setenv("QUEUE_URL", small_queue(tmp_path / "mail.db"))
    monkeypatch.setenv("EVENTS", "demo-events")
    assert SparkSession.builder.getOrCreate() is spark
    notebook = jupytext.read("max_age.py")
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds.count("markdown") > 4
    names: dict[str, Any] = {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"cell {number}", "exec"), names)
    summary = names["recorded"].summary
    assert (summary["tasks"], summary["success"], summary["shed"]) == (725, 250, 475)
    assert names["tasks"].where("queue = 'mail' and in_time").count() == 5
    # Longer max ages serve more tasks, and older ones.
    found = {row["deadline_seconds"]: row for row in names["candidates"].collect()}
    served = [row["served_in_time"] for row in found.values()]
    waits = [row["wait_p99_seconds"] for row in found.values()]
    assert (served, waits) == (sorted(served), sorted(waits))
    assert names["best"]["deadline_seconds"] == max(
        age for age in found if found[age]["wait_p99_seconds"] <= 5
    )
    assert f"max_age_seconds={names['best']['deadline_seconds']:g}: " in capsys.readouterr().out
    picture = (tmp_path / "out/max_age.svg").read_text()
    for shown in ("newest first", "oldest first", "max age (s)", "wait, 99th percentile (s)"):
        assert shown in picture
    # With no max age that fits, the last two cells say so.
    names["OLDEST_SECONDS"] = 0.0
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"][-2:]:
        exec(compile(cell.source, "again", "exec"), names)
    assert "within 0 s. Try shorter max ages" in capsys.readouterr().out
    assert "None of these max ages" in (tmp_path / "out/max_age.svg").read_text()
