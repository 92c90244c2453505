"""The questions of docs/questions.md, asked of a recording with known answers, which the page shows."""

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from freshq_pipeline.runs.frames import tables
from tests.support.snippets import snippets

PAGE = Path(__file__).parents[2] / "docs/questions.md"


def questions() -> dict[str, tuple[str, list[list[str]]]]:
    """Return the SQL of each question and the answer that the page shows, with the names of its columns."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        (sql,) = re.findall(r"^```sql\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
        answer = [line.split(" | ") for line in lines]
        del answer[1]
        found[section.partition("\n")[0]] = (sql, answer)
    return found


def shown(names: list[str], rows: list[tuple[Any, ...]]) -> list[list[str]]:
    """Return rows as the page shows them."""
    return [names, *([as_text(value) for value in row] for row in rows)]


def as_text(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.timeout(600)  # a run on Spark, on a machine that may be busy
def test_the_answers_are_those_of_the_page(
    spark: SparkSession, two_days_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "OUT").symlink_to(two_days_folder / "out")
    monkeypatch.chdir(tmp_path)
    (views,) = (one for one in snippets(PAGE) if one.language == "python")
    with duckdb.connect() as connection:
        monkeypatch.setattr("duckdb.execute", connection.execute)
        exec(compile(views.code, views.place, "exec"), {})
        found = {}
        for question, (sql, _answer) in questions().items():
            rows = connection.execute(sql)
            names = [str(column[0]) for column in rows.description or ()]
            found[question] = shown(names, rows.fetchall())
    assert found == {question: answer for question, (_sql, answer) in questions().items()}
    assert len(found) == 10
    # Spark understands the same SQL, and finds the same columns.
    for name, frame in tables(spark, tmp_path / "OUT").items():
        frame.createOrReplaceTempView(name)
    for question, (sql, answer) in questions().items():
        assert spark.sql(sql).columns == answer[0], question
